"""Collections as OTLP requests. The official encoder is the oracle."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from otel_gpu import __version__
from otel_gpu.export.otlp_encoder import encode
from otel_gpu.metrics.catalogue import Kind
from otel_gpu.metrics.labels import Resources
from otel_gpu.metrics.series import Collection, MetricBlock, Point
from tests.sdk_metrics import encode_officially
from tests.unit.export.samples import GPU, RESOURCES, START_NS, TIME_NS, collection, encoded, identity
from tests.unit.export.test_batches import BLOCKS, TEXT

DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


RESOURCE_ATTRIBUTES = st.dictionaries(st.sampled_from(["host.name", "gpu.workload.kind", "gpu.workload.id"]), TEXT)


@given(BLOCKS, RESOURCE_ATTRIBUTES, st.data())
def test_requests_equal_those_of_the_official_encoder(
    blocks: dict[str, list[Point]], shared: dict[str, str], data: st.DataObject
) -> None:
    found, resources = collection(blocks), Resources(shared, {"service.name": "otel-gpu"})
    found = Collection(found.time_ns, tuple(with_absent_values(block, data) for block in found.blocks))
    for delta in (False, True):
        assert encode(found, resources, delta=delta) == encode_officially(found, resources, delta=delta)


def with_absent_values(block: MetricBlock, data: st.DataObject) -> MetricBlock:
    """A block as collected: some series have no value, and only counters have a start."""
    has_value = data.draw(st.lists(st.booleans(), min_size=len(block.values), max_size=len(block.values)))
    values = tuple([value if has else None for value, has in zip(block.values, has_value, strict=True)])
    series = block.series
    if block.metric.kind is not Kind.COUNTER:
        series = replace(series, starts_ns=(None,) * len(series))
    return block._replace(values=values, series=series)


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


def test_no_counter_starts_after_its_time_when_the_clock_was_set_back() -> None:
    (request,) = encoded(collection({"hw.energy": [Point(1.0, GPU, None, TIME_NS + 5)]}))
    (point,) = request.resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points
    assert point.start_time_unix_nano == TIME_NS


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


def test_an_attribute_of_1_and_one_of_true_are_not_the_same() -> None:
    points = [Point(1.0, {"x": value}) for value in (1, True, "1")]
    (request,) = encoded(collection({"hw.power": points}))
    found = request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
    kinds = [point.attributes[0].value.WhichOneof("value") for point in found]
    assert kinds == ["int_value", "bool_value", "string_value"]


@pytest.mark.parametrize("point", [Point(2**63, GPU), Point(1.0, {"x": 2**63}), Point(1.0, {"x": "\ud800"})])
def test_a_value_that_otlp_does_not_have_is_a_value_error(point: Point) -> None:
    with pytest.raises(ValueError, match=r"out of range|Unicode|utf-8|surrogates"):
        encode(collection({"hw.power": [point]}), RESOURCES)
