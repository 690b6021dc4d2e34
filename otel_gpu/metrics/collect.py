"""A collection straight from one reading, where no instruments are: for a look that ends with it."""

from __future__ import annotations

from otel_gpu.metrics.catalogue import METRICS
from otel_gpu.metrics.collection import Collection, Family
from otel_gpu.metrics.columns import Columns
from otel_gpu.metrics.points import Reading, family


def collect(reading: Reading) -> Collection:
    """All metrics of a cycle with their points, as of when the world was read."""
    columns = Columns()
    families: list[Family] = []
    count = 0
    for metric in METRICS:
        found = family(metric, reading, columns, count)
        if found is not None:
            count += len(found.values)
            families.append(found)
    return Collection(reading.attribution.wall_ns, tuple(families))
