"""A collection straight from one reading, where no instruments are: for a look that ends with it."""

from __future__ import annotations

from otel_gpu.metrics.catalogue import METRICS
from otel_gpu.metrics.collection import Collection, Family
from otel_gpu.metrics.points import Reading, points


def collect(reading: Reading) -> Collection:
    """All metrics of a cycle with their points, as of when the world was read."""
    families = []
    count = 0
    for metric in METRICS:
        found = tuple(points(metric.name, reading, count))
        count += len(found)
        if found:
            families.append(Family(metric, found))
    return Collection(reading.attribution.wall_ns, tuple(families))
