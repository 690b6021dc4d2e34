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
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import is_
from typing import Final, NamedTuple

from otel_gpu.metrics.catalogue import Kind, Level, Metric
from otel_gpu.metrics.collection import Collection, Family, Resources
from otel_gpu.metrics.exposition_text import help_text, labels_text
from otel_gpu.metrics.identity import IDENTITY_KEYS, WorkloadIdentity
from otel_gpu.metrics.names import label_name, prometheus_name
from otel_gpu.metrics.series import Point
from otel_gpu.metrics.tags import Attributes

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


class _Form(NamedTuple):
    """What all series of a metric have in common."""

    name: str
    keys: tuple[str, ...]
    names: tuple[str, ...]
    kind: _Kind


class _Lines(NamedTuple):
    """The series of a metric as they were last written, but for their values, and what they were written of.

    ``heads`` are name and labels in two parts: those of a workload, which are long, are one text for all its series.
    They are equal where the same series stands twice; then ``distinct`` is false, and only the last one counts.
    """

    attributes: list[Attributes]
    workloads: list[WorkloadIdentity | None]
    heads: list[tuple[str, str]]
    distinct: bool

    def is_of(self, attributes: list[Attributes], workloads: list[WorkloadIdentity | None]) -> bool:
        """Whether it was written of the same objects."""
        return (
            len(attributes) == len(self.attributes)
            and all(map(is_, attributes, self.attributes))
            and all(map(is_, workloads, self.workloads))
        )

    def addresses(self) -> Iterable[tuple[int, int]]:
        """What its points are known by. All of it is held on to, so that nothing else can be at one of them."""
        return zip(map(id, self.attributes), map(id, self.workloads), strict=True)


class PrometheusText:
    """Renders collections of one host. Any thread may ask; only labels of the last rendering are kept."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._resource_names = frozenset(label for label, _ in _joined({**resources.shared, **resources.agent}))
        self._last: dict[str, _Lines] = {}
        self._others: dict[tuple[_Kind, int], tuple[WorkloadIdentity | None, str]] = {}
        self._forms: dict[str, _Form] = {}
        self._heads = {exposition: dict[str, str]() for exposition in Exposition}
        self._turn = threading.Lock()

    def render(self, collection: Collection, exposition: Exposition) -> bytes:
        """The collection in a format. A point that is no number, and all but the last of a series, are left out."""
        with self._turn:
            last, self._last = self._last, {}
            heads = self._heads[exposition]
            # Each family by itself: a large host's text should not be there twice, as text and as bytes.
            parts = ["\n".join(self._target_info(exposition)).encode()]
            for family in collection.families:
                name = family.metric.name
                if name not in heads:
                    heads[name] = "\n".join(_head(family.metric, exposition))
                written = self._last[name] = self._lines(family, last.get(name))
                parts.append("\n".join([heads[name], *_samples(family, written)]).encode())
            if exposition is Exposition.OPENMETRICS:
                parts.append(b"# EOF")
            here = {id(workload) for each in self._last.values() for workload in each.workloads}
            self._others = {key: found for key, found in self._others.items() if key[1] in here}
            parts.append(b"")
            return b"\n".join(parts if parts[0] else parts[1:])

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

    def _lines(self, family: Family, last: _Lines | None) -> _Lines:
        """The series of this collection; the same as the last one's if nobody came or went."""
        attributes, workloads = [point[1] for point in family.points], [point[2] for point in family.points]
        if last is not None and last.is_of(attributes, workloads):
            return last
        before = {} if last is None else dict(zip(last.addresses(), last.heads, strict=True))
        heads = [
            before.get((id(point.attributes), id(point.workload))) or self._head(family.metric, point)
            for point in family.points
        ]
        return _Lines(attributes, workloads, heads, len(set(heads)) == len(heads))

    def _head(self, metric: Metric, point: Point) -> tuple[str, str]:
        """A series with its labels, and what stands before the value."""
        form = self._forms.get(metric.name)
        if form is None:
            names = tuple(label_name(key) for key in metric.keys)
            kind = _Kind(metric.level in (Level.WORKLOAD, Level.PROCESS), self._resource_names.intersection(names))
            form = self._forms[metric.name] = _Form(prometheus_name(metric), metric.keys, names, kind)
        labels = labels_text(zip(form.names, map(point.attributes.get, form.keys), strict=True))
        key = form.kind, id(point.workload)
        if key not in self._others:
            self._others[key] = point.workload, labels_text(self._beyond(point.workload, form.kind)) + "} "
        others = self._others[key][1]
        comma = "," if labels and not others.startswith("}") else ""
        return f"{form.name}{{{labels}{comma}", others

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


def _samples(family: Family, lines: _Lines) -> Iterable[str]:
    values = [point[0] for point in family.points]
    if lines.distinct and all(map(math.isfinite, values)):
        return [f"{head}{others}{value!r}" for (head, others), value in zip(lines.heads, values, strict=True)]
    series = {head: value for head, value in zip(lines.heads, values, strict=True) if math.isfinite(value)}
    log.debug("%s: %d points are no series of their own", family.metric.name, len(values) - len(series))
    return [f"{head}{others}{value!r}" for (head, others), value in series.items()]


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
