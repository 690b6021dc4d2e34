"""Names and labels in Prometheus's text formats: the same whether it scrapes the agent or a Collector.

The rules for names are those of ``prometheus/otlptranslator`` v1.0 (``metric_namer.go``, ``label_namer.go``) with
suffixes and underscores, which is what the prometheus exporter of a Collector v0.159 does by default
(``prometheusexporter``, ``collector.go``: ``configureMetricNamer``). Only the units and characters of our catalogue are
covered; a test pins the result for each of its names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from otel_gpu.bounded_io import printable
from otel_gpu.metrics.catalogue import Kind, Metric
from otel_gpu.metrics.labels import AttributeValue

_UNITS: Final = {"By": "bytes", "J": "joules", "W": "watts", "Cel": "celsius", "s": "seconds", "1": ""}


def prometheus_name(metric: Metric) -> str:
    """The metric's name in Prometheus: its unit spelt out, ``_total`` on counters, ``_ratio`` on gauges of unit 1."""
    tokens = re.findall(r"[a-zA-Z0-9:]+", metric.name)
    # A unit in braces is an annotation, and adds no suffix.
    unit = "" if "{" in metric.unit else _UNITS[metric.unit]
    if unit and unit not in tokens:
        tokens.append(unit)
    if metric.kind is Kind.COUNTER:
        tokens.append("total")
    # Of unit 1 only gauges are ratios: an updowncounter of unit 1 counts states that are true.
    if metric.unit == "1" and metric.kind is Kind.GAUGE:
        tokens.append("ratio")
    return "_".join(tokens)


def label_name(key: str) -> str:
    """An attribute's name in Prometheus."""
    name = key.replace(".", "_")
    if name.isascii() and name.isidentifier():  # nearly all, six times as fast as the expression
        return name
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def labels_text(labels: Iterable[tuple[str, AttributeValue]]) -> str:
    """The text between the braces of a series."""
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in labels])


def _escaped(value: AttributeValue) -> str:
    if isinstance(value, str):
        # A terminal acts on control characters, as with curl. A line break is escaped, so that it does nothing.
        text = value if value.isprintable() else "\n".join(map(printable, value.split("\n")))
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def help_text(text: str) -> str:
    """The text after ``# HELP`` and the name."""
    return text.replace("\\", r"\\").replace("\n", r"\n")
