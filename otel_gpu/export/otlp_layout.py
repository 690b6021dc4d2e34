"""Where everything stands in OTLP requests. From cycle to cycle only times and values change, and take as much room.

What was written of a Resource is kept in pieces (``otlp_runs``): of a metric whose series are those of the last time,
the values that changed are written over those before. Where somebody gains or loses a value, that metric of that
Resource is written anew; where a series comes or goes, those Resources are that gained or lost it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import compress
from operator import is_not
from typing import Final

from otel_gpu.export.metrics_data import ResourceKey
from otel_gpu.export.otlp_messages import FIRST, SECOND, length, resource_of, scope_of, time_of
from otel_gpu.export.otlp_runs import Owner, Part, Piece, Plan, Surroundings, unwritten
from otel_gpu.metrics.catalogue import Kind, Metric
from otel_gpu.metrics.collection import Collection, MetricBlock, Resources
from otel_gpu.metrics.identity import WorkloadIdentity
from otel_gpu.metrics.series import Cells, Series, departed

_RESOURCE, _SCOPE = bytes((FIRST,)), bytes((SECOND,))  # tags of a ResourceMetrics and its ScopeMetrics

_LOOSE_CYCLES: Final = 64
"""Metrics of which nobody of a Resource gained or lost a value for so long stand together with others again."""


class RequestLayout:
    """Writes collections, cumulative ones, into requests of at most ``largest_bytes``."""

    def __init__(self, resources: Resources, largest_bytes: int) -> None:
        self._of = resources
        self._largest_bytes = largest_bytes
        self._scope = scope_of()
        self._surroundings = Surroundings()
        self._families: tuple[MetricBlock, ...] = ()
        self._plans: dict[str, Plan] = {}
        self._in_order: list[Plan] = []
        self._good_from_ns = -math.inf
        self._cycle = 0
        # By address; what is there is held on to, so that nothing else can be.
        self._owners: dict[int, tuple[WorkloadIdentity | None, Owner]] = {}
        self._by_key: dict[ResourceKey, Owner] = {}
        self._told: list[Series] = []
        self._first: Owner | None = None
        self._in_turn: list[Owner] = []

    def requests(self, collection: Collection) -> list[bytes] | None:
        """The collection's requests, the host's own Resource first; ``None`` if a Resource is too large for one."""
        try:
            self._write(collection)
        except Exception:
            # What was laid out so far would be kept, and nobody would know whose it is.
            for kept in (self._plans, self._in_order, self._owners, self._by_key, self._told, self._in_turn):
                kept.clear()
            self._families = ()
            raise
        finally:
            self._surroundings.forget()
        return self._cut(time_of(collection.time_ns))

    # -- metrics --------------------------------------------------------------------

    def _write(self, collection: Collection) -> None:
        """Write values where they belong; what has no place is given one."""
        self._surroundings.time_ns = collection.time_ns
        new = self._new_of_same_series(collection)
        if new is None:
            changed, torn = self._lay_out(collection)
        else:
            changed, torn = set(), set()
            for plan, family in new:
                plan.rewrite(family, family.cells, changed)
        self._cycle += 1
        if self._cycle % _LOOSE_CYCLES == 0:
            torn |= self._fastened()
        self._write_anew(changed, torn)
        self._families = collection.blocks

    def _new_of_same_series(self, collection: Collection) -> list[tuple[Plan, MetricBlock]] | None:
        """Families that are new, with the plans they go into; ``None`` unless all series are those of the last time."""
        blocks, plans = collection.blocks, self._in_order
        if collection.time_ns < self._good_from_ns or len(blocks) != len(plans):
            return None
        numbers = compress(range(len(blocks)), map(is_not, blocks, self._families))
        new = [(plans[number], blocks[number]) for number in numbers]
        for plan, family in new:
            if family.metric is not plan.family.metric or family.cells.series is not plan.cells.series:
                return None
        return new

    def _lay_out(self, collection: Collection) -> tuple[set[Part], set[Owner]]:
        """Give metrics their plans: the parts in which somebody has a value, or has none, since, and the Resources
        that are to be written anew as a whole."""
        before, self._plans = self._plans, {}
        changed: set[Part] = set()
        broken: set[Owner] = set()
        is_new = False
        for family in collection.blocks:
            name, cells = family.metric.name, family.cells
            plan = before.get(name)
            if plan is None or not plan.is_of(cells, collection.time_ns):
                plan, is_new = self._laid_out(family, cells, collection.time_ns, plan, broken), True
            plan.rewrite(family, cells, changed)
            self._plans[name] = plan
        if [*before] != [*self._plans]:  # metrics that nobody had, or that nobody has any more
            plans = (*before.values(), *self._plans.values())
            broken.update(part.owner for plan in plans for part in plan.parts)
        self._in_order = [*self._plans.values()]
        self._good_from_ns = max([plan.good_from_ns for plan in self._in_order], default=-math.inf)
        if is_new or broken:
            self._forget()
            self._arrange(broken)
        return changed, broken

    def _laid_out(self, family: MetricBlock, cells: Cells, time_ns: int, last: Plan | None, broken: set[Owner]) -> Plan:
        """Lay out a metric; those who gained or lost a series by it are ``broken``, and nothing of them is written yet.

        Of the others, pieces and values are those of the last time.
        """
        series = cells.series
        good_from_ns = _good_from_ns(family.metric, series, time_ns)
        keeps = last is not None and max(good_from_ns, last.good_from_ns) <= time_ns
        known: dict[Owner, Part] = {} if last is None else {part.owner: part for part in last.parts}
        values = list(cells.values)
        plan = Plan(family, cells, good_from_ns, [], [], unwritten(len(series)))
        for owner, numbers in self._by_owner(series):
            part = known.pop(owner, None)
            if part is None or last is None or not keeps or not _same(part.numbers, last.cells.series, numbers, series):
                part = Part(owner, plan, numbers)
                broken.add(owner)
            else:
                for now, then in zip(numbers, part.numbers, strict=True):
                    plan.pieces[now], values[now] = last.pieces[then], last.cells.values[then]
                part.plan, part.numbers = plan, numbers
            plan.parts.append(part)
        broken.update(known)
        plan.cells = Cells(series, tuple(values))
        plan.of = plan.parts[:1] * len(series)
        for part in plan.parts:
            for number in part.numbers:
                plan.of[number] = part
        return plan

    def _by_owner(self, series: Series) -> Iterable[tuple[Owner, list[int]]]:
        """Whose the series are: each Resource with the numbers of its own."""
        found: dict[int, tuple[Owner, list[int]]] = {}
        known = self._owners
        for number, workload in enumerate(series.workloads):
            owner = (known.get(id(workload)) or self._owner(workload))[1]
            mine = found.get(id(owner))
            if mine is None:
                found[id(owner)] = owner, [number]
            else:
                mine[1].append(number)
        return found.values()

    def _owner(self, workload: WorkloadIdentity | None) -> tuple[WorkloadIdentity | None, Owner]:
        key = tuple(sorted(self._of.of(workload).items()))
        owner = self._by_key.get(key)
        if owner is None:
            owner = self._by_key[key] = Owner(key, resource_of(dict(key)))
        made = self._owners[id(workload)] = workload, owner
        return made

    # -- Resources ------------------------------------------------------------------

    def _forget(self) -> None:
        """Let go of those who are not told of any more, and put the others in their turn."""
        told = [plan.cells.series for plan in self._in_order]
        gone = departed(self._told, told)
        self._told = told
        for address in gone.workloads:
            self._owners.pop(address, None)
        self._by_key = {owner.key: owner for _, owner in self._owners.values()}
        host = self._owners.get(id(None))
        first = None if host is None else host[1]
        if first is not self._first or {*self._by_key.values()} != {*self._in_turn}:
            self._first = first
            self._in_turn = sorted(self._by_key.values(), key=lambda owner: (owner is not first, owner.key))

    def _arrange(self, broken: set[Owner]) -> None:
        """Give ``broken`` Resources their parts anew, in the order of the metrics."""
        for owner in broken:
            owner.parts.clear()
        for plan in self._in_order:
            for part in plan.parts:
                if part.owner in broken:
                    part.owner.parts.append(part)

    def _fastened(self) -> set[Owner]:
        """Let parts that have not changed for long stand with their neighbours: the Resources of those that did not."""
        torn: set[Owner] = set()
        for plan in self._in_order:
            for part in plan.parts:
                if part.is_loose and part.changed_cycle <= self._cycle - _LOOSE_CYCLES:
                    part.is_loose, part.bundle = False, None
                    torn.add(part.owner)
        return torn

    def _write_anew(self, changed: set[Part], torn: set[Owner]) -> None:
        """Write parts, and Resources as a whole; so are those of parts that were not loose until now."""
        for part in changed:
            part.changed_cycle = self._cycle
            if not part.is_loose:
                part.is_loose = True
                torn.add(part.owner)
        for owner in torn:
            owner.stack(self._surroundings)
            self._frame(owner)
        bundles = {part.bundle for part in changed if part.bundle is not None and part.owner not in torn}
        for bundle in bundles:
            bundle.take_form(self._surroundings)
        for owner in {bundle.owner for bundle in bundles}:
            self._frame(owner)

    def _frame(self, owner: Owner) -> None:
        """Write what stands before a Resource's parts; nothing where it has no points now."""
        owner.size_bytes, owner.frame = 0, b""
        if owner.parts_bytes:
            inner = _SCOPE + length(len(self._scope) + owner.parts_bytes) + self._scope
            resource_bytes = len(owner.data) + len(inner) + owner.parts_bytes
            owner.frame = _RESOURCE + length(resource_bytes) + owner.data + inner
            owner.size_bytes = len(owner.frame) + owner.parts_bytes

    # -- requests -------------------------------------------------------------------

    def _cut(self, time: bytes) -> list[bytes] | None:
        requests: list[bytes] = []
        pieces: list[Piece] = []
        size_bytes = 0
        for owner in self._in_turn:
            if owner.size_bytes > self._largest_bytes:
                return None
            if pieces and size_bytes + owner.size_bytes > self._largest_bytes:
                requests.append(time.join(pieces))
                pieces, size_bytes = [], 0
            if owner.size_bytes:
                owner.add_to(pieces)
                size_bytes += owner.size_bytes
        if pieces:
            requests.append(time.join(pieces))
        return requests


def _good_from_ns(metric: Metric, series: Series, time_ns: int) -> float:
    """From which time on it can be told since when each series of a sum counts.

    The wall clock may have been set back since: a start after the end would be refused. It is then told otherwise, and
    for this time only.
    """
    if metric.kind is Kind.GAUGE:
        return -math.inf
    latest_ns = max([start_ns or 0 for start_ns in series.starts], default=0)
    return latest_ns if latest_ns <= time_ns else math.inf


def _same(these: Sequence[int], of_these: Series, those: Sequence[int], of_those: Series) -> bool:
    """Whether series of these numbers are those: the same objects, counted since the same time."""
    if len(these) != len(those):
        return False
    for this, that in zip(these, those, strict=True):
        if of_these.attributes[this] is not of_those.attributes[that] or of_these.starts[this] != of_those.starts[that]:
            return False
    return True
