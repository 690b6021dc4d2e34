"""Collections made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from otel_gpu.export.batches import LARGEST_REQUEST_BYTES, Batch, Block, split_by_size
from otel_gpu.export.otlp_encoder import encode
from otel_gpu.metrics.catalogue import BY_NAME
from otel_gpu.metrics.labels import Resources, WorkloadIdentity
from otel_gpu.metrics.series import Collection, MetricBlock, Point

TIME_NS = 1_700_000_000_000_000_000
START_NS = TIME_NS - 60_000_000_000
RESOURCES = Resources({"host.name": "node-1"}, {"service.name": "otel-gpu"})
GPU = {"hw.id": "GPU-0", "gpu.index": "0"}


def identity(name: str) -> WorkloadIdentity:
    """A workload."""
    return WorkloadIdentity((("gpu.workload.kind", "container"), ("gpu.workload.id", name)))


def collection(blocks: Mapping[str, Iterable[Point]], time_ns: int = TIME_NS) -> Collection:
    """These points of these metrics."""
    return Collection(time_ns, tuple(MetricBlock.of(BY_NAME[name], points) for name, points in blocks.items()))


def one_gauge(value: float = 1.0, time_ns: int = TIME_NS) -> Collection:
    """The least there can be to export."""
    return collection({"hw.power": [Point(value, GPU)]}, time_ns)


def batch(found: Collection) -> Batch:
    """All of a collection, for one request."""
    return Batch(found.time_ns, tuple(Block(block.metric, block.points) for block in found.blocks))


def encoded(
    collection: Collection, resources: Resources = RESOURCES, largest_bytes: float = LARGEST_REQUEST_BYTES
) -> list[ExportMetricsServiceRequest]:
    """The requests of a collection."""
    return [encode(each, resources) for each in split_by_size(collection, resources, largest_bytes)]
