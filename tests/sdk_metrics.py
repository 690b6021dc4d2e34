"""A collection as the SDK's ``MetricsData``: the official encoder takes it, and is the oracle of the agent's own."""

from __future__ import annotations

from typing import Final, TypeAlias

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as SdkMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_gpu.export.batches import Batch
from otel_gpu.export.otlp_encoder import SCHEMA_URL
from otel_gpu.metrics.catalogue import Kind, Metric
from otel_gpu.metrics.labels import Resources, WorkloadIdentity
from otel_gpu.metrics.series import Collection, Point
from otel_gpu.version import __version__

UNKNOWN_START: Final = 0

_SCOPE: Final = InstrumentationScope("otel_gpu", __version__, SCHEMA_URL)

_ResourceKey: TypeAlias = tuple[tuple[str, str], ...]


def encode_officially(
    collection: Collection | Batch, resources: Resources, *, delta: bool = False
) -> ExportMetricsServiceRequest:
    """The request of a collection, by the official encoder."""
    return encode_metrics(metrics_data(collection, resources, delta=delta))


def metrics_data(collection: Collection | Batch, resources: Resources, *, delta: bool = False) -> MetricsData:
    """All points, with one Resource per workload and the host's Resource first.

    With ``delta``, the values of counters are what was added since their start.
    """
    numbers: dict[WorkloadIdentity | None, int] = {}  # of the Resource of each workload
    # By attributes, not by identity: of two equal Resources in one request the SDK's encoder loses the first.
    by_attributes: dict[_ResourceKey, int] = {}
    metrics: dict[int, list[SdkMetric]] = {}
    for block in collection.blocks:
        points: dict[int, list[NumberDataPoint]] = {}
        for point in block.points:
            number = numbers.get(point.workload)
            if number is None:
                key = tuple(sorted(resources.of(point.workload).items()))
                number = numbers[point.workload] = by_attributes.setdefault(key, len(by_attributes))
            points.setdefault(number, []).append(_data_point(point, collection.time_ns))
        for number, found in points.items():
            metrics.setdefault(number, []).append(_sdk_metric(block.metric, found, delta=delta))
    host = numbers.get(None)
    ordered = sorted(by_attributes.items(), key=lambda resource: (resource[1] != host, resource[0]))
    return MetricsData([_resource_metrics(key, metrics[number]) for key, number in ordered])


def _data_point(point: Point, time_ns: int) -> NumberDataPoint:
    # The wall clock may have been set back. Receivers refuse a start after the end.
    start_ns = UNKNOWN_START if point.start_ns is None else min(point.start_ns, time_ns)
    return NumberDataPoint(point.attributes, start_ns, time_ns, point.value)


def _sdk_metric(metric: Metric, points: list[NumberDataPoint], *, delta: bool) -> SdkMetric:
    data: Gauge | Sum
    if metric.kind is Kind.GAUGE:
        data = Gauge(points)
    else:
        is_counter = metric.kind is Kind.COUNTER
        is_delta = is_counter and delta
        temporality = AggregationTemporality.DELTA if is_delta else AggregationTemporality.CUMULATIVE
        data = Sum(points, temporality, is_monotonic=is_counter)
    return SdkMetric(metric.name, metric.description, metric.unit, data)


def _resource_metrics(key: _ResourceKey, metrics: list[SdkMetric]) -> ResourceMetrics:
    return ResourceMetrics(Resource(dict(key)), [ScopeMetrics(_SCOPE, metrics, SCHEMA_URL)], "")
