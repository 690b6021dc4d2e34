"""What one collection gives to every exporter: all metrics with their points, and whose Resources they are on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from otel_gpu.metrics.catalogue import Metric
from otel_gpu.metrics.identity import WorkloadIdentity
from otel_gpu.metrics.points import Point


@dataclass(frozen=True, slots=True)
class Family:
    """A metric and its points in one collection."""

    metric: Metric
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Collection:
    """Everything, as of ``time_ns`` (Unix time), when the world was read. Metrics without a point are left out."""

    time_ns: int
    families: tuple[Family, ...]

    @property
    def point_count(self) -> int:
        """How many series there are."""
        return sum(len(family.points) for family in self.families)


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
