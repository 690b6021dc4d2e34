"""Collections as MetricsData, as the official encoder writes it."""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from otel_gpu import __version__
from otel_gpu.export.metrics_data import metrics_data
from otel_gpu.metrics.labels import Resources
from otel_gpu.metrics.series import Point
from tests.unit.export.exposition import point_count, simulated
from tests.unit.export.samples import GPU, RESOURCES, START_NS, TIME_NS, collection, encoded, identity

DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


def energy(value: float, workload: str = "w") -> Point:
    return Point(value, GPU, identity(workload), START_NS)


def test_each_workload_has_its_own_resource_and_the_host_is_first() -> None:
    points = [energy(1.0, "b"), energy(2.0, "a")]
    (request,) = encoded(collection({"gpu.workload.energy": points, "hw.power": [Point(70.0, GPU)]}))
    found = [
        {pair.key: pair.value.string_value for pair in each.resource.attributes} for each in request.resource_metrics
    ]
    assert found == [
        {"host.name": "node-1", "service.name": "otel-gpu"},
        {"host.name": "node-1", "gpu.workload.kind": "container", "gpu.workload.id": "a"},
        {"host.name": "node-1", "gpu.workload.kind": "container", "gpu.workload.id": "b"},
    ]


def test_the_scope_has_name_version_and_schema_url() -> None:
    (request,) = encoded(collection({"hw.power": [Point(70.0, GPU)]}))
    (scope,) = request.resource_metrics[0].scope_metrics
    assert (scope.scope.name, scope.scope.version) == ("otel_gpu", __version__)
    assert scope.schema_url == "https://opentelemetry.io/schemas/1.44.0"


def test_gauges_counters_and_updowncounters_keep_their_kind() -> None:
    blocks = {"hw.power": [Point(70.5, GPU)], "hw.energy": [Point(12.5, GPU, None, START_NS)]}
    (request,) = encoded(collection({**blocks, "hw.gpu.memory.limit": [Point(80, GPU)]}))
    power, total, limit = request.resource_metrics[0].scope_metrics[0].metrics
    assert (power.name, power.unit, power.WhichOneof("data")) == ("hw.power", "W", "gauge")
    assert power.gauge.data_points[0].as_double == 70.5
    assert total.sum.is_monotonic
    assert total.sum.aggregation_temporality == CUMULATIVE
    assert not limit.sum.is_monotonic
    assert limit.sum.aggregation_temporality == CUMULATIVE
    assert limit.sum.data_points[0].as_int == 80
    assert total.description


def test_with_delta_only_counters_are_deltas() -> None:
    blocks = {"gpu.workload.energy": [energy(3.0)], "gpu.workload.access": [Point(1, GPU, identity("w"))]}
    request = encode_metrics(metrics_data(collection(blocks), RESOURCES, delta=True))
    found = request.resource_metrics[0].scope_metrics[0].metrics
    assert [metric.sum.aggregation_temporality for metric in found] == [DELTA, CUMULATIVE]


def test_a_counter_starts_when_its_point_says_and_otherwise_at_an_unknown_time() -> None:
    (request,) = encoded(collection({"hw.errors": [Point(1, GPU, None, START_NS), Point(2, {**GPU, "x": "y"})]}))
    known, unknown = request.resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points
    assert (known.start_time_unix_nano, known.time_unix_nano) == (START_NS, TIME_NS)
    assert (unknown.start_time_unix_nano, unknown.time_unix_nano) == (0, TIME_NS)


def test_no_counter_starts_after_its_time_when_the_clock_was_set_back() -> None:
    (request,) = encoded(collection({"hw.energy": [Point(1.0, GPU, None, TIME_NS + 5)]}))
    (point,) = request.resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points
    assert point.start_time_unix_nano == TIME_NS


def test_attributes_keep_their_types() -> None:
    attributes: dict[str, str | int | bool] = {**GPU, "process.pid": 7, "otel.metric.overflow": True}
    (request,) = encoded(collection({"gpu.process.active": [Point(1, attributes, identity("w"))]}))
    (point,) = request.resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points
    found = {pair.key: pair.value for pair in point.attributes}
    assert (found["process.pid"].int_value, found["otel.metric.overflow"].bool_value) == (7, True)


def test_workloads_with_equal_resources_share_one_so_that_no_point_is_lost() -> None:
    # The host's attributes may add to one workload what only the other has itself.
    resources = Resources({"gpu.workload.kind": "container"}, {})
    named, unnamed = identity("w"), type(identity("w"))((("gpu.workload.id", "w"),))
    points = [Point(1.0, GPU, named, START_NS), Point(2.0, {**GPU, "x": "y"}, unnamed, START_NS)]
    (request,) = encoded(collection({"gpu.workload.energy": points}), resources)
    (one,) = request.resource_metrics
    (metric,) = one.scope_metrics[0].metrics
    assert [point.as_double for point in metric.sum.data_points] == [1.0, 2.0]


def test_the_order_of_points_does_not_change_the_order_of_resources() -> None:
    points = [energy(1.0, "a"), energy(2.0, "b"), energy(3.0, "c")]
    first, second = (encoded(collection({"gpu.workload.energy": each})) for each in (points, points[::-1]))
    assert first == second


def test_all_points_of_a_simulated_host_are_encoded() -> None:
    found = simulated()
    request = encode_metrics(metrics_data(found, RESOURCES))
    metrics = [metric for each in request.resource_metrics for metric in each.scope_metrics[0].metrics]
    points = [point for metric in metrics for point in (*metric.sum.data_points, *metric.gauge.data_points)]
    assert len(points) == point_count(found)
