"""A collection as Prometheus reads it: text 0.0.4 and OpenMetrics 1.0.0.

Names and labels are those of a Collector's prometheus exporter with ``resource_to_telemetry_conversion`` (v0.159:
``prometheusexporter/collector.go``, ``pkg/resourcetotelemetry``), without ``job``, ``instance`` and ``otel_scope_*``:
who scrapes gives the first two, and a scope tells nobody anything. Two things are said otherwise and mean the same:

* Labels that are not known are there and empty, so that all series of a metric have the same ones. To Prometheus a
  label that is empty is one that is absent; whoever compares the two routes leaves empty ones out on both.
* The Collector lets a Resource's attribute replace a point's of the same name, which would make one series of many.
  Here the point's stands.

There are no timestamps, for with them Prometheus would show what has ended for five minutes more; and no ``_created``:
to a Prometheus with default settings each is one more series, and a Collector's exporter has none of them either.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from otel_gpu.metrics.catalogue import Kind, Level, Metric
from otel_gpu.metrics.collection import Collection, Family, Resources
from otel_gpu.metrics.exposition_text import LabelValue, help_text, labels_text
from otel_gpu.metrics.identity import IDENTITY_KEYS, WorkloadIdentity
from otel_gpu.metrics.names import label_name, prometheus_name

log = logging.getLogger(__name__)


class Exposition(Enum):
    """A format that scrapers know; the value is its content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


_TARGET: Final = ("service.name", "service.namespace", "service.instance.id")
"""What a Collector makes ``job`` and ``instance`` of, and therefore leaves out of ``target_info``."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Families whose labels beyond the points' own are the same for the same workload."""

    of_workloads: bool
    taken: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Rendering:
    """Labels as text, ready to be written: of points by their keys and values, and of Resources.

    Those of workloads are found by ``id`` too, while the collection lives: a workload has many points, and is slow to
    hash.
    """

    own: dict[tuple[str, ...], dict[tuple[LabelValue, ...], str]] = field(default_factory=dict)
    others: dict[tuple[_Kind, WorkloadIdentity | None], str] = field(default_factory=dict)
    others_by_id: dict[_Kind, dict[int, str]] = field(default_factory=dict)


class PrometheusText:
    """Renders collections of one host. Any thread may ask; only labels of the last rendering are kept."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._resource_names = frozenset(label for label, _ in _joined({**resources.shared, **resources.agent}))
        self._last = _Rendering()

    def render(self, collection: Collection, exposition: Exposition) -> bytes:
        """The collection in a format. A point that is no number, and all but the last of a series, are left out."""
        last, now = self._last, _Rendering()
        lines = [*self._target_info(exposition)]
        for family in collection.families:
            lines += _head(family.metric, exposition)
            lines += self._samples(family, last, now)
        if exposition is Exposition.OPENMETRICS:
            lines.append("# EOF")
        now.others_by_id.clear()
        self._last = now
        lines.append("")
        return "\n".join(lines).encode()

    def _target_info(self, exposition: Exposition) -> Iterator[str]:
        """The host's Resource as a series, where the Collector has one: if it is known by service and instance."""
        attributes = self._resources.of(None)
        if not (attributes.get("service.name") and attributes.get("service.instance.id")):
            return
        name, type_ = ("target", "info") if exposition is Exposition.OPENMETRICS else ("target_info", "gauge")
        yield f"# HELP {name} Target metadata"
        yield f"# TYPE {name} {type_}"
        labels = _joined({key: value for key, value in attributes.items() if key not in _TARGET})
        yield f"target_info{{{labels_text(labels)}}} 1"

    def _samples(self, family: Family, last: _Rendering, now: _Rendering) -> Iterator[str]:
        metric, keys = family.metric, family.metric.keys
        names = [label_name(key) for key in keys]
        kind = _Kind(metric.level in (Level.WORKLOAD, Level.PROCESS), self._resource_names.intersection(names))
        own, own_before = now.own.setdefault(keys, {}), last.own.get(keys, {})
        others_by_id = now.others_by_id.setdefault(kind, {})
        series: dict[tuple[str, str], str] = {}
        for point in family.points:
            values = tuple(map(point.attributes.get, keys))
            labels = own.get(values)
            if labels is None:
                labels = own[values] = own_before.get(values) or labels_text(zip(names, values, strict=True))
            others = others_by_id.get(id(point.workload))
            if others is None:
                found = kind, point.workload
                others = now.others.get(found) or last.others.get(found)
                others = others or labels_text(self._beyond(point.workload, kind))
                others_by_id[id(point.workload)] = now.others[found] = others
            if math.isfinite(point.value):
                series[labels, others] = repr(point.value)
        if len(series) < len(family.points):
            log.debug("%s: %d points are no series of their own", metric.name, len(family.points) - len(series))
        name = prometheus_name(metric)
        for (labels, others), value in series.items():
            comma = "," if labels and others else ""
            yield f"{name}{{{labels}{comma}{others}}} {value}"

    def _beyond(self, workload: WorkloadIdentity | None, kind: _Kind) -> Iterator[tuple[str, str]]:
        """Labels that are not a point's own: who the workload is, and the other attributes of its Resource."""
        keys = (*IDENTITY_KEYS, *self._resources.extra_keys) if kind.of_workloads else ()
        empty = dict.fromkeys(keys, "")
        for label, value in _joined({**empty, **self._resources.of(workload)}):
            if label not in kind.taken:
                yield label, value


def render(collection: Collection, resources: Resources, exposition: Exposition) -> bytes:
    """One collection in a format."""
    return PrometheusText(resources).render(collection, exposition)


# ---------------------------------------------------------------------------- text


def _head(metric: Metric, exposition: Exposition) -> Iterator[str]:
    """What precedes a metric's series. An updowncounter may fall, so to Prometheus it is a gauge."""
    name = prometheus_name(metric)
    type_ = "counter" if metric.kind is Kind.COUNTER else "gauge"
    help_ = help_text(metric.description)
    if exposition is Exposition.OPENMETRICS:
        help_ = help_.replace('"', r"\"")
        # A counter's family is without _total, and a unit must be the end of its name.
        name = name.removesuffix("_total")
        unit = name.removeprefix(label_name(metric.name)).removeprefix("_")
        if unit and name.endswith(f"_{unit}"):
            yield f"# UNIT {name} {unit}"
    yield f"# HELP {name} {help_}"
    yield f"# TYPE {name} {type_}"


def _joined(attributes: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """A Resource's attributes as labels. Those with one name are joined, as OpenTelemetry's specification has it.

    A Resource may have attributes of any name. Left out are those that Prometheus keeps to itself (``__name__``).
    """
    labels: dict[str, list[tuple[str, str]]] = {}
    for key, value in attributes.items():
        label = label_name(key)
        if label[:1].isdigit():
            label = f"key_{label}"
        if label.strip("_") and not label.startswith("__"):
            labels.setdefault(label, []).append((key, value))
    return ((label, ";".join(value for _, value in sorted(found))) for label, found in labels.items())


# ---------------------------------------------------------------------------- negotiation


def choose(accept: str) -> Exposition:
    """The format that an Accept header (RFC 9110, 12.5.1) weighs highest; text where it names none that is here."""
    ranges = sorted((_range(part) for part in accept.lower().split(",")), key=lambda found: found[0], reverse=True)
    for weight, media, version in ranges:
        if weight <= 0:
            break
        if media == "application/openmetrics-text" and version in ("", "1.0.0"):
            return Exposition.OPENMETRICS
        if media in ("*/*", "text/*") or (media == "text/plain" and version in ("", "0.0.4")):
            return Exposition.TEXT
    return Exposition.TEXT


def _range(part: str) -> tuple[float, str, str]:
    """Weight, media type and version of a part of the header; a weight that is none counts as 0."""
    media, *rest = (word.strip() for word in part.split(";"))
    parameters: dict[str, str] = {}
    for word in rest:
        name, _, value = word.partition("=")
        parameters[name.strip()] = value.strip().strip('"')
    try:
        weight = float(parameters.get("q", "1"))
    except ValueError:
        weight = 0.0
    return (weight if 0 <= weight <= 1 else 0.0), media, parameters.get("version", "")
