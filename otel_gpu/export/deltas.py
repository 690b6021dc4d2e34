"""Delta temporality: what was added to each counter since a receiver last took it.

What is told is forgotten only when it has been taken, so a receiver that is away loses nothing
of what is still told of when it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, TypeAlias

from otel_gpu.metrics.catalogue import Kind
from otel_gpu.metrics.collection import Collection
from otel_gpu.metrics.identity import WorkloadIdentity
from otel_gpu.metrics.series import Point

LONGEST_ABSENCE_NS: Final = 3600 * 10**9
MOST_ABSENT: Final = 20_000
"""How long, and how many, series of workloads are remembered that are not there."""

SeriesKey: TypeAlias = tuple[str, WorkloadIdentity | None, frozenset[tuple[str, str | int | bool]]]


@dataclass(frozen=True, slots=True)
class Told:
    """A counter as it was told: its value then, its start, and when."""

    value: int | float
    start_ns: int | None
    time_ns: int


@dataclass(frozen=True, slots=True)
class Delta:
    """What to tell now, and what will have been told once it is taken. Without a start that is unknown."""

    value: int | float
    start_ns: int | None
    key: SeriesKey
    told: Told


class Deltas:
    """What one receiver has been told of every counter. No delta is ever below 0.

    A series may be absent from collections, as while a driver is away, and return: what was told of it stays told.
    ``restored`` is what an earlier run of the agent had counted and told, if this one goes on from there.
    """

    def __init__(self, restored: Callable[[], Collection | None] = lambda: None) -> None:
        self._restored: Callable[[], Collection | None] | None = restored
        self._told: dict[SeriesKey, Told] = {}
        self._absent_since_ns: dict[SeriesKey, int] = {}  # the longest absent first

    def take_up(self) -> None:
        """Begin with what an earlier run had told, where counters go on; asked for until it is known."""
        collection = None if self._restored is None else self._restored()
        if collection is None:
            return
        self._restored = None
        for family in collection.blocks:
            for point in family.points if family.metric.kind is Kind.COUNTER else ():
                if point.start_ns is not None:
                    told = Told(point.value, point.start_ns, collection.time_ns)
                    self._told.setdefault(_key(family.metric.name, point), told)

    def of(self, metric_name: str, point: Point, time_ns: int) -> Delta:
        """A counter's growth since it was last taken: all of it if it never was, or if it began anew since."""
        key = _key(metric_name, point)
        now = Told(point.value, point.start_ns, time_ns)
        if point.start_ns is None:
            # What counts since before anybody can tell has been told to others: from the first sight on, it grows.
            before = self._told.setdefault(key, now)
        elif (before := self._told.get(key, now)) is now or _begins_later(point.start_ns, before.start_ns):
            return Delta(point.value, point.start_ns, key, now)
        if point.value < before.value:  # cleared: nvidia-smi --reset-ecc-errors
            return Delta(point.value, before.time_ns, key, now)
        return Delta(difference(point.value, before.value), before.time_ns, key, now)

    def taken(self, told: Mapping[SeriesKey, Told]) -> None:
        """These have arrived."""
        self._told.update(told)

    def seen(self, keys: Iterable[SeriesKey], time_ns: int) -> None:
        """These are all there are now. Of workloads, those that stay away are forgotten; of GPUs there are few."""
        present = set(keys)
        absent = self._absent_since_ns
        for key in present & absent.keys():
            del absent[key]
        for key in self._told.keys() - present - absent.keys():
            _, workload, _ = key
            if workload is not None:
                absent[key] = time_ns
        for key in [key for key, since_ns in absent.items() if time_ns - since_ns > LONGEST_ABSENCE_NS]:
            self._forget(key)
        for key in list(absent)[: max(0, len(absent) - MOST_ABSENT)]:
            self._forget(key)

    def _forget(self, key: SeriesKey) -> None:
        del self._absent_since_ns[key], self._told[key]


def _key(metric_name: str, point: Point) -> SeriesKey:
    return metric_name, point.workload, frozenset(point.attributes.items())


def _begins_later(start_ns: int, told_ns: int | None) -> bool:
    """Whether a counter is a successor. The same start, or an earlier one, is of the counter that was told."""
    return told_ns is None or start_ns > told_ns


def difference(after: float, before: float) -> int | float:
    """``after - before`` as people would subtract the two as written: differences of millijoules add up again.

    Floats would not: 0.3 - 0.1 is 0.19999999999999998.
    """
    if isinstance(after, int) and isinstance(before, int):
        return after - before
    return float(Decimal(repr(after)) - Decimal(repr(before)))
