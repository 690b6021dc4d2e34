"""A GPU without any work: time and energy are counted, and any change is attributed at once."""

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
PRESENT = [old_process(1, WEB), old_process(2, WEB), old_process(3, JOB)]
QUIET_CYCLES = 5


def quiet(played: Played, *, entries: tuple[ListedProcess, ...] = LISTED) -> GpuReading:
    return replace(gpu_with(*entries), utilization=played.rows())


def settled(options: AttributionOptions | None = None) -> Played:
    """A GPU that has been without work for some cycles."""
    played = Played(options)
    for _ in range(QUIET_CYCLES):
        played.next(quiet(played), processes=PRESENT)
    return played


def test_time_memory_and_energy_are_counted_while_all_processes_stay_idle() -> None:
    played = settled()
    before = played.next(quiet(played), processes=PRESENT)
    report = before
    for _ in range(3):
        report = played.next(quiet(played), processes=PRESENT)
        assert_adds_up(report)
    time_us = round(3 * CYCLE_S * 1e6)
    for pid, held_bytes, part_mj in ((1, GIB, CYCLE_MJ // 4), (2, 2 * GIB, CYCLE_MJ // 4), (3, GIB, CYCLE_MJ // 2)):
        was, now = totals(process(before, pid)), totals(process(report, pid))
        assert now.idle_us - was.idle_us == time_us
        assert now.idle_byte_us - was.idle_byte_us == time_us * held_bytes
        assert now.idle_mj - was.idle_mj == 3 * part_mj
        assert (now.busy_us, now.unknown_us) == (was.busy_us, was.unknown_us)
        assert process(report, pid).energy.estimated_mj == part_mj
        assert process(report, pid).idle_s == pytest.approx((process(before, pid).idle_s or 0) + 3 * CYCLE_S)
    for ref in (WEB, JOB):
        was, now = totals(workload(before, ref.id)), totals(workload(report, ref.id))
        assert now.billed_idle_us - was.billed_idle_us == time_us // 2
        assert now.idle_mj - was.idle_mj == 3 * CYCLE_MJ // 2


Change = Callable[[Played], Report]


def after(edit: Callable[[GpuReading], GpuReading], processes: list[ProcessFacts] | None = None) -> Change:
    return lambda played: played.next(edit(quiet(played)), processes=processes or PRESENT)


CHANGES: dict[str, Change] = {
    "a process works": lambda played: played.next(
        replace(quiet(played), utilization=played.rows((1, 30))), processes=PRESENT
    ),
    "utilisation is not reported": after(lambda reading: replace(reading, utilization=None)),
    "memory grows": lambda played: played.next(quiet(played, entries=(listed(1, 2 * GIB), *LISTED[1:]))),
    "a process holds no memory": lambda played: played.next(quiet(played, entries=(listed(1, 0), *LISTED[1:]))),
    "a process leaves": lambda played: played.next(quiet(played, entries=LISTED[1:]), processes=PRESENT[1:]),
    "lists are not reported": after(lambda reading: replace(reading, processes=None)),
    "the counter does not advance": after(
        lambda reading: replace(reading, energy_mj=round(QUIET_CYCLES * 1e6) - 999_999)
    ),
    "the counter is reset": after(lambda reading: replace(reading, energy_mj=0)),
    "no energy is reported": after(lambda reading: replace(reading, energy_mj=-1)),
    "the GPU is lost": lambda played: played.next(failed_gpu(0), processes=PRESENT),
    "memory is hidden": lambda played: played.next(
        replace(gpu_with(*LISTED, used_gib=20), utilization=played.rows()), processes=PRESENT
    ),
    "the GPU is granted": lambda played: played.next(
        quiet(played), processes=PRESENT, grants=[Grant(replace(WEB, id="new"), "GPU-0")]
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_after_quiet_cycles_is_attributed_as_by_a_restarted_attributor(change: Change) -> None:
    straight, restarted = settled(), settled()
    for _ in range(3):
        restarted.restart()
        assert change(restarted) == change(straight)
        restarted.restart()
        assert restarted.next(quiet(restarted), processes=PRESENT) == straight.next(quiet(straight), processes=PRESENT)
        assert restarted.attributor.to_state() == straight.attributor.to_state()


def leaves_without_energy(played: Played) -> Report:
    """A process leaves, and no energy is reported for two cycles: its part is in the third."""
    for _ in range(2):
        played.next(replace(quiet(played, entries=LISTED[1:]), energy_mj=-1), processes=PRESENT[1:])
    return played.next(quiet(played, entries=LISTED[1:]), processes=PRESENT[1:])


def empties_in_no_time(played: Played) -> Report:
    """A process frees its memory, and two cycles have the same time."""
    played.at_s -= CYCLE_S
    entries = (listed(1, 0), *LISTED[1:])
    played.next(quiet(played, entries=entries), processes=PRESENT)
    played.next(quiet(played, entries=entries), processes=PRESENT)
    return played.next(quiet(played, entries=entries), processes=PRESENT)


@pytest.mark.parametrize("change", [leaves_without_energy, empties_in_no_time])
def test_a_change_over_several_cycles_is_attributed_as_by_a_restarted_attributor(change: Change) -> None:
    straight, restarted = settled(), settled()
    observe = Attributor.observe

    def restart_and_observe(attributor: Attributor, taken: Snapshot) -> Report:
        """Observe after a restart: nothing is remembered but what is saved."""
        known = restarted.attributor.to_state()
        restarted.attributor = Attributor.from_state(restarted.options, known, now_ns=known["at_ns"], same_boot=True)
        return observe(restarted.attributor, taken)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Attributor, "observe", restart_and_observe)
        expected = change(restarted)
    assert change(straight) == expected
    assert_adds_up(expected)


def test_first_work_ends_idleness_at_once() -> None:
    played = settled()
    working = replace(quiet(played), utilization=played.rows((1, 30)))
    report = played.next(working, processes=PRESENT)
    assert (process(report, 1).state, process(report, 1).idle_s) == (GpuState.BUSY, 0.0)
    assert workload(report, WEB.id).state is GpuState.BUSY
    assert workload(report, JOB.id).state is not GpuState.BUSY
