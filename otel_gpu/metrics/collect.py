"""A collection straight from one reading, where no instruments are: for a look that ends with it."""

from __future__ import annotations

from otel_gpu.metrics.catalogue import METRICS
from otel_gpu.metrics.collection import Collection
from otel_gpu.metrics.columns import Columns
from otel_gpu.metrics.points import Reading, blocks


def collect(reading: Reading) -> Collection:
    """All metrics of a cycle with their points, as of when the world was read."""
    return Collection(reading.attribution.wall_ns, tuple(blocks(METRICS, reading, Columns())))
