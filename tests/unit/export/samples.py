"""Collections made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from otel_gpu.export.metrics_data import Batch, Batches, Encoder
from otel_gpu.metrics.catalogue import BY_NAME
from otel_gpu.metrics.collection import Collection, MetricBlock, Resources
from otel_gpu.metrics.identity import WorkloadIdentity
from otel_gpu.metrics.points import Point
from otel_gpu.metrics.series import Cells, Series

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


def with_gaps(name: str, series: Series, values: Sequence[float | None]) -> MetricBlock | None:
    """A family of all who may have a value; ``None`` if nobody has."""
    told = tuple(value for value in values if value is not None)
    if len(told) == len(values):
        return MetricBlock(BY_NAME[name], series, told)
    cells = Cells(series, tuple(values))
    return (
        MetricBlock(BY_NAME[name], series.only([value is not None for value in values]), told, cells) if told else None
    )


def one_gauge(value: float = 1.0, time_ns: int = TIME_NS) -> Collection:
    """The least there can be to export."""
    return collection({"hw.power": [Point(value, GPU)]}, time_ns)


def encoded(collection: Collection, encoder: Batches | None = None) -> list[ExportMetricsServiceRequest]:
    """The requests of a collection, by the official encoder or our own."""
    return [received(batch) for batch in (encoder or Encoder(RESOURCES)).batches(collection)]


def received(batch: Batch[Any]) -> ExportMetricsServiceRequest:
    """A batch as a receiver reads it."""
    return (
        ExportMetricsServiceRequest.FromString(batch.data)
        if isinstance(batch.data, bytes)
        else encode_metrics(batch.data)
    )
