"""Series and their values: what a metric tells in a cycle, in columns, and what one point of it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import is_not
from typing import NamedTuple

from otel_gpu.metrics.identity import WorkloadIdentity
from otel_gpu.metrics.tags import Attributes


class Point(NamedTuple):
    """One point of a metric. ``workload`` is ``None`` where it is of the host; ``start_ns`` (Unix time) is a counter's.

    A counter without a start has counted since before anybody can tell.
    """

    value: int | float
    attributes: Attributes
    workload: WorkloadIdentity | None = None
    start_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """All series of a metric, but for their values. While nobody comes or goes it is the same object in every cycle.

    Whoever keeps what was made of it asks for the object, and holds on to it: nothing else can then be at its address.
    """

    attributes: tuple[Attributes, ...]
    workloads: tuple[WorkloadIdentity | None, ...]
    starts: tuple[int | None, ...]
    runs: int = 1
    """How many runs of the same length they are made of: values of one method or state stand together, for most cycles
    change those of one of them."""

    @classmethod
    def of(cls, points: Iterable[Point]) -> Series:
        """The series that these points are of."""
        _, attributes, workloads, starts = tuple(zip(*points, strict=True)) or ((), (), (), ())
        return cls(attributes, workloads, starts)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.attributes)

    def is_that_of(self, points: Sequence[Point]) -> bool:
        """Whether these points have them: attributes and workloads that are the same objects, and the same starts."""
        return len(points) == len(self) and all(
            point.attributes is attributes and point.workload is workload and point.start_ns == start_ns
            for point, attributes, workload, start_ns in zip(
                points, self.attributes, self.workloads, self.starts, strict=True
            )
        )

    def only(self, wanted: Sequence[bool]) -> Series:
        """Those that are wanted."""
        return Series(
            tuple(compress(self.attributes, wanted)),
            tuple(compress(self.workloads, wanted)),
            tuple(compress(self.starts, wanted)),
        )

    def points(self, values: Sequence[float]) -> tuple[Point, ...]:
        """One point of each."""
        columns = zip(values, self.attributes, self.workloads, self.starts, strict=True)
        return tuple(map(Point._make, columns))


class Cells(NamedTuple):
    """Series of all who may have a value, and the value of each; ``None`` for those who have none in this cycle.

    Whose values come and go, others stay where they are: the series are the same object.
    """

    series: Series
    values: tuple[float | None, ...]

    def changed(self, before: Cells) -> Iterator[int]:
        """Numbers of those whose value is another object than ``before``; the series must be the same.

        By address, which asks for no type and no sign: equal are also 1 and 1.0, and 0.0 and -0.0.
        """
        return compress(range(len(self.values)), map(is_not, self.values, before.values))


class Departed(NamedTuple):
    """Addresses of attributes and workloads that series had, and none has any more."""

    attributes: set[int]
    workloads: set[int]


def departed(before: Iterable[Series], now: Sequence[Series]) -> Departed:
    """Who has left: to whoever keeps something of everybody who is told of.

    Those who come and go do so in few metrics, and are in others still. The last ones of the catalogue say of everybody
    that he is there, so they are asked first.
    """
    stay = set(map(id, now))
    gone = Departed(set(), set())
    for series in before:
        if id(series) not in stay:
            gone.attributes.update(map(id, series.attributes))
            gone.workloads.update(map(id, series.workloads))
    for series in reversed(now):
        if gone.attributes:
            gone.attributes.difference_update(map(id, series.attributes))
        if gone.workloads:
            gone.workloads.difference_update(map(id, series.workloads))
    return gone
