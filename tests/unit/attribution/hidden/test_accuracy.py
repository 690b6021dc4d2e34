"""Error of inferred memory on simulated hosts, mean percent per workload, compared with an equal split."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean, median

import pytest

from otel_gpu.attribution.hidden import HiddenMemory
from otel_gpu.attribution.keys import ProcessOnDevice
from tests.unit.attribution.hidden.worlds import DEVICE, FAMILIES, Errors, errors, looks, world


def average(family: str, *, mappings: bool, worlds: Iterable[tuple[int, int]]) -> Errors:
    """Mean over worlds, each given by its number of sharers and its seed."""
    found = [errors(family, sharers, seed, mappings=mappings) for sharers, seed in worlds]
    return Errors(mean(each.inferred for each in found), mean(each.equal for each in found))


SOME = [(2, 1), (4, 2), (6, 3), (8, 4)]
MORE = [(sharers, seed) for sharers in (2, 4, 6, 8) for seed in (1, 2)]


@pytest.mark.parametrize("mappings", [False, True])
@pytest.mark.parametrize("family", ["staggered", "open without memory"])
def test_candidates_that_arrive_one_by_one_and_allocate_at_once_are_found(family: str, mappings: bool) -> None:
    found = average(family, mappings=mappings, worlds=SOME)
    assert found.equal > 40.0
    assert found.inferred <= 2.0


def test_ramps_and_frees_one_by_one_are_found_within_fifteen_percent() -> None:
    assert average("ramps and frees", mappings=False, worlds=MORE).inferred <= 15.0


def test_overlapping_ramps_are_better_than_an_equal_split() -> None:
    found = average("overlapping ramps", mappings=False, worlds=MORE)
    assert found.inferred <= 0.8 * found.equal


def test_slow_growth_is_attributed_by_what_is_held() -> None:
    found = average("slow growth", mappings=False, worlds=SOME)
    assert found.inferred <= 0.5 * found.equal


@pytest.mark.parametrize("family", ["simultaneous", "late start"])
def test_without_information_it_is_no_worse_than_an_equal_split(family: str) -> None:
    found = average(family, mappings=False, worlds=SOME)
    assert found.inferred <= 1.01 * found.equal


@pytest.mark.parametrize("family", ["ramps and frees", "overlapping ramps", "slow growth"])
def test_mappings_show_which_workload_grew(family: str) -> None:
    assert average(family, mappings=True, worlds=SOME).inferred <= 3.0


@pytest.mark.parametrize("family", ["simultaneous", "late start"])
def test_mappings_show_at_the_first_look_what_each_workload_holds(family: str) -> None:
    found = average(family, mappings=True, worlds=SOME)
    assert found.inferred <= min(10.0, 0.5 * found.equal)


def test_confidence_reflects_the_error() -> None:
    off: dict[str, list[float]] = {"sure": [], "fair": [], "doubtful": []}
    for family in FAMILIES:
        for sharers, seed in ((3, 11), (7, 12)):
            memory = HiddenMemory()
            for look in looks(world(family, sharers, seed, mappings=False), FAMILIES[family].first_look_s):
                split = memory.observe(unknown_bytes=look.unknown_bytes, candidates=look.candidates, now_s=look.now_s)
            for key, held in look.true_bytes.items():
                part = split.inferred[ProcessOnDevice(key, DEVICE)]
                if held:
                    kind = "sure" if part.confidence >= 0.95 else "fair" if part.confidence >= 0.5 else "doubtful"
                    off[kind].append(100 * abs(part.bytes - held) / held)
    assert min(map(len, off.values())) >= 5
    assert median(off["sure"]) < 1.0
    assert median(off["sure"]) < median(off["fair"]) < median(off["doubtful"])
