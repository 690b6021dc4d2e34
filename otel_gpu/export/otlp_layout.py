"""Where everything stands in OTLP requests. From cycle to cycle only times and values change, and take as much room.

A Resource is a list of pieces, which is kept: of a metric whose series are those of the last time, the values that
changed are put in their places. The time is one piece, which all points share. Who has no value for a while keeps the
place, which is empty then. Of a metric that gained or lost a series, those Resources are laid out anew that did, and
the others are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from otel_gpu.export.metrics_data import ResourceKey
from otel_gpu.export.otlp_messages import (
    FIRST,
    SECOND,
    around_points,
    double_figure,
    heading_of,
    length,
    own_attributes,
    point_head,
    resource_of,
    scope_of,
    time_of,
    whole_figure,
)
from otel_gpu.metrics.catalogue import Kind, Metric
from otel_gpu.metrics.collection import Collection, Family, Resources
from otel_gpu.metrics.identity import WorkloadIdentity
from otel_gpu.metrics.series import Cells, Series, departed
from otel_gpu.metrics.tags import Attributes

_Pieces: TypeAlias = list[bytes | bytearray]
_EACH: Final = 4
_VALUE: Final = 2
"""How many pieces a point has (what stands before the time, the time, the value, the attributes), and which of them is
the value."""

_NO_POINT: Final = (b"",) * _EACH


class _Around(NamedTuple):
    """What stands around the time and the value of a point, and how long all of it is."""

    head: bytes
    attributes: bytes
    size_bytes: int


@dataclass(slots=True, eq=False)
class _Part:
    """One Resource's points of a metric: whose numbers they are, and how long those are that have a value.

    It begins at ``first`` among the Resource's pieces, with the metric's heading; after the last point is its end. All
    of it takes ``size_bytes`` of what the Resource takes.
    """

    owner: _Owner
    numbers: Sequence[int]
    points: Sequence[_Around]
    first: int = 0
    points_bytes: int = 0
    size_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Owner:
    """A Resource, and the pieces it is written in. Workloads with the same attributes have the same."""

    key: ResourceKey
    data: bytes
    pieces: _Pieces = field(default_factory=list)
    parts_bytes: int = 0
    size_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Plan:
    """A metric laid out, and the family last written there. Value number n is of part ``of[n]``, which is in
    ``lists[n]``, and stands at ``places[n]`` there.

    It is good for times from ``good_from_ns`` on: no point may start after its time.
    """

    family: Family
    cells: Cells
    good_from_ns: float
    parts: list[_Part]
    of: list[_Part]
    lists: list[_Pieces]
    places: list[int]

    def is_of(self, cells: Cells, time_ns: int) -> bool:
        """Whether these are its series still."""
        return self.cells.series is cells.series and self.good_from_ns <= time_ns

    def rewrite(self, family: Family, cells: Cells, time: bytearray) -> list[_Part]:
        """Put the values that changed in their places; the parts in which somebody has one, or has none, since."""
        before, values, lists, places = self.cells.values, cells.values, self.lists, self.places
        others: list[_Part] = []
        for number in cells.changed(self.cells):
            value = values[number]
            if value is None or before[number] is None:
                others.append(self._put(number, value, time))
            else:
                figure = whole_figure(value) if isinstance(value, int) else double_figure(value)
                lists[number][places[number]] = figure
        self.family, self.cells = family, cells
        return others

    def fill(self, part: _Part, time: bytearray) -> None:
        """Give a part's points their places, and put there what there is."""
        part.points_bytes, place = 0, part.first + 1 + _VALUE
        for number in part.numbers:
            self.of[number], self.lists[number], self.places[number] = part, part.owner.pieces, place
            part.owner.pieces[place - _VALUE : place - _VALUE + _EACH] = _NO_POINT
            if self.cells.values[number] is not None:
                self._put(number, self.cells.values[number], time)
            place += _EACH

    def _put(self, number: int, value: float | None, time: bytearray) -> _Part:
        """A value where there was none, or none where there was one."""
        part, first = self.of[number], self.places[number] - _VALUE
        point, pieces = part.points[(first - part.first) // _EACH], self.lists[number]
        if value is None:
            pieces[first : first + _EACH] = _NO_POINT
            part.points_bytes -= point.size_bytes
        else:
            figure = whole_figure(value) if isinstance(value, int) else double_figure(value)
            pieces[first : first + _EACH] = point.head, time, figure, point.attributes
            part.points_bytes += point.size_bytes
        return part


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
        self._told: list[Series] = []
        self._first: _Owner | None = None
        self._in_turn: list[_Owner] = []

    def requests(self, collection: Collection) -> list[bytes] | None:
        """The collection's requests, the host's own Resource first; ``None`` if a Resource is too large for one."""
        try:
            self._write(collection)
        except Exception:
            # What was laid out so far would be kept, and nobody would know whose it is.
            for kept in (self._plans, self._encoded, self._owners, self._by_key, self._told, self._in_turn):
                kept.clear()
            raise
        return self._cut()

    # -- metrics --------------------------------------------------------------------

    def _write(self, collection: Collection) -> None:
        """Put times and values where they belong; what has no place is given one."""
        time_ns = collection.time_ns
        self._time[:] = time_of(time_ns)
        before, self._plans = self._plans, {}
        new: list[_Plan] = []
        broken: set[_Owner] = set()
        resized: set[_Owner] = set()
        for family in collection.families:
            name = family.metric.name
            plan = before.get(name)
            if plan is None or plan.family is not family or plan.good_from_ns > time_ns:
                cells = family.cells
                if plan is None or not plan.is_of(cells, time_ns):
                    plan = self._laid_out(family, cells, time_ns, plan, broken)
                    new.append(plan)
                else:
                    for part in {*plan.rewrite(family, cells, self._time)}:
                        self._enclose(family.metric, part)
                        resized.add(part.owner)
            self._plans[name] = plan
        if [*before] != [*self._plans]:  # metrics that nobody had, or that nobody has any more
            broken.update(part.owner for plan in (*before.values(), *new) for part in plan.parts)
        if new or broken:
            self._arrange(new, broken)
        for owner in resized | broken | {part.owner for plan in new for part in plan.parts}:
            self._frame(owner)

    def _laid_out(self, family: Family, cells: Cells, time_ns: int, last: _Plan | None, broken: set[_Owner]) -> _Plan:
        """Lay out a metric; those who gained or lost a series by it are ``broken``."""
        series = cells.series
        starts, good_from_ns = _starts(family.metric, series, time_ns)
        known: dict[_Owner, _Part] = {} if last is None else {part.owner: part for part in last.parts}
        keeps = last is not None and max(good_from_ns, last.good_from_ns) <= time_ns
        parts: list[_Part] = []
        for owner, numbers in self._by_owner(series):
            part = known.pop(owner, None)
            if part is None or last is None or not keeps or not _same(part.numbers, last.cells.series, numbers, series):
                part = _Part(owner, numbers, [self._around(series.attributes[n], starts[n]) for n in numbers])
                broken.add(owner)
            else:
                part.numbers = numbers
            parts.append(part)
        broken.update(known)
        size = len(series)
        return _Plan(family, cells, good_from_ns, parts, parts[:1] * size, [[]] * size, [0] * size)

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

    def _around(self, attributes: Attributes, start_ns: int | None) -> _Around:
        """A point; its attributes are written once for all metrics that have them."""
        found = self._encoded.get(id(attributes))
        if found is None:
            found = self._encoded[id(attributes)] = attributes, own_attributes(attributes)
        head, size_bytes = point_head(start_ns, len(found[1]))
        return _Around(head, found[1], size_bytes)

    def _owner(self, workload: WorkloadIdentity | None) -> tuple[WorkloadIdentity | None, _Owner]:
        key = tuple(sorted(self._of.of(workload).items()))
        owner = self._by_key.get(key)
        if owner is None:
            owner = self._by_key[key] = _Owner(key, resource_of(dict(key)))
        made = self._owners[id(workload)] = workload, owner
        return made

    def _enclose(self, metric: Metric, part: _Part) -> None:
        """Write what stands around a part's points: where there are none, nothing."""
        begin, tail = self._edges(metric, part.points_bytes) if part.points_bytes else (b"", b"")
        pieces = part.owner.pieces
        pieces[part.first], pieces[part.first + 1 + _EACH * len(part.points)] = begin, tail
        size_bytes = len(begin) + part.points_bytes + len(tail)
        part.owner.parts_bytes += size_bytes - part.size_bytes
        part.size_bytes = size_bytes

    def _edges(self, metric: Metric, points_bytes: int) -> tuple[bytes, bytes]:
        heading = self._headings.get(metric.name)
        if heading is None:
            heading = self._headings[metric.name] = heading_of(metric)
        return around_points(metric, heading, points_bytes, deltas=False)

    # -- requests -------------------------------------------------------------------

    def _arrange(self, new: Iterable[_Plan], broken: Set[_Owner]) -> None:
        """Give ``broken`` Resources their parts anew, in the order of the metrics; who has none any more is forgotten.

        Of a ``new`` plan all values are written, and of the others those of Resources that were.
        """
        self._forget()
        for owner in broken:
            owner.pieces[:], owner.parts_bytes = [b""], 0
        fresh = {id(plan) for plan in new}
        for plan in self._plans.values():
            for part in plan.parts:
                if part.owner in broken:
                    part.first, part.size_bytes = len(part.owner.pieces), 0
                    part.owner.pieces += [b""] * (1 + _EACH * len(part.points) + 1)
                elif id(plan) not in fresh:
                    continue
                plan.fill(part, self._time)
                self._enclose(plan.family.metric, part)

    def _forget(self) -> None:
        """Let go of those who are not told of any more, and put the others in their turn."""
        told = [plan.cells.series for plan in self._plans.values()]
        gone = departed(self._told, told)
        self._told = told
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
        """Write what stands before a Resource's parts; nothing where it has no points now."""
        owner.size_bytes, owner.pieces[0] = 0, b""
        if owner.parts_bytes:
            scope_bytes = len(self._scope) + owner.parts_bytes
            inner = bytes((SECOND,)) + length(scope_bytes)
            outer = bytes((FIRST,)) + length(len(owner.data) + len(inner) + scope_bytes)
            owner.pieces[0] = b"".join((outer, owner.data, inner, self._scope))
            owner.size_bytes = len(outer) + len(owner.data) + len(inner) + scope_bytes

    def _cut(self) -> list[bytes] | None:
        requests: list[bytes] = []
        written: list[bytes] = []
        size_bytes = 0
        for owner in self._in_turn:
            if owner.size_bytes > self._largest_bytes:
                return None
            if written and size_bytes + owner.size_bytes > self._largest_bytes:
                requests.append(b"".join(written))
                written, size_bytes = [], 0
            if owner.size_bytes:
                # Each by itself: to join thousands of pieces at once takes more room for their list than they have.
                written.append(b"".join(owner.pieces))
                size_bytes += owner.size_bytes
        if written:
            requests.append(b"".join(written))
        return requests


def _starts(metric: Metric, series: Series, time_ns: int) -> tuple[Sequence[int | None], float]:
    """Since when each series of a sum counts, where that is known, and from which time on that can be told.

    The wall clock may have been set back since: a start after the end would be refused. It is then told otherwise, and
    for this time only.
    """
    if metric.kind is Kind.GAUGE:
        return [None] * len(series), -math.inf
    latest_ns = max([start_ns or 0 for start_ns in series.starts], default=0)
    starts = [min(start_ns, time_ns) if start_ns else None for start_ns in series.starts]
    return starts, latest_ns if latest_ns <= time_ns else math.inf


def _same(these: Sequence[int], of_these: Series, those: Sequence[int], of_those: Series) -> bool:
    """Whether series of these numbers are those: the same objects, counted since the same time."""
    if len(these) != len(those):
        return False
    for this, that in zip(these, those, strict=True):
        if of_these.attributes[this] is not of_those.attributes[that] or of_these.starts[this] != of_those.starts[that]:
            return False
    return True
