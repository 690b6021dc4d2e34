"""``otel-gpu metrics``: the catalogue."""

from __future__ import annotations

import sys
import textwrap
from typing import Final

from otel_gpu.cli.stdio import stdout_paint, terminal_size, write
from otel_gpu.metrics.catalogue import METRICS
from otel_gpu.metrics.names import prometheus_name
from otel_gpu.metrics.reference import attributes_text, markdown
from otel_gpu.view.terminal import TextColumn, table

_DONE: Final = 0
_NARROWEST: Final = 20


def metrics(*, as_markdown: bool) -> int:
    """Print every metric: as the documentation has it, or as a table that fits the terminal."""
    if as_markdown:
        write(sys.stdout, markdown())
        return _DONE
    width = terminal_size()[0]
    columns = (TextColumn("METRIC"), TextColumn("KIND"), TextColumn("UNIT"), TextColumn("IN PROMETHEUS", drops=True))
    rows = [(metric.name, metric.kind, metric.unit, prometheus_name(metric)) for metric in METRICS]
    heading, *lines = table(columns, rows, width, stdout_paint())
    write(sys.stdout, f"{heading}\n")
    for metric, line in zip(METRICS, lines, strict=True):
        below = [metric.description, attributes_text(metric.attributes)]
        if prometheus_name(metric) not in line:  # too narrow for that column
            below.insert(0, prometheus_name(metric))
        wrapped = (
            part
            for text in below
            for part in textwrap.wrap(text, max(width, _NARROWEST), initial_indent="    ", subsequent_indent="      ")
        )
        write(sys.stdout, "\n".join([line, *wrapped]) + "\n")
    return _DONE
