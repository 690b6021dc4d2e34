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
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from otel_gpu.export.prometheus_lines import LINE_END, Lines
from otel_gpu.metrics.catalogue import Kind, Level, Metric
from otel_gpu.metrics.collection import Collection, MetricBlock, Resources
from otel_gpu.metrics.exposition_text import help_text, labels_text
from otel_gpu.metrics.identity import IDENTITY_KEYS, WorkloadIdentity
from otel_gpu.metrics.names import label_name, prometheus_name
from otel_gpu.metrics.series import departed
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


_Label: TypeAlias = tuple[Attributes | WorkloadIdentity | None, str]
_Labels: TypeAlias = dict[int, _Label]
"""Labels by the address of what they are of, which is held on to: nothing else can be there."""


class _Form(NamedTuple):
    """What all series of a metric have in common.

    Metrics with the same keys have the same ``labels`` of points, and those of one kind the same ``others``: those that
    stand alone, and those that follow.
    """

    begin: str
    keys: tuple[str, ...]
    names: tuple[str, ...]
    kind: _Kind
    labels: _Labels
    others: tuple[_Labels, _Labels]


class _Text(NamedTuple):
    """A family as it was written last: a part for each run of its lines, and which editions of them these are."""

    family: MetricBlock
    editions: tuple[object, ...]
    parts: tuple[bytes, ...]


_Written: TypeAlias = dict[str, _Text]
"""A rendering: the text of each family."""

_END: Final = b"# EOF\n"
"""What OpenMetrics ends with."""


class PrometheusText:
    """Renders collections of one host. Any thread may ask; only what was in the last rendering is kept.

    Of a family that is the same object as in the last rendering, the text of that is taken.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._resource_names = frozenset(label for label, _ in _joined({**resources.shared, **resources.agent}))
        self._last: dict[str, Lines] = {}
        self._labels: dict[tuple[str, ...], _Labels] = {}
        self._others: dict[_Kind, tuple[_Labels, _Labels]] = {}
        self._forms: dict[str, _Form] = {}
        self._heads = {exposition: dict[str, str]() for exposition in Exposition}
        self._written: dict[Exposition, _Written] = {exposition: {} for exposition in Exposition}
        self._targets = {each: "".join(f"{line}\n" for line in self._target_info(each)).encode() for each in Exposition}
        self._turn = threading.Lock()

    def render(self, collection: Collection, exposition: Exposition) -> bytes:
        """The collection in a format. A point that is no number, and all but the last of a series, are left out."""
        return b"".join(self.parts(collection, exposition))

    def parts(self, collection: Collection, exposition: Exposition) -> tuple[bytes, ...]:
        """The same in parts, of which those that say what they said in the last rendering are the same objects."""
        with self._turn:
            last, self._last = self._last, {}
            try:
                written = self._render(collection, exposition, last)
            except Exception:
                self._last = {}  # what lines say now, nobody would know
                raise
            finally:
                if [*map(id, last.values())] != [*map(id, self._last.values())]:
                    self._forget(last.values())
            self._written[exposition] = written
        end = _END if exposition is Exposition.OPENMETRICS else b""
        return self._targets[exposition], *chain.from_iterable([text.parts for text in written.values()]), end

    def _render(self, collection: Collection, exposition: Exposition, last: Mapping[str, Lines]) -> _Written:
        before, written = self._written[exposition], _Written()
        for family in collection.blocks:
            name = family.metric.name
            lines, known = last.get(name), before.get(name)
            if known is None or known.family is not family or lines is None:
                lines = self._lines(family, lines)
                known = self._text(family, lines, exposition, known)
            self._last[name] = lines
            written[name] = known
        return written

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

    def _lines(self, family: MetricBlock, last: Lines | None) -> Lines:
        """The series of this collection; the same as the last one's if nobody came or went."""
        series = family.cells.series
        if last is not None and last.series is series:
            return last
        form = self._form(family.metric)
        known, beside = form.labels, form.others
        labels = [(known.get(id(each)) or self._own(form, each))[1] for each in series.attributes]
        others = [
            (beside[own != ""].get(id(workload)) or self._beside(form, own, workload))[1]
            for own, workload in zip(labels, series.workloads, strict=True)
        ]
        return Lines(series, form.begin, labels, others)

    def _form(self, metric: Metric) -> _Form:
        form = self._forms.get(metric.name)
        if form is None:
            keys = metric.keys
            names = tuple(label_name(key) for key in keys)
            kind = _Kind(metric.level in (Level.WORKLOAD, Level.PROCESS), self._resource_names.intersection(names))
            begin = f"{LINE_END}{prometheus_name(metric)}{{"
            labels, others = self._labels.setdefault(keys, {}), self._others.setdefault(kind, ({}, {}))
            form = _Form(begin, keys, names, kind, labels, others)
            self._forms[metric.name] = form
        return form

    def _own(self, form: _Form, attributes: Attributes) -> _Label:
        """The labels of a point's own."""
        text = labels_text(zip(form.names, map(attributes.get, form.keys), strict=True))
        made = form.labels[id(attributes)] = attributes, text
        return made

    def _beside(self, form: _Form, own: str, workload: WorkloadIdentity | None) -> _Label:
        """The other labels, and what stands before the value."""
        text = labels_text(self._beyond(workload, form.kind))
        made = form.others[own != ""][id(workload)] = workload, f"{',' if own and text else ''}{text}}} "
        return made

    def _forget(self, last: Iterable[Lines]) -> None:
        """Let go of texts of those who were in the last rendering, and not in this one."""
        gone = departed([lines.series for lines in last], [lines.series for lines in self._last.values()])
        for labels in self._labels.values():
            _drop(labels, gone.attributes)
        for others in chain.from_iterable(self._others.values()):
            _drop(others, gone.workloads)

    def _text(self, family: MetricBlock, lines: Lines, exposition: Exposition, last: _Text | None) -> _Text:
        """A family, what precedes it included; of runs that say what they said, the parts that were written last."""
        heads, name = self._heads[exposition], family.metric.name
        if name not in heads:
            heads[name] = "\n".join(_head(family.metric, exposition))
        lines.write(family.cells.values)
        if lines.count < len(family.values):
            log.debug("%s: %d points are no series of their own", name, len(family.values) - lines.count)
        known = {} if last is None else dict(zip(last.editions, last.parts, strict=True))
        parts = [
            known[edition] if edition in known else lines.text(run, heads[name])
            for run, edition in enumerate(lines.editions)
        ]
        return _Text(family, tuple(lines.editions), tuple(parts))

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


def _drop(labels: _Labels, addresses: Iterable[int]) -> None:
    for address in addresses:
        labels.pop(address, None)


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
    return _known_choice(accept) if len(accept) <= _LONGEST_KNOWN else _choice(accept)


def _choice(accept: str) -> Exposition:
    ranges = sorted((_range(part) for part in accept.lower().split(",")), key=lambda found: found[0], reverse=True)
    for weight, media, version in ranges:
        if weight <= 0:
            break
        if media == "application/openmetrics-text" and version in ("", "1.0.0"):
            return Exposition.OPENMETRICS
        if media in ("*/*", "text/*") or (media == "text/plain" and version in ("", "0.0.4")):
            return Exposition.TEXT
    return Exposition.TEXT


_LONGEST_KNOWN: Final = 1024
_known_choice: Final = lru_cache(maxsize=8)(_choice)
"""A scraper sends the same in every scrape."""


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
