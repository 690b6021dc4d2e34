"""Unknown is not zero, not idle and not exclusive: missing figures, and signs of unseen processes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from otel_gpu.attribution.cost import Prices
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.model import AccountingRecord, GpuReading, GpuState, WorkloadNames
from tests.builders import GIB, WALL_NS, facts, gpu, listed, memory, mig, snapshot
from tests.unit.attribution.played import JOB, WEB, Played, gpu_with, old, process, totals, workload


def test_unreadable_lists_end_no_running_process_and_report_no_memory() -> None:
    played = Played()
    for _ in range(2):
        played.next(gpu_with(listed(1)), processes=[old(1, WEB)])
    for _ in range(20):
        report = played.next(replace(gpu_with(), processes=None), processes=[old(1, WEB)])
        assert process(report, 1).active
        assert process(report, 1).memory_bytes is None
    report = played.next(replace(gpu_with(), processes=None), processes=[])
    for _ in range(8):
        report = played.next(replace(gpu_with(), processes=None), processes=[])
    assert not process(report, 1).active, "a process gone from /proc for longer than the grace period has left"


def test_a_workload_with_a_missing_process_is_not_idle_and_has_no_idle_time() -> None:
    played = Played()
    for cycle in range(9):
        here = [listed(1), listed(2)] if cycle < 3 else [listed(1)]
        rows = played.rows((2, 50)) if cycle < 3 else played.rows()
        report = played.next(replace(gpu_with(*here), utilization=rows), processes=[old(1, WEB), old(2, WEB)])
        assert workload(report, "web").state is not GpuState.IDLE
    assert totals(workload(report, "web")).idle_us == 0


@pytest.mark.parametrize(
    ("used_gib", "expected_mj"),
    [((1, 10, 1), [0, 0]), ((10, 1, 1), [0, 1_000_000])],
    ids=["in the middle", "at the start"],
)
def test_energy_is_not_measured_where_memory_is_unexplained_at_either_end_of_the_interval(
    used_gib: tuple[int, ...], expected_mj: list[int]
) -> None:
    played = Played()
    measured = []
    for used in used_gib:
        reading = gpu(0, [listed(1, GIB)], memory=memory(used_gib=used, reserved_gib=0))
        measured.append(process(played.next(reading, processes=[old(1, WEB)]), 1).energy.measured_mj)
    assert measured[1:] == expected_mj


def test_unexplained_memory_in_any_cycle_of_an_interval_counts_for_the_whole_interval() -> None:
    played = Played()
    report = None
    for number, (used, energy_mj) in enumerate(((1, 1000), (10, None), (1, 2_000_000))):
        reading = gpu(0, [listed(1, GIB)], memory=memory(used_gib=used, reserved_gib=0), energy_mj=energy_mj)
        taken = snapshot(replace(reading, power_limit_w=400.0), processes=[old(1, WEB)], at_s=5 * number)
        report = played.attributor.observe(taken)
    assert report is not None
    assert process(report, 1).energy.measured_mj == 0
    assert process(report, 1).energy.estimated_mj == 1_999_000


def test_energy_is_not_measured_where_a_process_came_and_went_between_two_cycles() -> None:
    played = Played()
    for _ in range(2):
        played.next(gpu_with(listed(1)), processes=[old(1, WEB)])
    start_us = WALL_NS // 1000 + round((played.at_s + 0.5) * 1e6)
    visit = AccountingRecord(77, start_us, 4000, 90, None, None, running=False)
    report = played.next(replace(gpu_with(listed(1)), accounting=(visit,)), processes=[old(1, WEB)])
    assert process(report, 1).energy.measured_mj == 0
    assert process(report, 1).energy.estimated_mj == 1_000_000
    report = played.next(replace(gpu_with(listed(1)), accounting=()), processes=[old(1, WEB)])
    assert process(report, 1).energy.measured_mj == 1_000_000


def test_instances_with_unreadable_lists_are_not_empty() -> None:
    played = Played()
    unreadable = gpu(0, None, memory=None, mig=[mig("MIG-1", (1, 0), None), mig("MIG-2", (2, 0), ())])
    for _ in range(5):
        report = played.next(unreadable)
    [device] = report.gpus
    assert device.energy is not None
    assert (device.energy.idle_mj, device.energy.unattributed_mj) == (0, 1_000_000)
    assert device.basis is not None
    assert device.basis.idle_power_origin != "observed"


def test_state_is_bounded_where_no_energy_is_reported() -> None:
    played = Played()
    sizes = []
    for cycle in range(600):
        pid = 1000 + cycle
        taken = snapshot(gpu_with(listed(pid)), processes=[facts(pid, WEB, start_ticks=cycle + 1)], at_s=5 * cycle)
        played.attributor.observe(taken)
        if cycle % 100 == 99:
            sizes.append(len(json.dumps(played.attributor.to_state()["gpus"])))
    assert max(sizes) <= 1.1 * sizes[0]


def test_a_negative_figure_of_memory_is_none_and_is_counted() -> None:
    played = Played()
    reading = gpu(0, [listed(1, -5 * GIB), listed(2, 3 * GIB)], memory=memory(used_gib=4, reserved_gib=0))
    report = played.next(reading, processes=[old(1, WEB), old(2, WEB)])
    assert process(report, 1).memory_bytes is None
    assert workload(report, "web").measured_bytes == 3 * GIB
    assert report.anomalies == 1


def test_in_a_full_ledger_a_renamed_workload_still_has_a_successor_of_its_own() -> None:
    played = Played(AttributionOptions(max_processes=2, max_workloads=2))
    for cycle in range(80):
        names = {"web": WorkloadNames(container="old" if cycle < 3 else "new"), "job": WorkloadNames(container="job")}
        report = played.next(
            gpu_with(listed(1), listed(2)), processes=[old(1, WEB), old(2, JOB)], names=names, looked_up=True
        )
    assert [(each.ref.id, each.naming) for each in report.workloads] == [("job", 0), ("web", 1)]
    assert [(each.key.pid, each.workload.id, each.naming) for each in report.processes] == [
        (1, "web", 1),
        (2, "job", 0),
    ]


def test_two_workloads_that_share_a_gpu_for_an_hour_are_billed_one_hour_together() -> None:
    played = Played(AttributionOptions(prices=Prices("EUR", {"": 2.0})))
    for _ in range(721):
        reading = replace(gpu_with(listed(1), listed(2)), utilization=played.rows((1, 50), (2, 50)))
        report = played.next(reading, processes=[old(1, WEB), old(2, JOB)])
    paid = {w.ref.id: sum(cost.amount for part in w.gpus for cost in part.costs) for w in report.workloads}
    assert paid == pytest.approx({"web": 1.0, "job": 1.0})


def with_rows(played: Played, *work: tuple[int, int]) -> GpuReading:
    return replace(gpu_with(listed(1), listed(2)), utilization=played.rows(*work))


def test_implausible_work_does_not_count_as_no_work_in_the_division_of_energy() -> None:
    played = Played()
    for _ in range(3):
        report = played.next(with_rows(played, (1, 150), (2, 50)), processes=[old(1, WEB), old(2, JOB)])
    assert process(report, 1).energy.estimated_mj == process(report, 2).energy.estimated_mj == 500_000


def test_a_process_next_to_a_neighbour_with_unknown_work_is_not_idle() -> None:
    played = Played()
    for _ in range(6):
        report = played.next(with_rows(played, (1, 150)), processes=[old(1, WEB), old(2, JOB)])
    assert process(report, 2).state is GpuState.UNKNOWN


def test_energy_is_not_measured_where_an_unknown_pid_has_an_implausible_row() -> None:
    played = Played()
    for _ in range(3):
        reading = replace(gpu_with(listed(1)), utilization=played.rows((1, 50), (77, 150)))
        report = played.next(reading, processes=[old(1, WEB)])
    assert process(report, 1).energy.measured_mj == 0
