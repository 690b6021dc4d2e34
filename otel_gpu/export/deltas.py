"""Delta temporality: what was added to each counter since the receiver last accepted it.

A counter advances only when a request that carries it was accepted. So a receiver that is away loses nothing that is
still exported when it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Final, NamedTuple, TypeAlias

from otel_gpu.export.batches import Batch, Block
from otel_gpu.metrics.catalogue import Kind, Metric
from otel_gpu.metrics.labels import AttributeValue, WorkloadIdentity
from otel_gpu.metrics.series import Collection, Point

LONGEST_ABSENCE_NS: Final = 3600 * 10**9
MOST_ABSENT: Final = 20_000
"""How long, and how many, absent series of workloads are remembered."""

SeriesKey: TypeAlias = tuple[str, WorkloadIdentity | None, tuple[str, ...], tuple[AttributeValue, ...]]
"""Metric, workload, and the keys and values of the point's attributes, in the order in which the catalogue has them.
There are tens of thousands of them on a large host."""


class AcceptedCounter(NamedTuple):
    """A counter as the receiver last accepted it: its value, its start and the time of its collection (Unix time)."""

    value: int | float
    start_ns: int | None
    time_ns: int


class Deltas:
    """The counters that one receiver has accepted. No delta is negative.

    A series may be absent from collections, as while a driver is reloaded, and return: what was accepted of it is
    remembered. ``restored`` returns what an earlier run of the agent had counted, if this run continues its counters.
    """

    def __init__(self, restored: Callable[[], Collection | None] = lambda: None) -> None:
        self._restored: Callable[[], Collection | None] | None = restored
        self._accepted: dict[SeriesKey, AcceptedCounter] = {}
        self._pending: dict[SeriesKey, AcceptedCounter] = {}
        self._shapes: dict[tuple[str, ...], tuple[str, ...]] = {}  # the few sets of keys that points have, each once
        self._absent_since_ns: dict[SeriesKey, int] = {}  # the longest absent first

    def growth(self, collection: Collection) -> Batch:
        """The collection with counters replaced by what was added to them since they were last accepted."""
        self._restore()
        self._pending = {}
        time_ns = collection.time_ns
        blocks = tuple(
            Block(block.metric, self._deltas(block.metric, block.points, time_ns)) for block in collection.blocks
        )
        self._forget_absent(time_ns)
        return Batch(time_ns, blocks)

    def accept(self, batch: Batch) -> None:
        """Advance the counters of a batch, which is all of the newest ``growth`` or a part of it."""
        for block in batch.blocks:
            for point in block.points if block.metric.kind is Kind.COUNTER else ():
                key = self._key(block.metric, point)
                self._accepted[key] = self._pending[key]

    def _deltas(self, metric: Metric, points: Sequence[Point], time_ns: int) -> Sequence[Point]:
        if metric.kind is not Kind.COUNTER:
            return points
        return tuple([self._delta(self._key(metric, point), point, time_ns) for point in points])

    def _delta(self, key: SeriesKey, point: Point, time_ns: int) -> Point:
        """A counter's growth since it was last accepted. All of it if it never was, or if it has started again."""
        now = self._pending[key] = AcceptedCounter(point.value, point.start_ns, time_ns)
        if point.start_ns is None:
            # Its start is unknown, so earlier receivers may have its past: it grows from its first collection on.
            before = self._accepted.setdefault(key, now)
        else:
            accepted = self._accepted.get(key)
            if accepted is None or _starts_later(point.start_ns, accepted.start_ns):
                return point
            before = accepted
        was_cleared = point.value < before.value  # nvidia-smi --reset-ecc-errors
        value = point.value if was_cleared else difference(point.value, before.value)
        return point._replace(value=value, start_ns=before.time_ns)

    def _key(self, metric: Metric, point: Point) -> SeriesKey:
        keys = tuple(point.attributes)
        return metric.name, point.workload, self._shapes.setdefault(keys, keys), tuple(point.attributes.values())

    def _restore(self) -> None:
        """Start with the counters of an earlier run. Requested in each collection until available."""
        collection = None if self._restored is None else self._restored()
        if collection is None:
            return
        self._restored = None
        for block in collection.blocks:
            for point in block.points if block.metric.kind is Kind.COUNTER else ():
                if point.start_ns is not None:
                    counter = AcceptedCounter(point.value, point.start_ns, collection.time_ns)
                    self._accepted.setdefault(self._key(block.metric, point), counter)

    def _forget_absent(self, time_ns: int) -> None:
        """Forget series of workloads that stay absent. Series of GPUs are few, and kept."""
        absent = self._absent_since_ns
        for key in self._pending.keys() & absent.keys():
            del absent[key]
        for key in self._accepted.keys() - self._pending.keys() - absent.keys():
            if key[1] is not None:  # of a workload
                absent[key] = time_ns
        too_many = max(0, len(absent) - MOST_ABSENT)
        too_long = [key for key, since_ns in absent.items() if time_ns - since_ns > LONGEST_ABSENCE_NS]
        for key in {*too_long, *list(absent)[:too_many]}:
            del absent[key], self._accepted[key]


def _starts_later(start_ns: int, accepted_ns: int | None) -> bool:
    """Whether a counter is a successor. The same or an earlier start belongs to the counter that was accepted."""
    return accepted_ns is None or start_ns > accepted_ns


def difference(after: float, before: float) -> int | float:
    """``after - before`` in decimal, so that differences of millijoules sum to the counter again.

    In binary, 0.3 - 0.1 is 0.19999999999999998.
    """
    if isinstance(after, int) and isinstance(before, int):
        return after - before
    return float(Decimal(repr(after)) - Decimal(repr(before)))
