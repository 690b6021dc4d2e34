"""A collection as the SDK's ``MetricsData``, in requests that no receiver finds too large.

The SDK's exporters can split by points; that bounds no bytes, and says nothing of which part arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as SdkMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_gpu.export.deltas import Delta, Deltas, SeriesKey, Told
from otel_gpu.metrics.catalogue import Kind, Metric
from otel_gpu.metrics.collection import Collection, Resources
from otel_gpu.metrics.identity import WorkloadIdentity
from otel_gpu.metrics.series import Point
from otel_gpu.version import __version__

LARGEST_REQUEST_BYTES: Final = 2 << 20
"""Half of the 4 MiB that gRPC receives by default; over HTTP a Collector takes 20 MiB."""

UNKNOWN_START: Final = 0
"""OTLP's way to say that nobody can tell since when a sum counts (metrics.proto, ``start_time_unix_nano``)."""

_POINT_BYTES: Final = 64
_ATTRIBUTE_BYTES: Final = 24
_HEADING_BYTES: Final = 64
"""What protobuf adds at most to the texts: tags, lengths of up to five bytes, times, values."""

Data = TypeVar("Data")
ResourceKey: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Batch(Generic[Data]):
    """One request, encoded or not, and what will have been told of counters once it is taken."""

    data: Data
    told: Mapping[SeriesKey, Told] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A point on its way into a request. ``size_bytes`` is never less than what it will take."""

    resource: Resource
    metric: Metric
    point: NumberDataPoint
    size_bytes: int
    delta: Delta | None


class Batches(Protocol):
    """Makes requests of collections for one receiver."""

    def batches(self, collection: Collection) -> Iterator[Batch[Any]]:
        """The collection's requests."""

    def taken(self, batch: Batch[Any]) -> None:
        """The receiver has this one."""


class Encoder:
    """Makes requests of collections for one receiver; with ``deltas``, what was added to counters."""

    def __init__(
        self, resources: Resources, *, deltas: Deltas | None = None, largest_bytes: int | None = LARGEST_REQUEST_BYTES
    ) -> None:
        self._of = resources
        self._deltas = deltas
        self._largest_bytes = largest_bytes
        self._scope = InstrumentationScope("otel_gpu", __version__)
        self._resources: dict[ResourceKey, Resource] = {}

    def batches(self, collection: Collection) -> Iterator[Batch[MetricsData]]:
        """The collection's requests, the host's own Resource first; each Resource is in a request once."""
        if self._deltas is not None:
            self._deltas.take_up()
        entries = list(self._entries(collection))
        if self._deltas is not None:
            present = (entry.delta.key for entry in entries if entry.delta is not None)
            self._deltas.seen(present, collection.time_ns)
        for part in self._cut(entries):
            told = {entry.delta.key: entry.delta.told for entry in part if entry.delta is not None}
            yield Batch(MetricsData([self._resource_metrics(*each) for each in _by_resource(part)]), told)

    def taken(self, batch: Batch[MetricsData]) -> None:
        """The receiver has this one."""
        if self._deltas is not None:
            self._deltas.taken(batch.told)

    # -- points ---------------------------------------------------------------------

    def _entries(self, collection: Collection) -> Iterator[_Entry]:
        keys: dict[WorkloadIdentity | None, ResourceKey] = {}
        groups: dict[ResourceKey, list[tuple[Metric, Point]]] = {}
        for family in collection.blocks:
            for point in family.points:
                key = keys.get(point.workload)
                if key is None:
                    key = keys[point.workload] = self._key(point.workload)
                groups.setdefault(key, []).append((family.metric, point))
        # By attributes, not by identity: of two equal Resources in one request the SDK's encoder loses the first.
        self._resources = {key: self._resources.get(key) or Resource(dict(key)) for key in groups}
        host = keys.get(None)
        for key in sorted(groups, key=lambda key: (key != host, key)):
            for metric, point in groups[key]:
                yield self._entry(self._resources[key], metric, point, collection.time_ns)

    def _key(self, workload: WorkloadIdentity | None) -> ResourceKey:
        return tuple(sorted(self._of.of(workload).items()))

    def _entry(self, resource: Resource, metric: Metric, point: Point, time_ns: int) -> _Entry:
        delta = None
        value, start_ns = point.value, point.start_ns
        if metric.kind is Kind.COUNTER and self._deltas is not None:
            delta = self._deltas.of(metric.name, point, time_ns)
            value, start_ns = delta.value, delta.start_ns
        # The wall clock may have been set back since: a start after the end would be refused.
        start = UNKNOWN_START if start_ns is None else min(start_ns, time_ns)
        # A dictionary: the SDK copies attributes to print them, and a view of one cannot be copied.
        data = NumberDataPoint(dict(point.attributes), start, time_ns, value)
        return _Entry(resource, metric, data, _POINT_BYTES + _attributes_bytes(point.attributes), delta)

    # -- requests -------------------------------------------------------------------

    def _cut(self, entries: Iterable[_Entry]) -> Iterator[list[_Entry]]:
        part: list[_Entry] = []
        size_bytes = 0
        for entry in entries:
            added = entry.size_bytes + _headings_bytes(entry, part[-1] if part else None)
            if part and self._largest_bytes is not None and size_bytes + added > self._largest_bytes:
                yield part
                part, size_bytes = [], 0
                added = entry.size_bytes + _headings_bytes(entry, None)
            part.append(entry)
            size_bytes += added
        if part:
            yield part

    def _resource_metrics(self, resource: Resource, entries: Iterable[_Entry]) -> ResourceMetrics:
        metrics = [
            self._sdk_metric(metric, [entry.point for entry in same])
            for metric, same in groupby(entries, key=attrgetter("metric"))
        ]
        return ResourceMetrics(resource, [ScopeMetrics(self._scope, metrics, "")], "")

    def _sdk_metric(self, metric: Metric, points: list[NumberDataPoint]) -> SdkMetric:
        data: Gauge | Sum
        if metric.kind is Kind.GAUGE:
            data = Gauge(points)
        else:
            counter = metric.kind is Kind.COUNTER
            delta = counter and self._deltas is not None
            temporality = AggregationTemporality.DELTA if delta else AggregationTemporality.CUMULATIVE
            data = Sum(points, temporality, is_monotonic=counter)
        return SdkMetric(metric.name, metric.description, metric.unit, data)


def _by_resource(entries: Iterable[_Entry]) -> Iterator[tuple[Resource, list[_Entry]]]:
    for _, same in groupby(entries, key=lambda entry: id(entry.resource)):
        mine = list(same)
        yield mine[0].resource, mine


def _headings_bytes(entry: _Entry, before: _Entry | None) -> int:
    """What a point takes beside itself where it is the first of its Resource or of its metric."""
    if before is not None and before.resource is entry.resource and before.metric is entry.metric:
        return 0
    metric = entry.metric
    size_bytes = _HEADING_BYTES + _utf8_bytes(metric.name + metric.description + metric.unit)
    if before is None or before.resource is not entry.resource:
        size_bytes += 2 * _HEADING_BYTES + _attributes_bytes(dict(entry.resource.attributes or {}))
    return size_bytes


def _attributes_bytes(attributes: Mapping[str, object]) -> int:
    """More than all keys and values take. Printed at once they are measured in a fraction of the time."""
    return _ATTRIBUTE_BYTES * len(attributes) + _utf8_bytes(repr(attributes))


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)
