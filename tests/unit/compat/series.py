"""Series of an exporter of the table, for tests."""

from __future__ import annotations

import re
from typing import Any

from otel_gpu.compat.families import FAMILIES
from otel_gpu.compat.render import render
from otel_gpu.compat.schema import RenderContext
from otel_gpu.config.compat_exporters import EXPORTERS
from otel_gpu.metrics.rows import ReportRows, report_rows
from otel_gpu.model import Report


def text(name: str, attribution: Report | ReportRows, **context: Any) -> str:
    """The whole exposition."""
    rows = attribution if isinstance(attribution, ReportRows) else report_rows(attribution)
    return render(FAMILIES[name], RenderContext(rows, **context), prefix=EXPORTERS[name].prefix).decode()


def lines(name: str, family: str, attribution: Report | ReportRows, **context: Any) -> list[str]:
    """The lines of one family."""
    found = text(name, attribution, **context).splitlines()
    return [line for line in found if line.startswith((f"{family}{{", f"{family} "))]


def values(name: str, family: str, attribution: Report | ReportRows, *labels: str, **context: Any) -> dict[Any, float]:
    """The values of one family by these labels, which must be unique."""
    found: dict[Any, float] = {}
    for line in lines(name, family, attribution, **context):
        found_labels = dict(re.findall(r'(\w+)="((?:\\.|[^"\\])*)"', line))
        values = tuple(found_labels[label] for label in labels)
        key = values[0] if len(values) == 1 else values
        assert key not in found, (family, key)
        found[key] = float(line.rpartition(" ")[2])
    return found
