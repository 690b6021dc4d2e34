"""Which candidates continue to grow and which stop, where only the total can be read."""

from __future__ import annotations

import json

import pytest

from otel_gpu.attribution.hidden import HiddenMemory
from tests.unit.attribution.hidden.test_inference import Gpu, gib, opened, pid


@pytest.fixture
def growing() -> Gpu:
    """One process that grows by 1 GiB a poll and has 5.5, and one that grows by half and has 1."""
    gpu = Gpu()
    gpu.sees(0)
    for poll in range(4):
        gpu.sees(poll + 0.5, opened(1, 5.0 * poll + 2))
    gpu.sees(5, opened(1, 22.0), opened(2, 2.0))
    assert gib(gpu.sees(6.5, opened(1, 27.0), opened(2, 7.0)), pid(1), pid(2)) == [5.5, 1]
    return gpu


@pytest.mark.parametrize(
    ("sums", "expected"),
    [((7.7, 8.7, 9.7), [8.5, 1.2]), ((7.4, 7.9, 8.4), [5.9, 2.5])],
    ids=["the slow one", "the fast one"],
)
def test_the_candidate_that_stops_is_found_by_how_much_slower_the_total_grows(
    growing: Gpu, sums: tuple[float, ...], expected: list[float]
) -> None:
    for later, unknown in enumerate(sums):
        split = growing.sees(unknown, opened(1, 32.0 + 5 * later), opened(2, 12.0 + 5 * later))
    assert gib(split, pid(1), pid(2)) == expected


def test_growth_after_a_pause_belongs_to_those_that_grew_before(growing: Gpu) -> None:
    growing.sees(7.25, opened(1), opened(2))
    growing.sees(8.75, opened(1), opened(2))
    assert gib(growing.sees(10.25, opened(1), opened(2)), pid(1), pid(2)) == [8, 2.25]


def test_an_arrival_does_not_get_less_because_others_slow_down(growing: Gpu) -> None:
    growing.sees(7, opened(1), opened(2))
    split = growing.sees(9.5, opened(1), opened(2), opened(3, 2.0))
    assert gib(split, pid(1), pid(2), pid(3)) == [6.1667, 1.3333, 2]


def test_a_restart_while_a_rise_waits_changes_nothing(growing: Gpu) -> None:
    growing.sees(7.7, opened(1), opened(2))
    growing.memory = HiddenMemory.from_state(json.loads(json.dumps(growing.memory.to_state())))
    assert gib(growing.sees(8.7, opened(1), opened(2)), pid(1), pid(2)) == [7.5, 1.2]


def test_growth_within_the_dead_band_has_a_pace_too() -> None:
    gpu = Gpu()
    gpu.sees(4, opened(1))
    for unknown in (4.02, 4.04):
        gpu.sees(unknown, opened(1), opened(2, 2.0))
    split = gpu.sees(5.06, opened(1), opened(2), opened(3, 2.0))
    assert gib(split, pid(1), pid(2), pid(3)) == [4, 0.06, 1]


def test_growth_before_the_search_does_not_go_to_later_arrivals() -> None:
    gpu = Gpu()
    for unknown in (0, 0.1, 0.2):
        gpu.sees(unknown)
    split = gpu.sees(0.5, opened(1, 17.0), opened(2, 2.0))
    assert gib(split, pid(1), pid(2)) == [0.3, 0.2]


def test_slow_growth_before_the_search_is_growth() -> None:
    gpu = Gpu()
    for poll in range(31):
        gpu.sees(poll * 0.02)
    split = gpu.sees(0.62, opened(1, 160.0), opened(2, 2.0))
    assert gib(split, pid(1), pid(2)) == [0, 0], "too much: candidates were looked for by then"
    gpu = Gpu()
    for poll in range(11):
        gpu.sees(poll * 0.02)
    split = gpu.sees(0.52, opened(1, 52.0), opened(2, 2.0))
    assert gib(split, pid(1), pid(2)) == [0.22, 0.3]


def test_growth_before_the_search_is_divided_by_mappings_where_these_are_readable() -> None:
    gpu = Gpu()
    for unknown in (0, 0.1, 0.2):
        gpu.sees(unknown)
    split = gpu.sees(0.5, opened(1, 17.0, mapping=0.2), opened(2, 2.0, mapping=0.4))
    assert gib(split, pid(1), pid(2)) == [0.1667, 0.3333]


def test_growing_candidates_may_depart_while_a_rise_waits(growing: Gpu) -> None:
    growing.sees(7, opened(1), opened(2))
    assert gib(growing.sees(1, opened(3, 2.0)), pid(3)) == [1]
