"""Posting to the ledger over many cycles: departures, returns, overflow, and implausible figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from otel_gpu.attribution.cost import Prices
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.export.document import document, to_json
from otel_gpu.model import (
    OVERFLOW_PROCESS,
    OVERFLOW_WORKLOAD,
    DeviceMemory,
    GpuReading,
    GpuState,
    MethodEnergy,
    Report,
    UtilizationRead,
)
from tests.builders import GIB, facts, failed_gpu, gpu, listed, memory, mig
from tests.tables import render
from tests.unit.attribution.played import (
    CYCLE_MJ,
    CYCLE_S,
    JOB,
    WEB,
    Played,
    assert_adds_up,
    at_wall_ns,
    energy_mj,
    gpu_with,
    old,
    process,
    time_us,
    totals,
    workload,
)

LONG_CYCLES = 80  # 400 s: longer than the grace and the retention together
BOTH = (listed(1), listed(2))
SILENCES = pytest.mark.parametrize("silent", [(failed_gpu(0),), ()], ids=["failed", "not in the snapshot"])


# ---------------------------------------------------------------------------- a GPU that does not answer


@SILENCES
def test_a_running_process_has_not_left_a_gpu_that_does_not_answer(silent: tuple[GpuReading, ...]) -> None:
    played = Played()
    living = [old(1, WEB), old(2, JOB)]
    for _ in range(3):
        before = played.next(gpu_with(*BOTH), processes=living)
    for number in range(1, LONG_CYCLES + 1):
        report = played.next(*silent, processes=living)
        for pid in (1, 2):
            now, then = process(report, pid), process(before, pid)
            assert (now.active, now.memory_bytes, now.sm_ratio) == (True, None, None)
            assert energy_mj(now) == energy_mj(then)
            assert totals(now).unknown_us == totals(then).unknown_us + number * 5_000_000
    assert {1, 2} <= played.attributor.watched_pids
    after = played.next(gpu_with(*BOTH), processes=living)
    for pid, id_ in ((1, "web"), (2, "job")):
        assert energy_mj(process(after, pid)) == energy_mj(workload(after, id_)) > energy_mj(process(before, pid))
        assert totals(process(after, pid)).since_ns == totals(process(before, pid)).since_ns
    assert_adds_up(after)


@SILENCES
def test_energy_of_a_gpu_that_did_not_answer_in_between_is_estimated(silent: tuple[GpuReading, ...]) -> None:
    played = Played()
    played.next(gpu_with(listed(1)), processes=[old(1)])
    played.next(*silent, processes=[old(1)])
    report = played.next(gpu_with(listed(1)), processes=[old(1)])
    assert process(report, 1).energy == MethodEnergy(0, 2 * CYCLE_MJ, 0)


@SILENCES
def test_a_process_that_exits_while_its_gpu_does_not_answer_ends_and_is_dropped(silent: tuple[GpuReading, ...]) -> None:
    played = Played()
    for _ in range(2):
        played.next(gpu_with(*BOTH), processes=[old(1, WEB), old(2, JOB)])
    reports = [played.next(*silent, processes=[old(1, WEB)]) for _ in range(LONG_CYCLES)]
    dead = [[p.active for p in report.processes if p.key.pid == 2] for report in reports]
    assert dead[0] == [True], "nothing shows yet that it has left this GPU"
    assert dead[10] == [False]
    assert dead[-1] == []
    assert process(reports[-1], 1).active
    report = played.next(gpu_with(listed(1)), processes=[old(1, WEB)])
    assert [w.ref.id for w in report.workloads] == ["web"], "a dropped account gets no energy"
    assert energy_mj(process(report, 1)) == CYCLE_MJ // 2 + (LONG_CYCLES + 1) * CYCLE_MJ
    assert_adds_up(report)


def test_cost_neither_falls_nor_vanishes_while_the_gpu_is_absent() -> None:
    played = Played(AttributionOptions(prices=Prices("EUR", {"A100": 2.0}, kwh=0.3)))

    def costs(report: Report) -> list[float]:
        return [cost.amount for cost in workload(report, "web").costs]

    for _ in range(3):
        before = costs(played.next(gpu_with(listed(1)), processes=[old(1, WEB)]))
    assert sum(before) > 0
    for silent in ((), (), (failed_gpu(0),), ()):
        now = costs(played.next(*silent, processes=[old(1, WEB)]))
        assert len(now) == len(before)
        assert all(new >= was for new, was in zip(now, before, strict=True))
        before = now
    played.restart()
    now = costs(played.next(processes=[old(1, WEB)]))
    assert len(now) == len(before), "the name of the GPU survives a restart"


# ---------------------------------------------------------------------------- missing from the lists


def test_a_running_process_missing_from_the_lists_is_unknown_and_has_left_after_30_s() -> None:
    played = Played()
    for _ in range(3):
        before = process(played.next(gpu_with(*BOTH), processes=[old(1), old(2)]), 1)
    for number in range(1, 7):
        now = process(played.next(gpu_with(listed(2)), processes=[old(1), old(2)]), 1)
        assert (now.active, now.state, now.memory_bytes) == (True, GpuState.UNKNOWN, None)
        assert totals(now).unknown_us == totals(before).unknown_us + number * 5_000_000
    ended = process(played.next(gpu_with(listed(2)), processes=[old(1), old(2)]), 1)
    assert (ended.active, ended.state, ended.memory_bytes, ended.sm_ratio) == (False, None, 0, 0.0)
    assert time_us(ended) == time_us(now)
    for _ in range(10):
        back = process(played.next(gpu_with(*BOTH), processes=[old(1), old(2)]), 1)
    assert back.active
    assert totals(back).since_ns == totals(before).since_ns
    assert energy_mj(back) > energy_mj(ended) > 0
    assert time_us(back) == time_us(ended) + 10 * 5_000_000


def test_a_process_that_returns_after_its_account_was_dropped_starts_at_zero_after_the_drop() -> None:
    played = Played()
    for _ in range(3):
        played.next(gpu_with(*BOTH), processes=[old(1, WEB), old(2, JOB)])
    forgotten_ns = None
    for _ in range(LONG_CYCLES):
        report = played.next(gpu_with(listed(2)), processes=[old(1, WEB), old(2, JOB)])
        if forgotten_ns is None and all(each.key.pid != 1 for each in report.processes):
            forgotten_ns = at_wall_ns(played)
    assert forgotten_ns is not None
    report = played.next(gpu_with(*BOTH), processes=[old(1, WEB), old(2, JOB)])
    for part in (process(report, 1), workload(report, "web")):
        assert forgotten_ns < totals(part).since_ns <= at_wall_ns(played)
        assert energy_mj(part) == (part.energy.total_mj or 0) > 0
        assert time_us(part) <= 5_000_000
    assert_adds_up(report)


# ---------------------------------------------------------------------------- full ledger


@pytest.mark.parametrize("max_processes", [0, 1])
@pytest.mark.parametrize("max_workloads", [0, 1])
def test_the_overflow_account_has_the_use_of_its_processes_and_everything_adds_up(
    max_processes: int, max_workloads: int
) -> None:
    played = Played(AttributionOptions(max_processes=max_processes, max_workloads=max_workloads))
    three = [listed(pid, pid * GIB) for pid in (1, 2, 3)]
    for _ in range(4):
        reading = replace(gpu_with(*three), utilization=played.rows((2, 40), (3, 20)))
        report = played.next(reading, processes=[old(1), old(2, WEB), old(3, JOB)])
        assert_adds_up(report)
    shared_bytes = {0: 6 * GIB, 1: 5 * GIB}
    shared = process(report, OVERFLOW_PROCESS.pid)
    shared_workload = workload(report, OVERFLOW_WORKLOAD.id)
    assert shared.memory_bytes == shared_bytes[max_processes]
    assert shared_workload.measured_bytes == shared_bytes[max_workloads]
    for part in (shared, shared_workload):
        assert (part.active, part.state) == (True, GpuState.BUSY)
        assert part.sm_ratio == pytest.approx(0.6, abs=0.01)
        assert totals(part).busy_us > 0
        assert energy_mj(part) > 0
        assert totals(part).compute_us > 0
    assert sum(each.memory_bytes or 0 for each in report.processes) == 6 * GIB
    assert sum(part.measured_bytes or 0 for each in report.workloads for part in each.gpus) == 6 * GIB
    exported = document(report)
    assert OVERFLOW_WORKLOAD.id in [each["id"] for each in exported["workloads"]]
    assert sum(each["energy_mj"] for each in exported["processes"]) == CYCLE_MJ
    assert to_json(report)
    assert OVERFLOW_WORKLOAD.id in render(report)


def test_the_overflow_account_ends_with_its_last_process_and_continues_with_its_totals() -> None:
    played = Played(AttributionOptions(max_processes=0, max_workloads=0))
    for _ in range(3):
        before = played.next(gpu_with(listed(1)), processes=[old(1)])
    ended = played.next(gpu_with(), processes=[])
    assert not process(ended, OVERFLOW_PROCESS.pid).active
    assert not workload(ended, OVERFLOW_WORKLOAD.id).active
    for _ in range(LONG_CYCLES):
        played.next(gpu_with())
    for _ in range(2):
        again = played.next(gpu_with(listed(2)), processes=[old(2)])
    for now, was in (
        (process(again, OVERFLOW_PROCESS.pid), process(before, OVERFLOW_PROCESS.pid)),
        (workload(again, OVERFLOW_WORKLOAD.id), workload(before, OVERFLOW_WORKLOAD.id)),
    ):
        assert now.active
        assert energy_mj(now) > energy_mj(was)
        assert totals(now).since_ns == totals(was).since_ns
    assert_adds_up(again)


def test_a_workload_in_the_overflow_stays_there_over_a_restart_with_its_later_processes() -> None:
    played = Played(AttributionOptions(max_workloads=1))
    for _ in range(2):
        played.next(gpu_with(listed(1), listed(2)), processes=[old(1, WEB), old(2, JOB)])
    for _ in range(LONG_CYCLES):  # there is room by now
        played.next(gpu_with(listed(2)), processes=[old(2, JOB)])
    played.restart()
    report = played.next(gpu_with(listed(2), listed(3)), processes=[old(2, JOB), old(3, JOB)])
    assert "job" not in [each.ref.id for each in report.workloads]
    assert workload(report, OVERFLOW_WORKLOAD.id).measured_bytes == 2 * GIB


# ---------------------------------------------------------------------------- states


def test_a_workload_is_idle_although_a_process_without_memory_is_unknown() -> None:
    played = Played()
    for _ in range(4):
        reading = replace(gpu_with(listed(1, GIB), listed(2, 0)), utilization=played.rows())
        report = played.next(reading, processes=[old(1, WEB), old(2, WEB)])
    assert process(report, 2).state is GpuState.UNKNOWN
    assert workload(report, "web").state is GpuState.IDLE
    assert workload(report, "web").idle_bytes == GIB


def test_time_of_a_process_that_started_within_the_window_counts_from_its_start() -> None:
    played = Played()
    played.next(gpu_with())
    young = facts(1, WEB, start_ticks=300)  # 3 s after the first cycle
    report = played.next(gpu_with(listed(1)), processes=[young])
    assert time_us(process(report, 1)) == time_us(workload(report, "web")) == 2_000_000


# ---------------------------------------------------------------------------- implausible figures


def _used_more_than_there_is(_: Played) -> GpuReading:
    return gpu(0, BOTH, memory=DeviceMemory(80 * GIB, 90 * GIB, 0, 0))


def _holds_more_than_there_is(_: Played) -> GpuReading:
    return gpu(0, (listed(1, 1 << 63), listed(2)), memory=memory(used_gib=2, reserved_gib=0))


def _listed_twice(_: Played) -> GpuReading:
    return gpu(0, (*BOTH, listed(2)), memory=memory(used_gib=2, reserved_gib=0))


def _over_100_percent(played: Played) -> GpuReading:
    return replace(gpu_with(*BOTH), utilization=played.rows((1, 60), (2, 101)))


def _from_the_future(played: Played) -> GpuReading:
    now = played.rows((1, 60))
    later = [row._replace(pid=2, timestamp_us=row.timestamp_us + 60_000_000) for row in now.rows]
    return replace(gpu_with(*BOTH), utilization=UtilizationRead(now.since_us, now.read_at_us, (*now.rows, *later)))


def _counter_went_down(_: Played) -> GpuReading:
    return replace(gpu_with(*BOTH), energy_mj=0)


def _counter_jumped(_: Played) -> GpuReading:
    return replace(gpu_with(*BOTH), energy_mj=1 << 63)


@pytest.mark.parametrize(
    "bad",
    [
        _used_more_than_there_is,
        _holds_more_than_there_is,
        _listed_twice,
        _over_100_percent,
        _from_the_future,
        _counter_went_down,
        _counter_jumped,
    ],
)
def test_an_implausible_figure_is_counted_and_the_rest_of_the_cycle_is_intact(
    bad: Callable[[Played], GpuReading],
) -> None:
    played = Played()
    processes = [old(1, WEB), old(2, JOB), old(3)]

    def cycle(reading: GpuReading) -> Report:
        return played.next(reading, gpu_with(listed(3), index=1), processes=processes)

    for _ in range(2):
        before = cycle(gpu_with(*BOTH))
    assert before.anomalies == 0
    report = cycle(bad(played))
    assert report.anomalies == 1
    after = cycle(gpu_with(*BOTH))
    for earlier, later in ((before, report), (report, after)):
        assert_adds_up(later)
        for pid in (1, 2):
            assert energy_mj(process(later, pid)) >= energy_mj(process(earlier, pid)) >= 0
            assert process(later, pid).active
        for each in later.gpus:
            assert each.memory is not None
            assert each.memory.conservation_error_bytes == 0
        assert process(later, 3).energy == MethodEnergy(CYCLE_MJ, 0, 0), "the other GPU"
        assert energy_mj(process(later, 3)) == energy_mj(process(earlier, 3)) + CYCLE_MJ
    assert to_json(report)
    assert render(report)


def test_energy_of_a_counter_that_jumped_is_attributed_to_no_process() -> None:
    played = Played()
    for _ in range(2):
        before = played.next(gpu_with(listed(1)), processes=[old(1)])
    report = played.next(_counter_jumped(played), processes=[old(1), old(2)])
    assert energy_mj(process(report, 1)) == energy_mj(process(before, 1))
    after = played.next(gpu_with(listed(1)), processes=[old(1)])
    assert after.anomalies == 2, "it came back down, which is a reset"
    assert energy_mj(process(after, 1)) == energy_mj(process(before, 1))


def test_work_counts_for_a_process_on_two_devices_when_mig_is_switched_off() -> None:
    """The process is on the GPU and may still be on the instance. Its work counts in full."""
    played = Played()
    entry = listed(1, GIB, instance=(1, 0))
    for _ in range(3):
        divided = replace(gpu_with(entry), mig=(mig("MIG-1", (1, 0), [entry]),))
        played.next(divided, processes=[old(1)])
    played.next(replace(gpu_with(listed(1)), utilization=played.rows((1, 90))), processes=[old(1)])
    (known,) = played.attributor.to_state()["gpus"].values()
    assert len(known["here"]) == 2
    assert known["baseline"]["before"] is None  # not a cycle without work
    assert known["baseline"]["line"][1] == pytest.approx(0.9, rel=0.05)


# ---------------------------------------------------------------------------- a GPU without work


THREE = (listed(1, GIB), listed(2, 2 * GIB), listed(3, GIB))
RESTING = [old(1, WEB), old(2, WEB), old(3, JOB)]


def resting() -> Played:
    """A GPU that has been without work for some cycles."""
    played = Played()
    for _ in range(5):
        played.next(replace(gpu_with(*THREE), utilization=played.rows()), processes=RESTING)
    return played


def test_time_memory_and_energy_are_counted_while_all_processes_stay_idle() -> None:
    played = resting()
    before = played.next(replace(gpu_with(*THREE), utilization=played.rows()), processes=RESTING)
    report = before
    for _ in range(3):
        report = played.next(replace(gpu_with(*THREE), utilization=played.rows()), processes=RESTING)
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
    played = resting()
    working = replace(gpu_with(*THREE), utilization=played.rows((1, 30)))
    report = played.next(working, processes=RESTING)
    assert (process(report, 1).state, process(report, 1).idle_s) == (GpuState.BUSY, 0.0)
    assert workload(report, WEB.id).state is GpuState.BUSY
    assert workload(report, JOB.id).state is not GpuState.BUSY
