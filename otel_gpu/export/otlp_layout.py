"""Where everything stands in OTLP requests. From cycle to cycle only times and values change, and take as much room.

A metric whose series are those of the last time is written by putting its values between the bytes that stand around
them. One that gained or lost a series is laid out anew, and the others are not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import is_
from typing import NamedTuple

from otel_gpu.export.metrics_data import ResourceKey
from otel_gpu.export.otlp_messages import (
    FIRST,
    SECOND,
    all_packed,
    around_points,
    heading_of,
    length,
    own_attributes,
    packed,
    packed_bytes,
    resource_of,
    scope_of,
)
from otel_gpu.metrics.catalogue import Kind, Metric
from otel_gpu.metrics.collection import Collection, Family, Resources
from otel_gpu.metrics.identity import WorkloadIdentity
from otel_gpu.metrics.tags import Attributes


@dataclass(slots=True, eq=False)
class _Owner:
    """A Resource, and what has been written of it. Workloads with the same attributes have the same."""

    key: ResourceKey
    data: bytes
    written: list[bytes] = field(default_factory=list)
    size_bytes: int = 0


class _Part(NamedTuple):
    """One Resource's points of a metric: what stands before each, whose number it is, and what stands at the end."""

    owner: _Owner
    before: tuple[bytes, ...]
    numbers: tuple[int, ...]
    end: bytes
    size_bytes: int


class _Plan(NamedTuple):
    """A metric laid out, and what of. All of it is held on to, so that nothing else can be at one of the addresses."""

    attributes: list[Attributes]
    workloads: list[WorkloadIdentity | None]
    has_start: list[bool]
    encoded: list[bytes]
    parts: list[_Part]

    def is_of(self, attributes: list[Attributes], workloads: list[WorkloadIdentity | None], has: list[bool]) -> bool:
        """Whether these are its series still."""
        return (
            len(attributes) == len(self.attributes)
            and all(map(is_, attributes, self.attributes))
            and all(map(is_, workloads, self.workloads))
            and has == self.has_start
        )


class RequestLayout:
    """Writes collections, cumulative ones, into requests of at most ``largest_bytes``."""

    def __init__(self, resources: Resources, largest_bytes: int) -> None:
        self._of = resources
        self._largest_bytes = largest_bytes
        self._scope = scope_of()
        self._headings: dict[str, bytes] = {}
        self._plans: dict[str, _Plan] = {}
        self._owners: dict[int, tuple[WorkloadIdentity | None, _Owner]] = {}
        self._by_key: dict[ResourceKey, _Owner] = {}

    def requests(self, collection: Collection) -> list[bytes] | None:
        """The collection's requests, the host's own Resource first; ``None`` if a Resource is too large for one."""
        plans, self._plans = self._plans, {}
        for family in collection.families:
            name = family.metric.name
            self._plans[name] = self._write(family, collection.time_ns, plans.get(name))
        here = {id(workload) for plan in self._plans.values() for workload in plan.workloads}
        self._owners = {address: known for address, known in self._owners.items() if address in here}
        self._by_key = {owner.key: owner for _, owner in self._owners.values()}
        host = self._owners.get(id(None))
        first = None if host is None else host[1]
        found = self._cut(sorted(self._by_key.values(), key=lambda owner: (owner is not first, owner.key)))
        for owner in self._by_key.values():
            owner.written, owner.size_bytes = [], 0
        return found

    # -- metrics --------------------------------------------------------------------

    def _write(self, family: Family, time_ns: int, plan: _Plan | None) -> _Plan:
        points, sums = family.points, family.metric.kind is not Kind.GAUGE
        attributes, workloads = [point[1] for point in points], [point[2] for point in points]
        has_start = [sums and bool(point[3]) for point in points]
        if plan is None or not plan.is_of(attributes, workloads, has_start):
            encoded = {} if plan is None else dict(zip(map(id, plan.attributes), plan.encoded, strict=True))
            kept = [encoded.get(id(each)) or own_attributes(each) for each in attributes]
            parts = self._parts(family.metric, workloads, has_start, kept)
            plan = _Plan(attributes, workloads, has_start, kept, parts)
        if sums:
            figures = [packed(value, time_ns, start_ns) for value, _, _, start_ns in points]
        else:
            figures = all_packed([point[0] for point in points], time_ns)
        for owner, before, numbers, end, size_bytes in plan.parts:
            written = owner.written
            for constant, number in zip(before, numbers, strict=True):
                written.append(constant)
                written.append(figures[number])
            written.append(end)
            owner.size_bytes += size_bytes
        return plan

    def _parts(
        self, metric: Metric, workloads: list[WorkloadIdentity | None], has_start: list[bool], encoded: list[bytes]
    ) -> list[_Part]:
        by_owner: dict[int, tuple[_Owner, list[int]]] = {}
        for number, workload in enumerate(workloads):
            owner = self._owner(workload)
            by_owner.setdefault(id(owner), (owner, []))[1].append(number)
        return [self._part(metric, owner, numbers, has_start, encoded) for owner, numbers in by_owner.values()]

    def _part(
        self, metric: Metric, owner: _Owner, numbers: list[int], has_start: list[bool], encoded: list[bytes]
    ) -> _Part:
        heads, size_bytes = [], 0
        for number in numbers:
            inner_bytes = packed_bytes(has_start[number]) + len(encoded[number])
            heads.append(bytes((FIRST,)) + length(inner_bytes))
            size_bytes += len(heads[-1]) + inner_bytes
        heading = self._headings.get(metric.name)
        if heading is None:
            heading = self._headings[metric.name] = heading_of(metric)
        begin, tail = around_points(metric, heading, size_bytes, deltas=False)
        before = [begin + heads[0]]
        before += [encoded[last] + head for last, head in zip(numbers, heads[1:], strict=False)]
        return _Part(
            owner, tuple(before), tuple(numbers), encoded[numbers[-1]] + tail, len(begin) + size_bytes + len(tail)
        )

    def _owner(self, workload: WorkloadIdentity | None) -> _Owner:
        found = self._owners.get(id(workload))
        if found is None:
            key = tuple(sorted(self._of.of(workload).items()))
            owner = self._by_key.get(key)
            if owner is None:
                owner = self._by_key[key] = _Owner(key, resource_of(dict(key)))
            found = self._owners[id(workload)] = workload, owner
        return found[1]

    # -- requests -------------------------------------------------------------------

    def _cut(self, owners: list[_Owner]) -> list[bytes] | None:
        requests: list[bytes] = []
        pieces: list[bytes] = []
        size_bytes = 0
        for owner in owners:
            scope_bytes = len(self._scope) + owner.size_bytes
            inner = bytes((SECOND,)) + length(scope_bytes)
            outer = bytes((FIRST,)) + length(len(owner.data) + len(inner) + scope_bytes)
            added_bytes = len(outer) + len(owner.data) + len(inner) + scope_bytes
            if added_bytes > self._largest_bytes:
                return None
            if size_bytes + added_bytes > self._largest_bytes:
                requests.append(b"".join(pieces))
                pieces, size_bytes = [], 0
            pieces += (outer, owner.data, inner, self._scope)
            pieces += owner.written
            size_bytes += added_bytes
        if pieces:
            requests.append(b"".join(pieces))
        return requests
