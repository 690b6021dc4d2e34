"""A GPU on which nothing happens: time and energy go on, and whatever happens after that is seen at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.model import GpuReading, GpuState, Grant, ListedProcess, ProcessFacts, Report, Snapshot
from tests.builders import GIB, failed_gpu, listed
from tests.unit.attribution.played import (
    CYCLE_MJ,
    CYCLE_S,
    JOB,
    WEB,
    Played,
    assert_adds_up,
    gpu_with,
    process,
    totals,
    workload,
)
from tests.unit.attribution.played import old as old_process

LISTED = (listed(1, GIB), listed(2, 2 * GIB), listed(3, GIB))
THERE = [old_process(1, WEB), old_process(2, WEB), old_process(3, JOB)]
QUIET_CYCLES = 5


def quiet(played: Played, *, entries: tuple[ListedProcess, ...] = LISTED) -> GpuReading:
    return replace(gpu_with(*entries), utilization=played.rows())


def settled(options: AttributionOptions | None = None) -> Played:
    """A GPU that has been quiet for a while."""
    played = Played(options)
    for _ in range(QUIET_CYCLES):
        played.next(quiet(played), processes=THERE)
    return played


def test_where_everybody_stays_idle_time_memory_and_energy_are_counted_on() -> None:
    played = settled()
    before = played.next(quiet(played), processes=THERE)
    answer = before
    for _ in range(3):
        answer = played.next(quiet(played), processes=THERE)
        assert_adds_up(answer)
    time_us = round(3 * CYCLE_S * 1e6)
    for pid, held_bytes, part_mj in ((1, GIB, CYCLE_MJ // 4), (2, 2 * GIB, CYCLE_MJ // 4), (3, GIB, CYCLE_MJ // 2)):
        was, now = totals(process(before, pid)), totals(process(answer, pid))
        assert now.idle_us - was.idle_us == time_us
        assert now.idle_byte_us - was.idle_byte_us == time_us * held_bytes
        assert now.idle_mj - was.idle_mj == 3 * part_mj
        assert (now.busy_us, now.unknown_us) == (was.busy_us, was.unknown_us)
        assert process(answer, pid).energy.estimated_mj == part_mj
        assert process(answer, pid).idle_s == pytest.approx((process(before, pid).idle_s or 0) + 3 * CYCLE_S)
    for ref in (WEB, JOB):
        was, now = totals(workload(before, ref.id)), totals(workload(answer, ref.id))
        assert now.billed_idle_us - was.billed_idle_us == time_us // 2
        assert now.idle_mj - was.idle_mj == 3 * CYCLE_MJ // 2


Happens = Callable[[Played], Report]


def after(change: Callable[[GpuReading], GpuReading], processes: list[ProcessFacts] | None = None) -> Happens:
    return lambda played: played.next(change(quiet(played)), processes=processes or THERE)


SOMETHING: dict[str, Happens] = {
    "somebody works": lambda played: played.next(
        replace(quiet(played), utilization=played.rows((1, 30))), processes=THERE
    ),
    "nobody tells who works": after(lambda reading: replace(reading, utilization=None)),
    "memory moves": lambda played: played.next(quiet(played, entries=(listed(1, 2 * GIB), *LISTED[1:]))),
    "somebody holds nothing": lambda played: played.next(quiet(played, entries=(listed(1, 0), *LISTED[1:]))),
    "somebody leaves": lambda played: played.next(quiet(played, entries=LISTED[1:]), processes=THERE[1:]),
    "nobody is listed": after(lambda reading: replace(reading, processes=None)),
    "the counter stands still": after(lambda reading: replace(reading, energy_mj=round(QUIET_CYCLES * 1e6) - 999_999)),
    "the counter begins anew": after(lambda reading: replace(reading, energy_mj=0)),
    "no energy is told": after(lambda reading: replace(reading, energy_mj=-1)),
    "the GPU is lost": lambda played: played.next(failed_gpu(0), processes=THERE),
    "memory is hidden": lambda played: played.next(
        replace(gpu_with(*LISTED, used_gib=20), utilization=played.rows()), processes=THERE
    ),
    "somebody is given the GPU": lambda played: played.next(
        quiet(played), processes=THERE, grants=[Grant(replace(WEB, id="new"), "GPU-0")]
    ),
}


@pytest.mark.parametrize("happens", SOMETHING.values(), ids=SOMETHING)
def test_what_happens_after_a_quiet_time_is_what_it_would_be_to_somebody_who_has_just_begun(happens: Happens) -> None:
    straight, restarted = settled(), settled()
    for _ in range(3):
        restarted.restart()
        assert happens(restarted) == happens(straight)
        restarted.restart()
        assert restarted.next(quiet(restarted), processes=THERE) == straight.next(quiet(straight), processes=THERE)
        assert restarted.attributor.to_state() == straight.attributor.to_state()


def leaves_untold(played: Played) -> Report:
    """Somebody leaves, and no energy is told for two cycles: its part is in the third one's."""
    for _ in range(2):
        played.next(replace(quiet(played, entries=LISTED[1:]), energy_mj=-1), processes=THERE[1:])
    return played.next(quiet(played, entries=LISTED[1:]), processes=THERE[1:])


def empties_in_no_time(played: Played) -> Report:
    """Somebody gives its memory back, and two cycles are of one moment."""
    played.at_s -= CYCLE_S
    entries = (listed(1, 0), *LISTED[1:])
    played.next(quiet(played, entries=entries), processes=THERE)
    played.next(quiet(played, entries=entries), processes=THERE)
    return played.next(quiet(played, entries=entries), processes=THERE)


@pytest.mark.parametrize("happens", [leaves_untold, empties_in_no_time])
def test_what_takes_several_cycles_after_a_quiet_time_is_seen_in_the_last_of_them(happens: Happens) -> None:
    straight, restarted = settled(), settled()
    observe = Attributor.observe

    def anew(attributor: Attributor, world: Snapshot) -> Report:
        """Remembers nothing but what is saved."""
        known = restarted.attributor.to_state()
        restarted.attributor = Attributor.from_state(restarted.options, known, now_ns=known["at_ns"], same_boot=True)
        return observe(restarted.attributor, world)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Attributor, "observe", anew)
        expected = happens(restarted)
    assert happens(straight) == expected
    assert_adds_up(expected)


def test_first_work_ends_idleness_at_once() -> None:
    played = settled()
    working = replace(quiet(played), utilization=played.rows((1, 30)))
    answer = played.next(working, processes=THERE)
    assert (process(answer, 1).state, process(answer, 1).idle_s) == (GpuState.BUSY, 0.0)
    assert workload(answer, WEB.id).state is GpuState.BUSY
    assert workload(answer, JOB.id).state is not GpuState.BUSY
