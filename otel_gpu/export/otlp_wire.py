"""Collections as OTLP's protobuf, written straight: what did not change since the last one is not made again.

OpenTelemetry's encoder makes an object of every attribute of every point, every time. Here the bytes of a point's
attributes, of a metric's heading and of a Resource are kept while they are told of; a cycle writes times and values.
The messages are those of ``opentelemetry/proto/metrics/v1/metrics.proto``, which is stable; a test compares them with
what the official encoder makes of the same collection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from otel_gpu.export.deltas import Deltas, SeriesKey, Told
from otel_gpu.export.metrics_data import LARGEST_REQUEST_BYTES, Batch, ResourceKey
from otel_gpu.export.otlp_layout import RequestLayout
from otel_gpu.export.otlp_messages import (
    FIRST,
    SECOND,
    around_points,
    field_of,
    heading_of,
    own_attributes,
    packed,
    resource_of,
    scope_of,
)
from otel_gpu.metrics.catalogue import Kind, Metric
from otel_gpu.metrics.collection import Collection, MetricBlock, Resources
from otel_gpu.metrics.identity import WorkloadIdentity
from otel_gpu.metrics.tags import Attributes

_HEADINGS_BYTES: Final = 32
"""What lengths and tags around a metric or a Resource take at most."""


class _Kept(NamedTuple):
    """Bytes, and what they were made of: while that is held, nothing else can be at its address."""

    source: Attributes
    data: bytes


@dataclass(slots=True)
class _Part:
    """The points that one Resource has of one metric, as they will stand in a request.

    ``told`` is what will have been told of their counters, where deltas are.
    """

    metric: Metric
    points: list[bytes] = field(default_factory=list)
    told: list[tuple[SeriesKey, Told]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Owner:
    """A Resource, with its parts of the collection under way. Workloads with the same attributes have the same."""

    key: ResourceKey
    data: bytes
    parts: list[_Part] = field(default_factory=list)


class _Known(NamedTuple):
    """Whose Resource that of a workload is; held on to as ``_Kept`` is."""

    source: WorkloadIdentity | None
    owner: _Owner


class WireEncoder:
    """Makes requests of collections for one receiver; with ``deltas``, what was added to counters."""

    def __init__(
        self, resources: Resources, *, deltas: Deltas | None = None, largest_bytes: int = LARGEST_REQUEST_BYTES
    ) -> None:
        self._of = resources
        self._deltas = deltas
        self._largest_bytes = largest_bytes
        self._scope = scope_of()
        self._headings: dict[str, bytes] = {}
        self._attributes: dict[int, _Kept] = {}
        self._known: dict[int, _Known] = {}
        self._owners: dict[ResourceKey, _Owner] = {}
        self._layout = RequestLayout(resources, largest_bytes) if deltas is None else None

    def batches(self, collection: Collection) -> Iterator[Batch[bytes]]:
        """The collection's requests, the host's own Resource first; each Resource is in a request once."""
        laid_out = None if self._layout is None else self._layout.requests(collection)
        if laid_out is not None:
            yield from map(Batch, laid_out)
            return
        if self._deltas is not None:
            self._deltas.take_up()
        owners = self._gathered(collection)
        if self._deltas is not None:
            told = (key for owner in owners for part in owner.parts for key, _ in part.told)
            self._deltas.seen(told, collection.time_ns)
        request = _Request()
        for owner in owners:
            parts, owner.parts = owner.parts, []
            for part in parts:
                yield from self._add(request, owner, part)
        if request.owners:
            yield self._sealed(request)

    def taken(self, batch: Batch[bytes]) -> None:
        """The receiver has this one."""
        if self._deltas is not None:
            self._deltas.taken(batch.told)

    # -- points ---------------------------------------------------------------------

    def _gathered(self, collection: Collection) -> list[_Owner]:
        """Every Resource with its points, by metric; what is no longer told of is forgotten."""
        before, self._attributes = self._attributes, {}
        known, self._known = self._known, {}
        for family in collection.blocks:
            self._gather(family, collection.time_ns, before, known)
        owners = {each.owner.key: each.owner for each in self._known.values()}
        self._owners = owners
        host = self._known.get(id(None))
        return sorted(owners.values(), key=lambda owner: (host is None or owner is not host.owner, owner.key))

    def _gather(
        self, family: MetricBlock, time_ns: int, before: Mapping[int, _Kept], known: Mapping[int, _Known]
    ) -> None:
        """The innermost loop: everything that can be is a name of its own."""
        metric, kept_now = family.metric, self._attributes
        has_start = metric.kind is not Kind.GAUGE
        deltas = self._deltas if metric.kind is Kind.COUNTER else None
        parts: dict[int, _Part] = {}
        for point in family.points:
            value, attributes, workload, start_ns = point
            address = id(attributes)
            kept = kept_now.get(address)
            if kept is None:
                kept = before.get(address) or _Kept(attributes, own_attributes(attributes))
                kept_now[address] = kept
            part = parts.get(id(workload))
            if part is None:
                part = parts[id(workload)] = self._part(metric, workload, known)
            if deltas is not None:
                delta = deltas.of(metric.name, point, time_ns)
                value, start_ns = delta.value, delta.start_ns
                part.told.append((delta.key, delta.told))
            figures = packed(value, time_ns, start_ns if has_start else None)
            part.points.append(field_of(FIRST, figures + kept.data))

    def _part(self, metric: Metric, workload: WorkloadIdentity | None, known: Mapping[int, _Known]) -> _Part:
        """Where a workload's points of a metric go."""
        address = id(workload)
        found = self._known.get(address)
        if found is None:
            found = self._known[address] = known.get(address) or self._know(workload)
        parts = found.owner.parts
        # Two workloads may have one Resource; their points of a metric stand together.
        if not parts or parts[-1].metric is not metric:
            parts.append(_Part(metric))
        return parts[-1]

    def _know(self, workload: WorkloadIdentity | None) -> _Known:
        key = tuple(sorted(self._of.of(workload).items()))
        owner = self._owners.get(key)
        if owner is None:
            owner = self._owners[key] = _Owner(key, resource_of(dict(key)))
        return _Known(workload, owner)

    # -- requests -------------------------------------------------------------------

    def _add(self, request: _Request, owner: _Owner, part: _Part) -> Iterator[Batch[bytes]]:
        """Put a part into the request; whatever becomes too large is handed on first."""
        heading_bytes = len(self._heading(part.metric)) + _HEADINGS_BYTES
        owner_bytes = len(owner.data) + len(self._scope) + _HEADINGS_BYTES
        size_bytes = heading_bytes + sum(map(len, part.points)) + (0 if request.has(owner) else owner_bytes)
        if request.size_bytes + size_bytes <= self._largest_bytes:
            request.add(owner, part, size_bytes)
            return
        piece = _Part(part.metric)
        for number, point in enumerate(part.points):
            size_bytes = len(point) + (0 if piece.points else heading_bytes)
            size_bytes += 0 if request.has(owner) else owner_bytes
            if request.owners and request.size_bytes + size_bytes > self._largest_bytes:
                yield self._sealed(request)
                piece = _Part(part.metric)
                size_bytes = len(point) + heading_bytes + owner_bytes
            if not piece.points:
                request.add(owner, piece, 0)
            piece.points.append(point)
            piece.told += part.told[number : number + 1]
            request.size_bytes += size_bytes

    def _sealed(self, request: _Request) -> Batch[bytes]:
        """The request as it is, which begins anew."""
        written = []
        told: dict[SeriesKey, Told] = {}
        for owner, parts in request.owners:
            metrics = b"".join([self._metric(part) for part in parts])
            written.append(field_of(FIRST, owner.data + field_of(SECOND, self._scope + metrics)))
            for part in parts:
                told.update(part.told)
        request.clear()
        return Batch(b"".join(written), told)

    def _metric(self, part: _Part) -> bytes:
        points = b"".join(part.points)
        before, after = around_points(
            part.metric, self._heading(part.metric), len(points), deltas=self._deltas is not None
        )
        return before + points + after

    def _heading(self, metric: Metric) -> bytes:
        heading = self._headings.get(metric.name)
        if heading is None:
            heading = self._headings[metric.name] = heading_of(metric)
        return heading


@dataclass(slots=True)
class _Request:
    """What a request has so far. Its size is never less than what it will take."""

    owners: list[tuple[_Owner, list[_Part]]] = field(default_factory=list)
    size_bytes: int = 0

    def has(self, owner: _Owner) -> bool:
        """Whether this Resource, of which all points come together, is in it."""
        return bool(self.owners) and self.owners[-1][0] is owner

    def add(self, owner: _Owner, part: _Part, size_bytes: int) -> None:
        """Another part, of this size with all around it."""
        if not self.has(owner):
            self.owners.append((owner, []))
        self.owners[-1][1].append(part)
        self.size_bytes += size_bytes

    def clear(self) -> None:
        """Begin anew."""
        self.owners, self.size_bytes = [], 0
