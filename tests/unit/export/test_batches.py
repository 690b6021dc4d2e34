"""Requests stay below a size, and no point is lost or sent twice."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from otel_gpu.export.batches import LARGEST_REQUEST_BYTES
from otel_gpu.metrics.catalogue import METRICS
from otel_gpu.metrics.series import Collection, Point
from tests.unit.export.exposition import point_count, simulated
from tests.unit.export.samples import GPU, TIME_NS, collection, encoded, identity

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
INT64 = st.integers(-(2**63), 2**63 - 1)
POINTS = st.lists(
    st.builds(
        Point,
        st.one_of(st.floats(allow_nan=False), INT64),
        st.dictionaries(TEXT, st.one_of(TEXT, INT64, st.booleans()), max_size=6),
        st.one_of(st.none(), TEXT.map(identity)),
        st.one_of(st.none(), st.integers(0, 2 * TIME_NS)),
    ),
    min_size=1,
    max_size=8,
)
BLOCKS = st.dictionaries(st.sampled_from([metric.name for metric in METRICS]), POINTS, max_size=4)


def many(workloads: int, each: int, text: str) -> Collection:
    points = [
        Point(number / 1e3, {**GPU, "process.pid": number, "process.executable.name": text}, identity(f"w{w}{text}"), 1)
        for w in range(workloads)
        for number in range(each)
    ]
    return collection({"gpu.process.energy": points})


def points_of(requests: Iterable[ExportMetricsServiceRequest]) -> list[bytes]:
    """Every point with its Resource and metric, in the order of their bytes."""
    return sorted(
        b"\0".join((resource.resource.SerializeToString(), metric.name.encode(), point.SerializeToString()))
        for each in requests
        for resource in each.resource_metrics
        for metric in resource.scope_metrics[0].metrics
        for point in (*metric.gauge.data_points, *metric.sum.data_points)
    )


def assert_sizes(requests: Iterable[ExportMetricsServiceRequest], largest_bytes: int) -> None:
    for request in requests:
        assert request.ByteSize() <= largest_bytes or len(points_of([request])) == 1


@given(BLOCKS, st.sampled_from([1, 300, 1_000, 5_000]))
def test_split_requests_have_the_points_of_one_whole_request(
    blocks: dict[str, list[Point]], largest_bytes: int
) -> None:
    found = collection(blocks)
    requests = encoded(found, largest_bytes=largest_bytes)
    assert points_of(requests) == points_of(encoded(found))
    assert_sizes(requests, largest_bytes)


@pytest.mark.parametrize("largest_bytes", [1, 1_000, 100_000])
def test_all_points_of_a_simulated_host_arrive_at_any_size(largest_bytes: int) -> None:
    found = simulated()
    requests = encoded(found, largest_bytes=largest_bytes)
    assert points_of(requests) == points_of(encoded(found))
    assert len(points_of(requests)) == point_count(found)
    assert_sizes(requests, largest_bytes)


@pytest.mark.long
def test_twenty_thousand_points_arrive_in_requests_that_grpc_accepts() -> None:
    found = many(500, 40, "python3")
    requests = encoded(found)
    assert len(requests) > 1
    assert_sizes(requests, LARGEST_REQUEST_BYTES)
    assert len(points_of(requests)) == point_count(found)


def test_long_texts_of_any_alphabet_make_more_requests_and_no_larger_ones() -> None:
    for text in ("x" * 5_000, "名" * 2_000, "\x00\x7f\n" * 1_000, "🖥" * 1_500):
        requests = encoded(many(20, 40, text))
        assert max(request.ByteSize() for request in requests) <= LARGEST_REQUEST_BYTES
        assert len(points_of(requests)) == 800


def test_requests_are_not_much_smaller_than_allowed() -> None:
    requests = encoded(many(100, 100, "python3"))
    assert len(requests) <= 4  # of about 2.2 MB


def test_a_resource_is_in_a_request_once_even_if_its_points_are_in_several() -> None:
    requests = encoded(many(3, 5, "x" * 100_000), largest_bytes=400_000)
    assert len(requests) > 3
    for request in requests:
        found = [each.resource.SerializeToString() for each in request.resource_metrics]
        assert len(set(found)) == len(found)


def test_a_point_larger_than_a_request_is_sent_alone() -> None:
    requests = encoded(many(1, 2, "x" * 5_000), largest_bytes=1_000)
    assert [len(points_of([request])) for request in requests] == [1, 1]


def test_an_empty_collection_makes_no_request() -> None:
    assert encoded(collection({})) == []
