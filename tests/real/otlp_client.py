"""Sends a few handmade metrics with the official exporters of OpenTelemetry."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_gpu.config.values import Address

GPU = {"hw.id": "GPU-one"}


def workloads(joules: Mapping[str, float]) -> MetricsData:
    """Workloads on one GPU and their energy, by name. Their points differ only in the Resource."""
    now_ns = time.time_ns()

    def point(value: float) -> NumberDataPoint:
        return NumberDataPoint(attributes=GPU, start_time_unix_nano=now_ns - 10**9, time_unix_nano=now_ns, value=value)

    def metrics(name: str) -> Sequence[Metric]:
        energy = Sum([point(joules[name])], AggregationTemporality.CUMULATIVE, is_monotonic=True)
        return [
            Metric("gpu.workload.energy", "Energy used", "J", energy),
            Metric("gpu.workload.utilization", "SM share", "1", Gauge([point(0.5)])),
        ]

    def identity(name: str) -> Resource:
        return Resource({"gpu.workload.kind": "container", "gpu.workload.id": name, "gpu.workload.name": f"the {name}"})

    scope = InstrumentationScope("otel_gpu", "1")
    return MetricsData(
        [ResourceMetrics(identity(name), [ScopeMetrics(scope, metrics(name), "")], "") for name in joules]
    )


def send(exporter: MetricExporter, data: MetricsData) -> None:
    """Send once and shut down; the Collector must accept it."""
    try:
        assert exporter.export(data) is MetricExportResult.SUCCESS
    finally:
        exporter.shutdown()


def over_grpc(address: Address) -> MetricExporter:
    """An exporter to a Collector's OTLP receiver over gRPC."""
    return GrpcExporter(endpoint=f"http://{address}", insecure=True)


def over_http(address: Address) -> MetricExporter:
    """An exporter to a Collector's OTLP receiver over HTTP."""
    return HttpExporter(endpoint=f"http://{address}/v1/metrics")
