"""Deltas: what was added to counters since a receiver accepted them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.export.batches import Batch, split_by_size
from otel_gpu.export.deltas import LONGEST_ABSENCE_NS, Deltas, difference
from otel_gpu.metrics.series import Point
from tests.unit.export.samples import GPU, RESOURCES, START_NS, TIME_NS, collection, identity

LATER_NS = TIME_NS + 15_000_000_000
ENERGY = "gpu.workload.energy"


def energy(joules: float, *, start_ns: int | None = START_NS, workload: str = "w") -> Point:
    return Point(joules, GPU, identity(workload), start_ns)


def growth(deltas: Deltas, time_ns: int, *points: Point, metric: str = ENERGY) -> Batch:
    return deltas.growth(collection({metric: points} if points else {}, time_ns))


def accepted(deltas: Deltas, time_ns: int, *points: Point, metric: str = ENERGY) -> None:
    """Export these points to a receiver that accepts them."""
    deltas.accept(growth(deltas, time_ns, *points, metric=metric))


def delta(deltas: Deltas, time_ns: int, point: Point, metric: str = ENERGY) -> tuple[float, int | None]:
    """Value and start of the delta of one counter."""
    (block,) = growth(deltas, time_ns, point, metric=metric).blocks
    (found,) = block.points
    return found.value, found.start_ns


def test_a_batch_that_was_accepted_advances_and_another_of_the_same_collection_does_not() -> None:
    deltas = Deltas()

    def exported(first: float, second: float, time_ns: int) -> list[float]:
        values = []
        both = growth(deltas, time_ns, energy(first, workload="a"), energy(second, workload="b"))
        for batch in split_by_size(both, RESOURCES, largest_bytes=1):  # one batch per point
            (point,) = batch.blocks[0].points
            values.append(point.value)
            if point.workload == identity("a"):
                deltas.accept(batch)
        return values

    assert exported(1.0, 10.0, TIME_NS) == [1.0, 10.0]
    assert exported(1.5, 15.0, TIME_NS + 1) == [0.5, 15.0]


def test_series_differ_by_metric_workload_and_attributes() -> None:
    deltas = Deltas()
    accepted(deltas, TIME_NS, energy(5.0))
    other_attributes = Point(6.0, {**GPU, "x": "y"}, identity("w"), START_NS)
    assert delta(deltas, LATER_NS, energy(6.0), metric="gpu.workload.idle.energy")[0] == 6.0
    assert delta(deltas, LATER_NS, energy(6.0, workload="v"))[0] == 6.0
    assert delta(deltas, LATER_NS, other_attributes)[0] == 6.0


def test_only_counters_become_deltas() -> None:
    deltas = Deltas()
    for value in (5.0, 7.0):
        (block,) = growth(deltas, TIME_NS, Point(value, GPU), metric="hw.power").blocks
        assert block.points == (Point(value, GPU),)


def test_a_successor_with_a_later_start_begins_from_zero_even_if_it_is_larger() -> None:
    deltas = Deltas()
    accepted(deltas, TIME_NS, energy(5.0))
    assert delta(deltas, LATER_NS, energy(8.0, start_ns=TIME_NS + 1)) == (8.0, TIME_NS + 1)


def test_a_counter_with_an_unknown_start_grows_from_its_first_collection_on() -> None:
    deltas = Deltas()
    assert delta(deltas, TIME_NS, energy(40, start_ns=None)) == (0, TIME_NS)
    # Not accepted: growth since the first collection is still exported.
    assert delta(deltas, LATER_NS, energy(43, start_ns=None)) == (3, TIME_NS)


def test_a_counter_that_was_cleared_counts_from_zero() -> None:
    deltas = Deltas()
    accepted(deltas, TIME_NS, energy(40, start_ns=None))
    assert delta(deltas, LATER_NS, energy(2, start_ns=None)) == (2, TIME_NS)


@pytest.mark.parametrize(("start_ns", "expected"), [(START_NS, 1.0), (START_NS - 5, 1.0), (START_NS + 5, 13.0)])
def test_a_series_that_returns_continues_and_its_successor_is_exported_in_full(start_ns: int, expected: float) -> None:
    deltas = Deltas()
    accepted(deltas, TIME_NS, energy(12.0))
    growth(deltas, LATER_NS)
    assert delta(deltas, LATER_NS, energy(13.0, start_ns=start_ns))[0] == expected


def test_a_workload_that_stays_absent_is_forgotten_after_a_while() -> None:
    deltas = Deltas()
    kept, ended = energy(1.0, workload="a"), energy(1.0, workload="b")
    accepted(deltas, TIME_NS, kept, ended)
    growth(deltas, TIME_NS, kept)
    growth(deltas, TIME_NS + LONGEST_ABSENCE_NS + 1, kept)
    (block,) = growth(deltas, LATER_NS, energy(3.0, workload="a"), energy(3.0, workload="b")).blocks
    assert [point.value for point in block.points] == [2.0, 3.0]


def test_each_absence_of_a_series_counts_on_its_own() -> None:
    deltas = Deltas()
    accepted(deltas, TIME_NS, energy(1.0))
    for hours in range(1, 6):
        growth(deltas, TIME_NS + hours * LONGEST_ABSENCE_NS)
        growth(deltas, TIME_NS + hours * LONGEST_ABSENCE_NS + 1, energy(1.0))
    assert delta(deltas, LATER_NS, energy(3.0))[0] == 2.0


def test_the_newest_of_many_absent_series_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_gpu.export.deltas.MOST_ABSENT", 10)
    deltas = Deltas()
    for number in range(100):
        accepted(deltas, TIME_NS + number, energy(1.0, workload=str(number)))
    growth(deltas, TIME_NS + 100)
    (block,) = growth(deltas, LATER_NS, *(energy(1.0, workload=str(number)) for number in range(100))).blocks
    assert [point.value for point in block.points] == [1.0] * 90 + [0.0] * 10


def test_the_series_of_a_gpu_are_never_forgotten() -> None:
    deltas = Deltas()
    accepted(deltas, TIME_NS, Point(40.0, GPU, None, START_NS), metric="hw.energy")
    for hours in range(48):
        growth(deltas, TIME_NS + hours * LONGEST_ABSENCE_NS)
    assert delta(deltas, LATER_NS, Point(41.0, GPU, None, START_NS), metric="hw.energy")[0] == 1.0


@pytest.mark.parametrize(("after", "before", "expected"), [(0.3, 0.1, 0.2), (7, 4, 3), (1.1, 1, 0.1), (5, 2.5, 2.5)])
def test_differences_are_decimal(after: float, before: float, expected: float) -> None:
    assert difference(after, before) == expected


def test_the_difference_of_integers_is_an_integer() -> None:
    assert isinstance(difference(2**62 + 1, 1), int)


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.booleans()), min_size=1, max_size=30),
    st.sampled_from([1e3, 1e6]),
)
def test_accepted_deltas_sum_to_the_counter_and_none_is_negative(
    steps: list[tuple[int, bool]], per_unit: float
) -> None:
    """Each step: what is added, and whether the receiver accepts it."""
    deltas = Deltas()
    counted = received = expected = 0
    until_ns = START_NS
    for number, (added, is_accepted) in enumerate(steps):
        counted += added
        batch = growth(deltas, TIME_NS + number, energy(counted / per_unit))
        (found,) = batch.blocks[0].points
        assert found.value >= 0
        assert found.start_ns == until_ns
        if is_accepted:
            deltas.accept(batch)
            received += round(found.value * per_unit)
            expected, until_ns = counted, TIME_NS + number
        assert received == expected


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.booleans(), st.booleans()), min_size=1, max_size=40),
    st.sampled_from(["w", None]),
)
def test_deltas_sum_to_the_counter_whenever_its_series_is_present(
    steps: list[tuple[int, bool, bool]], workload: str | None
) -> None:
    """Each step: what is added, whether the series is in that collection, and whether the receiver accepts it."""
    deltas = Deltas()
    counted = received = expected = 0
    for number, (added, is_present, is_accepted) in enumerate(steps):
        counted += added
        time_ns = TIME_NS + number * 15_000_000_000
        if not is_present:
            growth(deltas, time_ns)
            continue
        point = Point(counted / 1e3, GPU, None if workload is None else identity(workload), START_NS)
        batch = growth(deltas, time_ns, point)
        if is_accepted:
            deltas.accept(batch)
            received += round(batch.blocks[0].points[0].value * 1e3)
            expected = counted
        assert received == expected


# ---------------------------------------------------------------------------- over a restart of the agent


def restarted(*points: Point) -> Deltas:
    """Deltas of an agent that continues the counters of an earlier run."""
    blocks: Mapping[str, list[Point]] = {ENERGY: [*points], "hw.power": [Point(5.0, GPU)]}
    return Deltas(lambda: collection(blocks))


def test_after_a_restart_the_first_delta_begins_where_counters_were_restored() -> None:
    deltas = restarted(energy(1000.0))
    assert delta(deltas, LATER_NS, energy(1000.5)) == (0.5, TIME_NS)
    accepted(deltas, LATER_NS, energy(1000.5))
    assert delta(deltas, LATER_NS + 1, energy(1001.0))[0] == 0.5


def test_a_series_that_began_after_the_restart_is_exported_in_full() -> None:
    deltas = restarted(energy(1000.0))
    new = energy(7.0, workload="new", start_ns=LATER_NS)
    successor = energy(3.0, start_ns=LATER_NS)
    assert delta(deltas, LATER_NS + 1, new)[0] == 7.0
    assert delta(deltas, LATER_NS + 1, successor) == (3.0, LATER_NS)


def test_restored_counters_are_requested_until_available() -> None:
    answers = [None, collection({ENERGY: [energy(2.0)]})]
    deltas = Deltas(lambda: answers.pop(0))
    for _ in range(3):
        growth(deltas, TIME_NS)
    assert answers == []
    assert delta(deltas, LATER_NS, energy(3.0))[0] == 1.0
