"""OTLP written by ourselves is what the official encoder writes of the same."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from itertools import combinations
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from otel_gpu.export import otlp_layout
from otel_gpu.export.deltas import Deltas
from otel_gpu.export.metrics_data import Encoder
from otel_gpu.export.otlp_wire import WireEncoder
from otel_gpu.metrics.catalogue import BY_NAME, METRICS, Kind
from otel_gpu.metrics.collect import collect
from otel_gpu.metrics.collection import Collection, MetricBlock
from otel_gpu.metrics.points import Point
from otel_gpu.metrics.series import Series
from tests.unit.export.exposition import simulated_reading
from tests.unit.export.samples import RESOURCES, TIME_NS, collection, encoded, identity, received, with_gaps

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
INT64 = st.integers(-(2**63), 2**63 - 1)
VALUE = st.one_of(st.floats(allow_nan=False), INT64)
ATTRIBUTES = st.dictionaries(TEXT, st.one_of(TEXT, INT64, st.booleans()), max_size=6)
POINTS = st.lists(
    st.builds(
        Point,
        VALUE,
        ATTRIBUTES,
        st.one_of(st.none(), TEXT.map(identity)),
        st.one_of(st.none(), st.integers(0, 2 * TIME_NS)),
    ),
    min_size=1,
    max_size=8,
)
FAMILIES = st.dictionaries(st.sampled_from([metric.name for metric in METRICS]), POINTS, max_size=4)
COUNTER = next(metric.name for metric in METRICS if metric.kind is Kind.COUNTER)
GAUGE = next(metric.name for metric in METRICS if metric.kind is Kind.GAUGE)
OTHER = next(metric.name for metric in METRICS if metric.kind is Kind.UPDOWNCOUNTER)


def whole(requests: Iterable[ExportMetricsServiceRequest]) -> ExportMetricsServiceRequest:
    (one,) = [*requests] or [ExportMetricsServiceRequest()]
    return one


@given(FAMILIES)
def test_any_collection_is_written_as_the_official_encoder_writes_it(blocks: dict[str, list[Point]]) -> None:
    told = collection(blocks)
    assert whole(encoded(told, WireEncoder(RESOURCES))) == whole(encoded(told, Encoder(RESOURCES)))


@given(st.lists(FAMILIES, min_size=2, max_size=4))
def test_so_are_collections_one_after_the_other_with_series_that_come_and_go(
    cycles: list[dict[str, list[Point]]],
) -> None:
    ours = WireEncoder(RESOURCES)
    stays = [Point(1.0, {"n": n}, identity("stays"), TIME_NS - 1) for n in range(3)]
    for number, blocks in enumerate(cycles):
        points = [*stays[: 1 + number % 3], *blocks.get(COUNTER, [])]
        told = collection({**blocks, COUNTER: [point._replace(value=number + 0.5) for point in points]})
        assert whole(encoded(told, ours)) == whole(encoded(told, Encoder(RESOURCES)))


@given(st.lists(st.lists(st.floats(0, 1e6), min_size=3, max_size=3), min_size=1, max_size=5))
def test_deltas_are_the_same_however_they_are_written(cycles: list[list[float]]) -> None:
    ours, official = WireEncoder(RESOURCES, deltas=Deltas()), Encoder(RESOURCES, deltas=Deltas())
    for number, values in enumerate(cycles):
        points = [Point(value, {"n": n}, identity("w"), TIME_NS - 1) for n, value in enumerate(values)]
        told = collection({COUNTER: points}, TIME_NS + number)
        (mine,), (theirs,) = [*ours.batches(told)], [*official.batches(told)]
        assert received(mine) == received(theirs)
        if number % 2 == 0:  # every other request is lost
            ours.taken(mine)
            official.taken(theirs)


def test_a_second_collection_of_the_same_series_is_written_as_if_it_were_the_first() -> None:
    first, second = collect(simulated_reading()), collect(simulated_reading())
    encoder = WireEncoder(RESOURCES)
    requests = [whole(encoded(each, encoder)) for each in (first, second, first)]
    assert requests == [whole(encoded(each, Encoder(RESOURCES))) for each in (first, second, first)]


SERIES = [Point(0, {"n": n}, identity(f"w{n % 3}") if n % 4 else None, TIME_NS + n - 3 or None) for n in range(8)]
KEPT = {
    present: Series.of(SERIES[n] for n in present) for size in (2, 5, 8) for present in combinations(range(8), size)
}
CYCLES = st.lists(
    st.tuples(
        st.integers(-5, 5),  # the wall clock may be set back, and starts are after it then
        st.sampled_from(sorted(KEPT)[:12]),
        st.lists(st.sampled_from([0, 0.0, -0.0, 1, 1.0, 7.5]), min_size=8, max_size=8),
    ),
    min_size=2,
    max_size=8,
)


@given(CYCLES)
def test_what_is_kept_of_series_is_good_for_every_time_and_value(
    cycles: list[tuple[int, tuple[int, ...], list[float]]],
) -> None:
    ours = WireEncoder(RESOURCES)
    blocks: dict[str, MetricBlock] = {}
    for shift_ns, present, values in cycles:
        for name, kept in ((COUNTER, values), (GAUGE, [*values[:1]] * 8)):
            made = MetricBlock(BY_NAME[name], KEPT[present], tuple(kept[: len(present)]))
            before = blocks.get(name)
            same = before is not None and before.series is made.series and repr(before.values) == repr(made.values)
            blocks[name] = before if same and before is not None else made
        told = Collection(TIME_NS + shift_ns, tuple(blocks.values()))
        (mine,), (theirs,) = ours.batches(told), WireEncoder(RESOURCES).batches(told)
        assert mine.data == theirs.data
        assert received(mine) == whole(encoded(told, Encoder(RESOURCES)))


VALUES = [0, 0.0, -0.0, 1, 1.0, 7.5, 2**40, math.nan, None, None]
COLUMNS = st.dictionaries(
    st.sampled_from([COUNTER, GAUGE, OTHER]), st.lists(st.sampled_from(VALUES), min_size=8, max_size=8)
)
GAPS = st.lists(st.tuples(st.integers(-5, 5), st.sampled_from(sorted(KEPT)[:6]), COLUMNS), min_size=2, max_size=10)


@given(GAPS, st.sampled_from([1_000, 1_000_000]))
def test_values_may_come_and_go_and_change_in_part_and_are_written_as_if_nothing_were_kept(
    cycles: list[tuple[int, tuple[int, ...], dict[str, list[float | None]]]], largest_bytes: int
) -> None:
    ours = WireEncoder(RESOURCES, largest_bytes=largest_bytes)
    for shift_ns, present, values in cycles:
        found = [with_gaps(name, KEPT[present], column[: len(present)]) for name, column in values.items()]
        blocks = tuple(family for family in found if family is not None)
        told = Collection(TIME_NS + shift_ns, blocks)
        mine = [batch.data for batch in ours.batches(told)]
        points = Collection(told.time_ns, tuple(MetricBlock.of(each.metric, each.points) for each in blocks))
        assert mine == [batch.data for batch in WireEncoder(RESOURCES, largest_bytes=largest_bytes).batches(points)]
        if largest_bytes > 1_000 and not any(math.isnan(value) for each in blocks for value in each.values):
            official = whole(encoded(points, Encoder(RESOURCES)))
            assert whole(map(ExportMetricsServiceRequest.FromString, mine)) == official


FIGURES = [
    *(0, 0.0, -0.0, 1, 1.0, 7.5, -1, 2**63 - 1, -(2**63), 0x19FFFFFFFFFFFF, math.inf, 1.7976931348623157e308),
    *(struct.unpack("<d", bits)[0] for bits in (b"\xff" * 8, b"\x19" + b"\xff" * 7, b"\1" * 6 + b"\xf0\x7f")),
]
NAMES = [COUNTER, GAUGE, OTHER]
SETS = sorted(KEPT)[:3] + sorted(KEPT)[-2:]
STEPS = st.lists(
    st.tuples(
        st.sampled_from([1, 1, 1, 0, -9]),  # the wall clock goes on, or is set back
        st.lists(
            st.tuples(st.sampled_from(NAMES), st.integers(0, 7), st.sampled_from([*FIGURES, None, None])),
            max_size=3,
        ),
        st.one_of(*[st.just({})] * 3, st.dictionaries(st.sampled_from(NAMES), st.sampled_from(SETS), min_size=1)),
        st.sampled_from([None, None, None, None, *NAMES]),
    ),
    min_size=2,
    max_size=24,
)


@settings(max_examples=100)
@given(STEPS, st.sampled_from([2, 3, 64]), st.sampled_from([200, 700, 1_000_000]))
def test_a_history_is_written_as_if_nothing_were_kept_whatever_stands_comes_and_goes(
    steps: list[tuple[int, list[tuple[str, int, float | None]], dict[str, tuple[int, ...]], str | None]],
    loose_cycles: int,
    largest_bytes: int,
) -> None:
    ours = WireEncoder(RESOURCES, largest_bytes=largest_bytes)
    columns: dict[str, list[float | None]] = {name: [1.0] * 8 for name in NAMES}
    present, blocks = dict.fromkeys(NAMES, SETS[-1]), dict[str, MetricBlock | None]()
    time_ns = TIME_NS
    for shift_ns, changes, others, absent in steps:
        time_ns += shift_ns
        present |= others
        for name, number, value in changes:
            columns[name][number] = value
        for name in {*others, *(name for name, _, _ in changes), *({*columns} - {*blocks})}:
            blocks[name] = with_gaps(name, KEPT[present[name]], columns[name][: len(present[name])])
        told = Collection(
            time_ns, tuple(each for name in columns if (each := blocks[name]) is not None and name != absent)
        )
        with mock.patch.object(otlp_layout, "_LOOSE_CYCLES", loose_cycles):
            mine = [*ours.batches(told)]
        points = Collection(time_ns, tuple(MetricBlock.of(each.metric, each.points) for each in told.blocks))
        assert mine == [*WireEncoder(RESOURCES, largest_bytes=largest_bytes).batches(points)]
        assert points_of(map(received, mine)) == points_of(encoded(points, Encoder(RESOURCES)))


def pieces_of(encoder: WireEncoder, name: str) -> list[int]:
    assert encoder._layout is not None
    return [id(piece) for piece in encoder._layout._plans[name].pieces]


def runs_of(encoder: WireEncoder) -> set[int]:
    assert encoder._layout is not None
    return {len(owner.runs) for owner in encoder._layout._in_turn}


def of_columns(
    gauge: Sequence[float | None], counter: Sequence[float | None], time_ns: int = TIME_NS + 9
) -> Collection:
    found = (with_gaps(name, KEPT[tuple(range(8))], column) for name, column in ((GAUGE, gauge), (COUNTER, counter)))
    return Collection(time_ns, tuple(each for each in found if each is not None))


@pytest.mark.parametrize("kind", [int, float])
def test_a_metric_whose_values_come_and_go_is_after_the_first_time_all_that_is_written_anew(
    kind: type[int] | type[float],
) -> None:
    encoder = WireEncoder(RESOURCES)
    others = []
    for cycle in range(6):
        told = of_columns([1.0 * cycle] * 8, [*[2.0] * 7, None if cycle % 2 else kind(cycle)])
        assert [*encoder.batches(told)] == [*WireEncoder(RESOURCES).batches(told)]
        elsewhere = [piece for number, piece in enumerate(pieces_of(encoder, COUNTER)) if number not in (1, 7)]
        others.append((pieces_of(encoder, GAUGE), elsewhere))
    assert others[1:] == [others[1]] * 5
    assert runs_of(encoder) == {1, 2}


def test_another_metric_of_the_same_series_is_not_taken_for_the_one_before() -> None:
    encoder = WireEncoder(RESOURCES)
    for name in (COUNTER, OTHER, COUNTER):
        found = (with_gaps(each, KEPT[tuple(range(8))], [1.0] * 8) for each in (GAUGE, name))
        told = Collection(TIME_NS + 9, tuple(each for each in found if each is not None))
        assert [*encoder.batches(told)] == [*WireEncoder(RESOURCES).batches(told)]


def test_who_has_no_series_of_a_metric_any_more_is_told_of_by_others_only() -> None:
    encoder = WireEncoder(RESOURCES)
    for present in (tuple(range(8)), (0, 1), tuple(range(8))):
        found = (
            with_gaps(GAUGE, KEPT[tuple(range(8))], [1.0] * 8),
            with_gaps(COUNTER, KEPT[present], [2.0] * len(present)),
        )
        told = Collection(TIME_NS + 9, tuple(each for each in found if each is not None))
        assert [*encoder.batches(told)] == [*WireEncoder(RESOURCES).batches(told)]


def test_where_nobody_comes_or_goes_for_long_everything_of_a_resource_is_one_run_again() -> None:
    encoder = WireEncoder(RESOURCES)
    for cycle in range(200):
        told = of_columns([1.0 * cycle] * 8, [*[2.0] * 7, None if cycle == 3 else 3.0], TIME_NS + 9 + cycle)
        (mine,) = encoder.batches(told)
        assert mine == next(WireEncoder(RESOURCES).batches(told))
        if cycle == 60:
            assert runs_of(encoder) == {1, 2}
    assert runs_of(encoder) == {1}


def test_of_whoever_comes_and_goes_in_ever_other_company_few_forms_are_kept() -> None:
    encoder = WireEncoder(RESOURCES)
    for cycle in range(256):
        gauge, counter = ([float(cycle) if cycle * by >> n & 1 else None for n in range(8)] for by in (1, 5))
        told = of_columns(gauge, counter)
        assert [*encoder.batches(told)] == [*WireEncoder(RESOURCES).batches(told)]
    assert encoder._layout is not None
    parts = [part for plan in encoder._layout._in_order for part in plan.parts if part.bundle is not None]
    assert parts
    assert all(len(part.bundle.forms) <= 4 for part in parts if part.bundle is not None)


def test_the_bytes_are_those_of_the_official_message() -> None:
    (batch,) = WireEncoder(RESOURCES).batches(collect(simulated_reading()))
    assert ExportMetricsServiceRequest.FromString(batch.data).ByteSize() == len(batch.data)


@pytest.mark.parametrize("deltas", [False, True])
def test_what_is_no_longer_told_of_is_forgotten(deltas: bool) -> None:
    encoder = WireEncoder(RESOURCES, deltas=Deltas() if deltas else None)
    sizes = set()
    for cycle in range(20):
        points = [Point(1.0, {"process.pid": 100 * cycle + n}, identity(f"{cycle} {n}"), 1) for n in range(10)]
        assert list(encoder.batches(collection({COUNTER: points})))
        sizes.add((len(encoder._attributes), len(encoder._known), len(encoder._owners), *laid_out(encoder)))
    assert sizes == ({(10, 10, 10)} if deltas else {(0, 0, 0, 0, 10, 10)})


def laid_out(encoder: WireEncoder) -> tuple[int, ...]:
    layout = encoder._layout
    if layout is None:
        return ()
    return len(layout._surroundings._encoded), len(layout._owners), len(layout._by_key)


@pytest.mark.parametrize("largest_bytes", [1, 300, 1_000, 5_000, 100_000])
def test_no_point_is_lost_or_told_twice_however_requests_are_cut(largest_bytes: int) -> None:
    told = collect(simulated_reading())
    batches = [*WireEncoder(RESOURCES, largest_bytes=largest_bytes).batches(told)]
    assert points_of(map(received, batches)) == points_of([whole(encoded(told, Encoder(RESOURCES)))])
    several = [batch for batch in batches if len(points_of([received(batch)])) > 1]
    assert all(len(batch.data) <= largest_bytes for batch in several)
    assert told.point_count == len(points_of(map(received, batches)))


def points_of(requests: Iterable[ExportMetricsServiceRequest]) -> list[bytes]:
    return sorted(
        b"\0".join((resource.resource.SerializeToString(), metric.name.encode(), point.SerializeToString()))
        for each in requests
        for resource in each.resource_metrics
        for metric in resource.scope_metrics[0].metrics
        for point in (*metric.gauge.data_points, *metric.sum.data_points)
    )


def test_half_a_surrogate_pair_costs_its_character_and_not_the_export() -> None:
    told: Collection = collection({COUNTER: [Point(1.0, {"name": "a\ud800b"}, identity("w"), 1)]})
    (point,) = (
        whole(encoded(told, WireEncoder(RESOURCES))).resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points
    )
    assert point.attributes[0].value.string_value == "a?b"


def test_after_a_value_that_cannot_be_written_everything_is_written_as_before() -> None:
    encoder = WireEncoder(RESOURCES)
    good = [Point(1, {"n": n}, identity(f"w{n}"), 1) for n in range(3)]
    told = collection({GAUGE: good, COUNTER: good})
    before = [batch.data for batch in encoder.batches(told)]
    for name in (GAUGE, COUNTER):
        broken = {GAUGE: good, COUNTER: good} | {name: [point._replace(value=2**70) for point in good]}
        with pytest.raises(struct.error):
            list(encoder.batches(collection(broken)))
        assert list(encoder.batches(collection({}))) == []
        assert [batch.data for batch in encoder.batches(told)] == before


@pytest.mark.parametrize("name", [GAUGE, COUNTER])
def test_nor_is_anything_left_of_values_that_were_written_before_one_that_cannot_be(name: str) -> None:
    encoder = WireEncoder(RESOURCES)
    told = of_columns([1.0] * 8, [*[2.0] * 7, None])
    before, *_ = ([batch.data for batch in encoder.batches(told)] for _ in range(3))
    columns: dict[str, list[float | None]] = {GAUGE: [3.0] * 8, COUNTER: [4.0] * 8}
    columns[name] = [*columns[name][:4], 2**70, *columns[name][5:]]
    with pytest.raises(struct.error):
        list(encoder.batches(of_columns(columns[GAUGE], columns[COUNTER])))
    assert [batch.data for batch in encoder.batches(told)] == before
