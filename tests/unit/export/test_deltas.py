from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.export.deltas import LONGEST_ABSENCE_NS, Delta, Deltas, difference
from otel_gpu.export.metrics_data import Encoder
from otel_gpu.metrics.points import Point
from tests.unit.export.samples import GPU, RESOURCES, START_NS, TIME_NS, collection, encoded, identity

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


def test_a_series_that_returns_is_not_told_twice_and_a_successor_is_told_in_full() -> None:
    deltas = Deltas()
    take(deltas, deltas.of("gpu.workload.energy", energy(12.0), TIME_NS))
    deltas.seen([], LATER_NS)
    for start_ns, expected in ((START_NS, 1.0), (START_NS - 5, 1.0), (START_NS + 5, 13.0)):
        assert deltas.of("gpu.workload.energy", energy(13.0, start_ns=start_ns), LATER_NS).value == expected


def test_a_workload_that_stays_away_is_forgotten_after_a_while() -> None:
    deltas = Deltas()
    kept, ended = (deltas.of("gpu.workload.energy", energy(1.0, workload=name), TIME_NS) for name in ("a", "b"))
    take(deltas, kept, ended)
    deltas.seen([kept.key], TIME_NS)
    deltas.seen([kept.key], TIME_NS + LONGEST_ABSENCE_NS + 1)
    assert deltas.of("gpu.workload.energy", energy(3.0, workload="a"), LATER_NS).value == 2.0
    assert deltas.of("gpu.workload.energy", energy(3.0, workload="b"), LATER_NS).value == 3.0


def test_one_that_comes_and_goes_has_its_absence_counted_anew() -> None:
    deltas = Deltas()
    found = deltas.of("gpu.workload.energy", energy(1.0), TIME_NS)
    take(deltas, found)
    for hours in range(1, 6):
        deltas.seen([], TIME_NS + hours * LONGEST_ABSENCE_NS)
        deltas.seen([found.key], TIME_NS + hours * LONGEST_ABSENCE_NS + 1)
    assert deltas.of("gpu.workload.energy", energy(3.0), LATER_NS).value == 2.0


def test_of_many_that_are_away_the_newest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_gpu.export.deltas.MOST_ABSENT", 10)
    deltas = Deltas()
    for number in range(100):
        take(deltas, deltas.of("gpu.workload.energy", energy(1.0, workload=str(number)), TIME_NS))
        deltas.seen([], TIME_NS + number)
    told = [deltas.of("gpu.workload.energy", energy(1.0, workload=str(n)), LATER_NS).value for n in range(100)]
    assert told == [1.0] * 90 + [0.0] * 10
    assert len(deltas._told) == 10


def test_a_gpu_is_remembered_for_good() -> None:
    deltas = Deltas()
    device = Point(40.0, GPU, None, START_NS)
    take(deltas, deltas.of("hw.energy", device, TIME_NS))
    for hours in range(48):
        deltas.seen([], TIME_NS + hours * LONGEST_ABSENCE_NS)
    assert deltas.of("hw.energy", Point(41.0, GPU, None, START_NS), LATER_NS).value == 1.0


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


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.booleans(), st.booleans()), min_size=1, max_size=40),
    st.sampled_from(["w", None]),
)
def test_deltas_add_up_to_the_counter_whenever_its_series_was_there(
    steps: list[tuple[int, bool, bool]], workload: str | None
) -> None:
    """Each step: what is added, whether the series is in that collection, and whether the receiver takes it."""
    deltas = Deltas()
    counted = told = seen = 0
    for number, (added, present, arrives) in enumerate(steps):
        counted += added
        time_ns = TIME_NS + number * 15_000_000_000
        if not present:
            deltas.seen([], time_ns)
            continue
        point = Point(counted / 1e3, GPU, None if workload is None else identity(workload), START_NS)
        found = deltas.of("gpu.workload.energy", point, time_ns)
        deltas.seen([found.key], time_ns)
        if arrives:
            take(deltas, found)
            told += round(found.value * 1e3)
            seen = counted
        assert told == seen


# ---------------------------------------------------------------------------- over a restart of the agent


def restarted(*points: Point) -> Deltas:
    """As an agent has them that goes on where another ended."""
    deltas = Deltas(lambda: collection({"gpu.workload.energy": points, "hw.power": [Point(5.0, GPU)]}))
    deltas.take_up()
    return deltas


def test_after_a_restart_the_first_delta_begins_where_counters_were_taken_up() -> None:
    deltas = restarted(energy(1000.0))
    first = deltas.of("gpu.workload.energy", energy(1000.5), LATER_NS)
    assert (first.value, first.start_ns) == (0.5, TIME_NS)
    take(deltas, first)
    assert deltas.of("gpu.workload.energy", energy(1001.0), LATER_NS + 1).value == 0.5


def test_who_came_after_that_is_told_whole() -> None:
    deltas = restarted(energy(1000.0))
    assert deltas.of("gpu.workload.energy", energy(7.0, workload="new", start_ns=LATER_NS), LATER_NS + 1).value == 7.0
    again = deltas.of("gpu.workload.energy", energy(3.0, start_ns=LATER_NS), LATER_NS + 1)
    assert (again.value, again.start_ns) == (3.0, LATER_NS), "a successor"


def test_what_is_taken_up_is_asked_for_until_it_is_known_and_then_no_more() -> None:
    answers = [None, collection({"gpu.workload.energy": [energy(2.0)]})]
    deltas = Deltas(lambda: answers.pop(0))
    for _ in range(3):
        deltas.take_up()
    assert answers == []
    assert deltas.of("gpu.workload.energy", energy(3.0), LATER_NS).value == 1.0


def test_a_request_after_a_restart_does_not_hold_the_whole_past() -> None:
    encoder = Encoder(RESOURCES, deltas=Deltas(lambda: collection({"gpu.workload.energy": [energy(1000.0)]})))
    (request,) = encoded(collection({"gpu.workload.energy": [energy(1001.0)]}, LATER_NS), encoder)
    (point,) = request.resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points
    assert (point.as_double, point.start_time_unix_nano) == (1.0, TIME_NS)
