"""What an exporter of the table tells of an answer."""

from __future__ import annotations

import re
from typing import Any

from otel_gpu.compat.exporters import EXPORTERS
from otel_gpu.compat.form import Scene
from otel_gpu.compat.render import render
from otel_gpu.metrics.rows import ReportRows, report_rows
from otel_gpu.model import Report


def text(name: str, attribution: Report | ReportRows, **scene: Any) -> str:
    """The whole exposition."""
    rows = attribution if isinstance(attribution, ReportRows) else report_rows(attribution)
    exporter = EXPORTERS[name]
    return render(exporter, Scene(rows, **scene), prefix=exporter.prefix).decode()


def lines(name: str, family: str, attribution: Report | ReportRows, **scene: Any) -> list[str]:
    """The series of one family, as they are written."""
    found = text(name, attribution, **scene).splitlines()
    return [line for line in found if line.startswith((f"{family}{{", f"{family} "))]


def values(name: str, family: str, attribution: Report | ReportRows, *labels: str, **scene: Any) -> dict[Any, float]:
    """The values of one family by these labels; no two may have the same."""
    found: dict[Any, float] = {}
    for line in lines(name, family, attribution, **scene):
        told = dict(re.findall(r'(\w+)="((?:\\.|[^"\\])*)"', line))
        values = tuple(told[label] for label in labels)
        key = values[0] if len(values) == 1 else values
        assert key not in found, (family, key)
        found[key] = float(line.rpartition(" ")[2])
    return found
