"""What one collection gives to every exporter: all metrics with their points, and whose Resources they are on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from otel_gpu.metrics.catalogue import Metric
from otel_gpu.metrics.identity import WorkloadIdentity
from otel_gpu.metrics.series import Cells, Point, Series


@dataclass(frozen=True, slots=True)
class MetricBlock:
    """A metric in one collection: its series, and a value of each.

    As long as neither changes it is the same object from one collection to the next; so are its series while nobody
    comes or goes. Where some of those who are there have no value, ``among`` are all of them.
    """

    metric: Metric
    series: Series
    values: tuple[float, ...]
    among: Cells | None = field(default=None, compare=False)

    @classmethod
    def of(cls, metric: Metric, points: Iterable[Point]) -> MetricBlock:
        """The family of these points."""
        found = tuple(points)
        return cls(metric, Series.of(found), tuple(point.value for point in found))

    @property
    def cells(self) -> Cells:
        """All who may have a value, with those that there are: what exporters lay out once, and then write into."""
        return self.among or Cells(self.series, self.values)

    @property
    def points(self) -> tuple[Point, ...]:
        """Its points one by one, made of the columns each time."""
        return self.series.points(self.values)


@dataclass(frozen=True, slots=True)
class Collection:
    """Everything, as of ``time_ns`` (Unix time), when the world was read. Metrics without a point are left out."""

    time_ns: int
    blocks: tuple[MetricBlock, ...]

    @property
    def point_count(self) -> int:
        """How many series there are."""
        return sum(len(family.values) for family in self.blocks)


@dataclass(frozen=True, slots=True)
class Resources:
    """The attributes of Resources: ``shared`` by all of this host, and those of the ``agent`` beside them.

    ``extra_keys`` are attributes that a workload may have beside those of ``IDENTITY_KEYS``.
    """

    shared: Mapping[str, str]
    agent: Mapping[str, str]
    extra_keys: tuple[str, ...] = ()

    def of(self, workload: WorkloadIdentity | None) -> dict[str, str]:
        """The Resource of a workload; of the host, as this agent tells of it, for ``None``."""
        if workload is None:
            return {**self.shared, **self.agent}
        return {**self.shared, **dict(workload.attributes)}
