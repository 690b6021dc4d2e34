"""A GPU without any work: time and energy are counted, and any change is attributed at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.model import GpuReading, GpuState, ListedProcess
from tests.builders import GIB, listed
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


def test_first_work_ends_idleness_at_once() -> None:
    played = settled()
    working = replace(quiet(played), utilization=played.rows((1, 30)))
    report = played.next(working, processes=PRESENT)
    assert (process(report, 1).state, process(report, 1).idle_s) == (GpuState.BUSY, 0.0)
    assert workload(report, WEB.id).state is GpuState.BUSY
    assert workload(report, JOB.id).state is not GpuState.BUSY
