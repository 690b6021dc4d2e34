from __future__ import annotations

import sys

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from otel_gpu import __version__
from otel_gpu.export.deltas import Deltas
from otel_gpu.export.metrics_data import LARGEST_REQUEST_BYTES, Encoder
from otel_gpu.export.otlp_wire import WireEncoder
from otel_gpu.metrics.collection import Collection, Resources
from otel_gpu.metrics.points import Point
from tests.unit.export import samples
from tests.unit.export.samples import GPU, RESOURCES, START_NS, TIME_NS, collection, encoded, identity, received

DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


@pytest.fixture(autouse=True, params=[Encoder, WireEncoder], ids=["by the SDK", "by ourselves"])
def encoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here holds of both."""
    for module in (sys.modules[__name__], samples):
        monkeypatch.setattr(module, "Encoder", request.param)


def energy(value: float, workload: str = "w") -> Point:
    return Point(value, GPU, identity(workload), START_NS)


def test_each_workload_has_a_resource_of_its_own_and_the_host_comes_first() -> None:
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


def test_there_is_one_scope_with_name_and_version() -> None:
    (request,) = encoded(collection({"hw.power": [Point(70.0, GPU)]}))
    (scope,) = request.resource_metrics[0].scope_metrics
    assert (scope.scope.name, scope.scope.version) == ("otel_gpu", __version__)


def test_gauges_counters_and_updowncounters_are_told_as_what_they_are() -> None:
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
    assert total.description == "Energy consumed by the GPU, over resets of the hardware's counter."


def test_a_counter_starts_when_its_point_says_and_at_an_unknown_time_where_it_says_nothing() -> None:
    (request,) = encoded(collection({"hw.errors": [Point(1, GPU, None, START_NS), Point(2, {**GPU, "x": "y"})]}))
    known, unknown = request.resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points
    assert (known.start_time_unix_nano, known.time_unix_nano) == (START_NS, TIME_NS)
    assert (unknown.start_time_unix_nano, unknown.time_unix_nano) == (0, TIME_NS)


def test_no_counter_starts_after_its_time_though_the_clock_was_set_back() -> None:
    (request,) = encoded(collection({"hw.energy": [Point(1.0, GPU, None, TIME_NS + 5)]}))
    (point,) = request.resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points
    assert point.start_time_unix_nano == TIME_NS


def test_attributes_keep_their_types() -> None:
    attributes: dict[str, str | int | bool] = {**GPU, "process.pid": 7, "otel.metric.overflow": True}
    (request,) = encoded(collection({"gpu.process.active": [Point(1, attributes, identity("w"))]}))
    (point,) = request.resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points
    found = {pair.key: pair.value for pair in point.attributes}
    assert (found["process.pid"].int_value, found["otel.metric.overflow"].bool_value) == (7, True)


def test_workloads_whose_resources_are_equal_share_one_so_that_none_is_lost() -> None:
    # The host's attributes may say of both what only one of them says itself.
    resources = Resources({"gpu.workload.kind": "container"}, {})
    named, unnamed = identity("w"), type(identity("w"))((("gpu.workload.id", "w"),))
    points = [Point(1.0, GPU, named, START_NS), Point(2.0, {**GPU, "x": "y"}, unnamed, START_NS)]
    (request,) = encoded(collection({"gpu.workload.energy": points}), Encoder(resources))
    (one,) = request.resource_metrics
    (metric,) = one.scope_metrics[0].metrics
    assert [point.as_double for point in metric.sum.data_points] == [1.0, 2.0]


def test_the_order_of_points_decides_nothing_about_the_order_of_resources() -> None:
    points = [energy(1.0, "a"), energy(2.0, "b"), energy(3.0, "c")]
    first, second = (encoded(collection({"gpu.workload.energy": each})) for each in (points, points[::-1]))
    assert first == second


# ---------------------------------------------------------------------------- deltas


def test_with_deltas_only_counters_are_deltas() -> None:
    blocks = {"gpu.workload.energy": [energy(3.0)], "gpu.workload.access": [Point(1, GPU, identity("w"))]}
    (request,) = encoded(collection(blocks), Encoder(RESOURCES, deltas=Deltas()))
    found = request.resource_metrics[0].scope_metrics[0].metrics
    assert [metric.sum.aggregation_temporality for metric in found] == [DELTA, CUMULATIVE]


def test_a_request_that_was_taken_is_not_told_again_and_one_that_was_not_is() -> None:
    encoder = Encoder(RESOURCES, deltas=Deltas(), largest_bytes=1)  # a request for each point

    def told(first: float, second: float, time_ns: int) -> list[float]:
        both = collection({"gpu.workload.energy": [energy(first, "a"), energy(second, "b")]}, time_ns)
        values = []
        for batch in encoder.batches(both):
            (resource,) = received(batch).resource_metrics
            (point,) = resource.scope_metrics[0].metrics[0].sum.data_points
            values.append(point.as_double)
            if any(pair.value.string_value == "a" for pair in resource.resource.attributes):
                encoder.taken(batch)
        return values

    assert told(1.0, 10.0, TIME_NS) == [1.0, 10.0]
    assert told(1.5, 15.0, TIME_NS + 1) == [0.5, 15.0]


# ---------------------------------------------------------------------------- sizes


def many(workloads: int, each: int, text: str) -> Collection:
    points = [
        Point(number / 1e3, {**GPU, "process.pid": number, "process.executable.name": text}, identity(f"w{w}{text}"), 1)
        for w in range(workloads)
        for number in range(each)
    ]
    return collection({"gpu.process.energy": points})


def values(requests: list[object]) -> list[float]:
    return sorted(
        point.as_double
        for request in requests
        for resource in request.resource_metrics  # type: ignore[attr-defined]
        for metric in resource.scope_metrics[0].metrics
        for point in metric.sum.data_points
    )


@pytest.mark.long
def test_twenty_thousand_points_arrive_in_requests_that_grpc_takes() -> None:
    requests = encoded(many(500, 40, "python3"))
    sizes = [request.ByteSize() for request in requests]
    assert max(sizes) <= LARGEST_REQUEST_BYTES
    assert len(sizes) > 1
    assert values([*requests]) == sorted(number / 1e3 for number in range(40) for _ in range(500))


def test_long_texts_of_any_alphabet_make_more_requests_and_no_larger_ones() -> None:
    for text in ("x" * 5_000, "名" * 2_000, "\x00\x7f\n" * 1_000, "🖥" * 1_500):
        requests = encoded(many(20, 40, text))
        assert max(request.ByteSize() for request in requests) <= LARGEST_REQUEST_BYTES
        assert len(values([*requests])) == 800


def test_requests_are_not_much_smaller_than_they_may_be() -> None:
    requests = encoded(many(100, 100, "python3"))
    assert len(requests) <= 4  # of about 2.2 MB


def test_a_resource_is_in_a_request_once_though_its_points_are_in_several() -> None:
    requests = encoded(many(3, 5, "x" * 100_000), Encoder(RESOURCES, largest_bytes=400_000))
    assert len(requests) > 3
    for request in requests:
        found = [each.resource.SerializeToString() for each in request.resource_metrics]
        assert len(set(found)) == len(found)


def test_a_point_too_large_for_any_request_is_sent_alone() -> None:
    requests = encoded(many(1, 2, "x" * 5_000), Encoder(RESOURCES, largest_bytes=1_000))
    assert [len(values([request])) for request in requests] == [1, 1]


def test_an_empty_collection_makes_no_request() -> None:
    assert encoded(collection({})) == []
