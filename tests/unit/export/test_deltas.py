from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.export.deltas import Delta, Deltas, difference
from otel_gpu.metrics.points import Point
from tests.unit.export.samples import GPU, START_NS, TIME_NS, identity

LATER_NS = TIME_NS + 15_000_000_000


def energy(joules: float, *, start_ns: int | None = START_NS, workload: str = "w") -> Point:
    return Point(joules, GPU, identity(workload), start_ns)


def take(deltas: Deltas, *found: Delta) -> None:
    deltas.taken({each.key: each.told for each in found})


def test_the_first_delta_of_a_series_is_all_of_it_since_its_own_start() -> None:
    first = Deltas().of("gpu.workload.energy", energy(12.5), TIME_NS)
    assert (first.value, first.start_ns) == (12.5, START_NS)


def test_after_that_it_is_what_was_added_since_it_was_taken() -> None:
    deltas = Deltas()
    take(deltas, deltas.of("gpu.workload.energy", energy(12.5), TIME_NS))
    second = deltas.of("gpu.workload.energy", energy(12.75), LATER_NS)
    assert (second.value, second.start_ns) == (0.25, TIME_NS)


def test_what_was_not_taken_is_told_again_with_what_came_since() -> None:
    deltas = Deltas()
    take(deltas, deltas.of("gpu.workload.energy", energy(1.0), TIME_NS))
    deltas.of("gpu.workload.energy", energy(3.0), LATER_NS)
    again = deltas.of("gpu.workload.energy", energy(7.0), LATER_NS + 1)
    assert (again.value, again.start_ns) == (6.0, TIME_NS)


def test_series_are_told_apart_by_metric_workload_and_attributes() -> None:
    deltas = Deltas()
    take(deltas, deltas.of("gpu.workload.energy", energy(5.0), TIME_NS))
    other_metric = deltas.of("gpu.workload.idle.energy", energy(6.0), LATER_NS)
    other_workload = deltas.of("gpu.workload.energy", energy(6.0, workload="v"), LATER_NS)
    other_attributes = deltas.of(
        "gpu.workload.energy", Point(6.0, {**GPU, "x": "y"}, identity("w"), START_NS), LATER_NS
    )
    assert [each.value for each in (other_metric, other_workload, other_attributes)] == [6.0, 6.0, 6.0]


def test_a_successor_with_a_start_of_its_own_begins_anew_even_where_it_is_larger() -> None:
    deltas = Deltas()
    take(deltas, deltas.of("gpu.process.energy", energy(5.0), TIME_NS))
    successor = deltas.of("gpu.process.energy", energy(8.0, start_ns=TIME_NS + 1), LATER_NS)
    assert (successor.value, successor.start_ns) == (8.0, TIME_NS + 1)


def test_what_counts_since_before_anybody_can_tell_is_told_from_the_first_sight_on() -> None:
    deltas = Deltas()
    first = deltas.of("hw.errors", energy(40, start_ns=None), TIME_NS)
    assert (first.value, first.start_ns) == (0, TIME_NS)
    # Not taken: growth since the first sight is still told.
    second = deltas.of("hw.errors", energy(43, start_ns=None), LATER_NS)
    assert (second.value, second.start_ns) == (3, TIME_NS)


def test_a_counter_that_was_cleared_counts_from_zero() -> None:
    deltas = Deltas()
    take(deltas, deltas.of("hw.errors", energy(40, start_ns=None), TIME_NS))
    cleared = deltas.of("hw.errors", energy(2, start_ns=None), LATER_NS)
    assert (cleared.value, cleared.start_ns) == (2, TIME_NS)


def test_a_series_that_ends_is_forgotten() -> None:
    deltas = Deltas()
    kept, ended = (deltas.of("gpu.workload.energy", energy(1.0, workload=name), TIME_NS) for name in ("a", "b"))
    take(deltas, kept, ended)
    deltas.keep_only([kept.key])
    assert deltas.of("gpu.workload.energy", energy(3.0, workload="a"), LATER_NS).value == 2.0
    assert deltas.of("gpu.workload.energy", energy(3.0, workload="b"), LATER_NS).value == 3.0


@pytest.mark.parametrize(("after", "before", "expected"), [(0.3, 0.1, 0.2), (7, 4, 3), (1.1, 1, 0.1), (5, 2.5, 2.5)])
def test_numbers_are_subtracted_as_they_are_written(after: float, before: float, expected: float) -> None:
    assert difference(after, before) == expected


def test_whole_numbers_stay_whole() -> None:
    assert isinstance(difference(2**62 + 1, 1), int)


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.booleans()), min_size=1, max_size=30),
    st.sampled_from([(1e3, 3), (1e6, 6)]),
)
def test_deltas_that_were_taken_add_up_to_the_counter_and_none_is_negative(
    steps: list[tuple[int, bool]], unit: tuple[float, int]
) -> None:
    per_unit, _ = unit
    deltas = Deltas()
    counted = told = seen = 0
    until_ns = START_NS
    for number, (added, arrives) in enumerate(steps):
        counted += added
        found = deltas.of("gpu.workload.energy", energy(counted / per_unit), TIME_NS + number)
        assert found.value >= 0
        assert found.start_ns == until_ns
        if arrives:
            take(deltas, found)
            told += round(found.value * per_unit)
            seen, until_ns = counted, TIME_NS + number
        assert told == seen
