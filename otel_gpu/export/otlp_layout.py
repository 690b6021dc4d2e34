"""Where everything stands in OTLP requests. From cycle to cycle only times and values change, and take as much room.

A metric whose series are those of the last time is written by putting its values between the bytes that stand around
them, and one whose values are the same too is not touched: the time is one piece, which all points share. Of a metric
that gained or lost a series, those Resources are laid out anew that did, and the others are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from otel_gpu.export.metrics_data import ResourceKey
from otel_gpu.export.otlp_messages import (
    FIRST,
    SECOND,
    all_packed,
    around_points,
    heading_of,
    length,
    own_attributes,
    point_head,
    resource_of,
    scope_of,
    time_of,
)
from otel_gpu.metrics.catalogue import Kind, Metric
from otel_gpu.metrics.collection import Collection, Family, Resources
from otel_gpu.metrics.identity import WorkloadIdentity
from otel_gpu.metrics.series import Series, departed
from otel_gpu.metrics.tags import Attributes

_Pieces: TypeAlias = list[bytes | bytearray]
_EACH: Final = 4
_VALUE: Final = 3
"""How many pieces a point has (what stands before the time, the time, the value, the attributes), and where the first
value stands: before it is the metric's heading."""


class _Part(NamedTuple):
    """One Resource's points of a metric: the pieces they are written in, whose numbers they are, and how long it is."""

    owner: _Owner
    pieces: _Pieces
    numbers: Sequence[int]
    size_bytes: int


@dataclass(slots=True, eq=False)
class _Owner:
    """A Resource with its parts, and what stands before them. Workloads with the same attributes have the same."""

    key: ResourceKey
    data: bytes
    parts: list[_Part] = field(default_factory=list)
    frame: bytes = b""
    size_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Plan:
    """A metric laid out, and the family last written there. Value number n goes to ``places[n]`` of ``lists[n]``.

    It is good for times from ``good_from_ns`` on: no point may start after its time.
    """

    family: Family
    parts: list[_Part]
    lists: list[_Pieces]
    places: list[int]
    good_from_ns: float

    def is_of(self, series: Series, time_ns: int) -> bool:
        """Whether these are its series still."""
        return self.family.series is series and self.good_from_ns <= time_ns

    def write(self, family: Family) -> None:
        """Put the values in their places."""
        figures = all_packed(family.values)
        for pieces, place, figure in zip(self.lists, self.places, figures, strict=True):
            pieces[place] = figure
        self.family = family


class RequestLayout:
    """Writes collections, cumulative ones, into requests of at most ``largest_bytes``."""

    def __init__(self, resources: Resources, largest_bytes: int) -> None:
        self._of = resources
        self._largest_bytes = largest_bytes
        self._scope = scope_of()
        self._headings: dict[str, bytes] = {}
        self._plans: dict[str, _Plan] = {}
        self._time = bytearray(time_of(0))
        # By address; what is there is held on to, so that nothing else can be.
        self._encoded: dict[int, tuple[Attributes, bytes]] = {}
        self._owners: dict[int, tuple[WorkloadIdentity | None, _Owner]] = {}
        self._by_key: dict[ResourceKey, _Owner] = {}
        self._arranged: list[_Plan] = []
        self._first: _Owner | None = None
        self._in_turn: list[_Owner] = []

    def requests(self, collection: Collection) -> list[bytes] | None:
        """The collection's requests, the host's own Resource first; ``None`` if a Resource is too large for one."""
        try:
            self._write(collection)
        except Exception:
            # What was laid out so far would be kept, and nobody would know whose it is.
            for kept in (self._plans, self._encoded, self._owners, self._by_key):
                kept.clear()
            raise
        if [*map(id, self._plans.values())] != [*map(id, self._arranged)]:
            self._arrange()
        return self._cut()

    # -- metrics --------------------------------------------------------------------

    def _write(self, collection: Collection) -> None:
        """Put times and values where they belong; what has no place is given one."""
        time_ns = collection.time_ns
        self._time[:] = time_of(time_ns)
        before, self._plans = self._plans, {}
        for family in collection.families:
            name = family.metric.name
            plan = before.get(name)
            if plan is None or not plan.is_of(family.series, time_ns):
                plan = self._laid_out(family, time_ns, plan)
                plan.write(family)
            elif plan.family is not family:
                plan.write(family)
            self._plans[name] = plan

    def _laid_out(self, family: Family, time_ns: int, last: _Plan | None) -> _Plan:
        series = family.series
        starts, good_from_ns = _starts(family, time_ns)
        known: Mapping[int, _Part] = {}
        if last is not None and max(good_from_ns, last.good_from_ns) <= time_ns:
            known = {id(part.owner): part for part in last.parts}
        plan = _Plan(family, [], [[]] * len(series), [0] * len(series), good_from_ns)
        for owner, numbers in self._by_owner(series):
            part = known.get(id(owner))
            if part is None or last is None or not _same(part.numbers, last.family.series, numbers, series):
                part = self._part(family.metric, owner, numbers, series, starts)
            else:
                part = _Part(owner, part.pieces, numbers, part.size_bytes)
            plan.parts.append(part)
            place = _VALUE
            for number in numbers:
                plan.lists[number], plan.places[number] = part.pieces, place
                place += _EACH
        return plan

    def _by_owner(self, series: Series) -> Iterable[tuple[_Owner, list[int]]]:
        """Whose the series are: each Resource with the numbers of its own."""
        found: dict[int, tuple[_Owner, list[int]]] = {}
        known = self._owners
        for number, workload in enumerate(series.workloads):
            owner = (known.get(id(workload)) or self._owner(workload))[1]
            mine = found.get(id(owner))
            if mine is None:
                found[id(owner)] = owner, [number]
            else:
                mine[1].append(number)
        return found.values()

    def _part(
        self, metric: Metric, owner: _Owner, numbers: list[int], series: Series, starts: Sequence[int | None]
    ) -> _Part:
        points: _Pieces = []
        size_bytes = 0
        for number in numbers:
            attributes = self._attributes(series.attributes[number])
            head, point_bytes = point_head(starts[number], len(attributes))
            points += (head, self._time, b"", attributes)
            size_bytes += point_bytes
        heading = self._headings.get(metric.name)
        if heading is None:
            heading = self._headings[metric.name] = heading_of(metric)
        begin, tail = around_points(metric, heading, size_bytes, deltas=False)
        return _Part(owner, [begin, *points, tail], numbers, len(begin) + size_bytes + len(tail))

    def _attributes(self, attributes: Attributes) -> bytes:
        """Attributes of a point, written once for all metrics that have them."""
        found = self._encoded.get(id(attributes))
        if found is None:
            found = self._encoded[id(attributes)] = attributes, own_attributes(attributes)
        return found[1]

    def _owner(self, workload: WorkloadIdentity | None) -> tuple[WorkloadIdentity | None, _Owner]:
        key = tuple(sorted(self._of.of(workload).items()))
        owner = self._by_key.get(key)
        if owner is None:
            owner = self._by_key[key] = _Owner(key, resource_of(dict(key)))
        made = self._owners[id(workload)] = workload, owner
        return made

    # -- requests -------------------------------------------------------------------

    def _arrange(self) -> None:
        """Give every Resource its parts, in the order of the metrics; who has none any more is forgotten."""
        self._forget()
        for owner in self._in_turn:
            owner.parts = []
        for plan in self._plans.values():
            for part in plan.parts:
                part.owner.parts.append(part)
        for owner in self._in_turn:
            self._frame(owner)
        self._arranged = [*self._plans.values()]

    def _forget(self) -> None:
        """Let go of those who are not told of any more, and put the others in their turn."""
        before = [plan.family.series for plan in self._arranged]
        gone = departed(before, [plan.family.series for plan in self._plans.values()])
        for address in gone.attributes:
            self._encoded.pop(address, None)
        for address in gone.workloads:
            self._owners.pop(address, None)
        self._by_key = {owner.key: owner for _, owner in self._owners.values()}
        host = self._owners.get(id(None))
        first = None if host is None else host[1]
        if first is not self._first or {*self._by_key.values()} != {*self._in_turn}:
            self._first = first
            self._in_turn = sorted(self._by_key.values(), key=lambda owner: (owner is not first, owner.key))

    def _frame(self, owner: _Owner) -> None:
        scope_bytes = len(self._scope) + sum([part.size_bytes for part in owner.parts])
        inner = bytes((SECOND,)) + length(scope_bytes)
        outer = bytes((FIRST,)) + length(len(owner.data) + len(inner) + scope_bytes)
        owner.frame = b"".join((outer, owner.data, inner, self._scope))
        owner.size_bytes = len(outer) + len(owner.data) + len(inner) + scope_bytes

    def _cut(self) -> list[bytes] | None:
        requests: list[bytes] = []
        written: list[bytes] = []
        size_bytes = 0
        for owner in self._in_turn:
            if owner.size_bytes > self._largest_bytes:
                return None
            if size_bytes + owner.size_bytes > self._largest_bytes:
                requests.append(b"".join(written))
                written, size_bytes = [], 0
            # Each by itself: to join thousands of pieces at once takes more room for the list of them than they have.
            written.append(b"".join([owner.frame, *chain.from_iterable([part.pieces for part in owner.parts])]))
            size_bytes += owner.size_bytes
        if written:
            requests.append(b"".join(written))
        return requests


def _starts(family: Family, time_ns: int) -> tuple[Sequence[int | None], float]:
    """Since when each series of a sum counts, where that is known, and from which time on that can be told.

    The wall clock may have been set back since: a start after the end would be refused. It is then told otherwise, and
    for this time only.
    """
    if family.metric.kind is Kind.GAUGE:
        return [None] * len(family.series), -math.inf
    latest_ns = max([start_ns or 0 for start_ns in family.series.starts], default=0)
    starts = [min(start_ns, time_ns) if start_ns else None for start_ns in family.series.starts]
    return starts, latest_ns if latest_ns <= time_ns else math.inf


def _same(these: Sequence[int], of_these: Series, those: Sequence[int], of_those: Series) -> bool:
    """Whether series of these numbers are those: the same objects, counted since the same time."""
    if len(these) != len(those):
        return False
    for this, that in zip(these, those, strict=True):
        if of_these.attributes[this] is not of_those.attributes[that] or of_these.starts[this] != of_those.starts[that]:
            return False
    return True
