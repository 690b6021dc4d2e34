"""Encodes collections as OTLP requests, with the message classes of ``opentelemetry-proto``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, NumberDataPoint, ScopeMetrics
from opentelemetry.semconv.schemas import Schemas

from otel_gpu.export.batches import Batch, Block
from otel_gpu.metrics.catalogue import Kind, Metric
from otel_gpu.metrics.labels import AttributeValue, Resources, WorkloadIdentity
from otel_gpu.metrics.series import Collection, MetricBlock
from otel_gpu.version import __version__

SCHEMA_URL: Final = Schemas.V1_44_0.value
"""The version of the semantic conventions that names and attributes follow."""

_CUMULATIVE: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
_DELTA: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_SCOPE: Final = InstrumentationScope(name="otel_gpu", version=__version__)

_Positions: TypeAlias = Mapping[WorkloadIdentity | None, int]
_DataPoints: TypeAlias = Any  # protobuf's repeated field of NumberDataPoint; its class differs by implementation


def encode(collection: Collection | Batch, resources: Resources, *, delta: bool = False) -> ExportMetricsServiceRequest:
    """A request with all points: one ResourceMetrics per Resource, that of the host first.

    With ``delta``, the values of counters are what was added since their start. Raises ValueError for a value that OTLP
    does not have, such as an integer of more than 64 bits.
    """
    request = ExportMetricsServiceRequest()
    encoded = _Attributes()
    workloads = {point.workload for block in collection.blocks for point in block.points}
    positions = _add_resources(request, workloads, resources)
    for block in collection.blocks:
        _add_metric(request, block, positions, encoded, collection.time_ns, delta=delta)
    return request


class _Attributes(dict[tuple[str, AttributeValue, type], bytes]):
    """Attributes of the points of one request in protobuf's binary format, by key, value and type (1 is not True).

    A few hundred attributes occur on thousands of points. To encode each one once takes a third of the time. A point
    then merges them: parts of a message in binary format may be joined and read as one.
    """

    def __missing__(self, attribute: tuple[str, AttributeValue, type]) -> bytes:
        key, value, _ = attribute
        part = self[attribute] = NumberDataPoint(attributes=[_key_value(key, value)]).SerializeToString()
        return part


def _key_value(key: str, value: AttributeValue) -> KeyValue:
    if isinstance(value, str):
        return KeyValue(key=key, value=AnyValue(string_value=value))
    if isinstance(value, bool):
        return KeyValue(key=key, value=AnyValue(bool_value=value))
    return KeyValue(key=key, value=AnyValue(int_value=value))


def _add_resources(
    request: ExportMetricsServiceRequest,
    workloads: Iterable[WorkloadIdentity | None],
    resources: Resources,
) -> _Positions:
    """Add the Resources of workloads, in an order that does not depend on that of points; returns their positions.

    Workloads with equal Resources share one: receivers may keep only one ResourceMetrics per Resource.
    """
    attributes = {workload: tuple(sorted(resources.of(workload).items())) for workload in workloads}
    host = attributes.get(None)
    ordered = sorted(set(attributes.values()), key=lambda each: (each != host, each))
    for each in ordered:
        resource_metrics = request.resource_metrics.add()
        resource_metrics.resource.attributes.extend([_key_value(key, value) for key, value in each])
        resource_metrics.scope_metrics.add(scope=_SCOPE, schema_url=SCHEMA_URL)
    positions = {each: position for position, each in enumerate(ordered)}
    return {workload: positions[each] for workload, each in attributes.items()}


def _add_metric(
    request: ExportMetricsServiceRequest,
    block: MetricBlock | Block,
    positions: _Positions,
    encoded: _Attributes,
    time_ns: int,
    *,
    delta: bool,
) -> None:
    """Add the points of a metric to their Resources."""
    by_position: dict[int, _DataPoints] = {}
    for value, attributes, workload, start_ns in block.points:
        position = positions[workload]
        data_points = by_position.get(position)
        if data_points is None:
            scope = request.resource_metrics[position].scope_metrics[0]
            data_points = by_position[position] = _new_metric(scope, block.metric, delta=delta)
        point = data_points.add(time_unix_nano=time_ns)
        if start_ns is not None:  # else 0, which means unknown (metrics.proto, start_time_unix_nano)
            # The wall clock may have been set back. Receivers refuse a start after the time of the point.
            point.start_time_unix_nano = min(start_ns, time_ns)
        if isinstance(value, int):
            point.as_int = value
        else:
            point.as_double = value
        point.MergeFromString(b"".join([encoded[key, own, own.__class__] for key, own in attributes.items()]))


def _new_metric(scope: ScopeMetrics, metric: Metric, *, delta: bool) -> _DataPoints:
    """Add a metric without points; returns where they go."""
    message = scope.metrics.add(name=metric.name, description=metric.description, unit=metric.unit)
    if metric.kind is Kind.GAUGE:
        return message.gauge.data_points
    is_counter = metric.kind is Kind.COUNTER
    message.sum.is_monotonic = is_counter
    message.sum.aggregation_temporality = _DELTA if is_counter and delta else _CUMULATIVE
    return message.sum.data_points
