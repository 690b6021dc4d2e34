"""A collection: every metric with its series and one value per series."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from otel_gpu.metrics.catalogue import Metric
from otel_gpu.metrics.labels import Attributes, WorkloadIdentity


class Point(NamedTuple):
    """One point of a metric.

    ``workload`` is ``None`` for points of the host. ``start_ns`` (Unix time) is when a counter started; ``None`` for a
    counter whose start is unknown, and for all other kinds.
    """

    value: int | float
    attributes: Attributes
    workload: WorkloadIdentity | None = None
    start_ns: int | None = None


@dataclass(frozen=True, slots=True)
class SeriesSet:
    """The series that a metric may have, in columns: of all rows of a kind, whether they have a value now or not.

    It is the same object from collection to collection until a row appears or ends, or a label or a start changes.
    An exporter may keep what it derives from a SeriesSet for as long as the block has that object.
    """

    attributes: tuple[Attributes, ...]
    workloads: tuple[WorkloadIdentity | None, ...]
    starts_ns: tuple[int | None, ...]

    def __len__(self) -> int:
        """The number of series."""
        return len(self.attributes)


class MetricBlock(NamedTuple):
    """A metric in one collection: its series, and one value for each of them. ``None``: no point in this collection."""

    metric: Metric
    series: SeriesSet
    values: tuple[int | float | None, ...]

    @classmethod
    def of(cls, metric: Metric, points: Iterable[Point]) -> MetricBlock:
        """The block of these points."""
        values, *columns = tuple(zip(*points, strict=True)) or ((), (), (), ())
        return cls(metric, SeriesSet(*columns), values)

    @property
    def point_count(self) -> int:
        """The number of its points."""
        return len(self.values) - self.values.count(None)

    @property
    def points(self) -> tuple[Point, ...]:
        """Its points one by one."""
        series = self.series
        columns = zip(self.values, series.attributes, series.workloads, series.starts_ns, strict=True)
        return tuple(
            [Point(value, own, workload, since) for value, own, workload, since in columns if value is not None]
        )


@dataclass(frozen=True, slots=True)
class Collection:
    """All metrics of one cycle, as of ``time_ns`` (Unix time), when the host was read.

    Metrics without points are absent.
    """

    time_ns: int
    blocks: tuple[MetricBlock, ...]
