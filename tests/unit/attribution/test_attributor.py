"""The attribution rules together: energy that must not count as measured, and energy that must not be lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.attribution.options import AttributionOptions, EnergyPolicy
from otel_gpu.export.document import document
from otel_gpu.model import (
    GpuReading,
    ListedProcess,
    MethodEnergy,
    Report,
)
from tests.builders import CONTAINER, GIB, facts, failed_gpu, gpu, listed, memory
from tests.tables import render
from tests.unit.attribution.played import Played, old


def energy(report: Report, pid: int) -> MethodEnergy:
    return next(process.energy for process in report.processes if process.key.pid == pid)


def one(*processes: ListedProcess, used_gib: float = 1.0) -> GpuReading:
    return gpu(0, processes, memory=memory(used_gib=used_gib, reserved_gib=0))


def test_one_process_alone_is_measured_from_the_first_interval_on() -> None:
    played = Played()
    played.next(one(listed(1)), processes=[old(1)])
    assert energy(played.next(one(listed(1)), processes=[old(1)]), 1) == MethodEnergy(1_000_000, 0, 0)


def test_energy_is_not_measured_where_memory_is_unexplained() -> None:
    played = Played()
    for _ in range(2):
        report = played.next(one(listed(1), used_gib=30), processes=[old(1)])
    assert energy(report, 1).measured_mj == 0


def test_energy_is_not_measured_in_a_private_pid_namespace() -> None:
    played = Played()
    for _ in range(3):
        report = played.next(one(listed(1)), processes=[old(1)], complete=False)
    assert energy(report, 1).measured_mj == 0


def test_energy_is_not_measured_where_an_unknown_pid_used_any_engine() -> None:
    played = Played()
    for _ in range(2):
        reading = replace(one(listed(1)), utilization=played.rows((1, 50, 5), (4242, 0, 30)))
        report = played.next(reading, processes=[old(1)])
    assert energy(report, 1).measured_mj == 0


def test_energy_is_not_measured_over_a_cycle_without_an_answer_of_the_gpu() -> None:
    played = Played()
    played.next(one(listed(1)), processes=[old(1)])
    played.next(failed_gpu(0), processes=[old(1)])
    report = played.next(one(listed(1)), processes=[old(1)])
    assert energy(report, 1) == MethodEnergy(0, 2_000_000, 0)


def test_energy_is_not_measured_while_a_neighbour_is_missing_from_the_lists_and_alive() -> None:
    played = Played()
    both, two = one(listed(1), listed(2)), [old(1), old(2)]
    played.next(both, processes=two)
    for _ in range(3):
        report = played.next(one(listed(1)), processes=two)
        assert energy(report, 1).measured_mj == 0


def test_energy_is_not_idle_where_process_lists_may_be_incomplete() -> None:
    for reading, complete in ((one(), False), (gpu(0, None), True)):
        played = Played()
        played.next(reading, complete=complete)
        report = played.next(reading, complete=complete)
        assert report.gpus[0].energy is not None
        assert (report.gpus[0].energy.idle_mj, report.gpus[0].energy.unattributed_mj) == (0, 1_000_000)
        for _ in range(6):
            report = played.next(reading, complete=complete)
        assert report.gpus[0].basis is not None
        assert report.gpus[0].basis.idle_power_origin == "assumed"


def test_rows_of_a_reused_pid_belong_to_the_process_that_has_it_now() -> None:
    played = Played()
    played.next(one(listed(1), listed(2)), processes=[old(1), old(2)])
    new = facts(1, CONTAINER, start_ticks=400)
    reading = replace(one(listed(1), listed(2)), utilization=played.rows((1, 80, 5), (2, 20, 5)))
    report = played.next(reading, processes=[new, old(2)])
    after = {process.key.start_ticks: process for process in report.processes if process.key.pid == 1}
    assert after[400].totals is not None
    assert after[400].totals.compute_us > 0
    assert (after[400].energy.total_mj or 0) > 0
    assert 1 not in after, "a process whose pid was reused is no longer reported"


def test_the_document_sums_to_the_attributed_energy_when_a_process_ends_in_the_window() -> None:
    played = Played()
    played.next(one(listed(1), listed(2)), processes=[old(1), old(2)])
    report = played.next(one(listed(1)), processes=[old(1)])
    exported = document(report)
    whole = exported["gpus"][0]["energy"]["attributed_mj"]
    assert whole == 1_000_000
    assert sum(process["energy_mj"] for process in exported["processes"]) == whole
    assert sum(sum(part["energy_mj"].values()) for w in exported["workloads"] for part in w["gpus"]) == whole


def test_a_process_whose_retention_ends_with_a_long_interval_is_reported_with_its_energy() -> None:
    played = Played(AttributionOptions(retention_s=10))
    played.next(one(listed(1)), processes=[old(1)])
    played.next(replace(one(listed(1)), energy_mj=-1), processes=[old(1)])  # a figure that cannot be true
    for _ in range(3):  # it left with the first of these, 15 s before the next figure
        played.next(replace(one(), energy_mj=-1))
    report = played.next(one())
    process_mj = energy(report, 1).total_mj
    divided = report.gpus[0].energy
    assert process_mj
    assert divided is not None
    assert process_mj + (divided.idle_mj or 0) + (divided.unattributed_mj or 0) == divided.delta_mj


def test_a_gpu_that_is_merely_open_is_not_used() -> None:
    """CUDA opens the device node of every GPU it may see."""
    played = Played()
    everywhere = old(1)._replace(gpu_minors_open=frozenset({0, 1}), uvm_open=True)
    resting = gpu(1, (), memory=memory(used_gib=0.004, reserved_gib=0))
    for _ in range(2):
        report = played.next(one(listed(1)), resting, processes=[everywhere])
    assert [process.gpu_uuid for process in report.processes] == ["GPU-0"]
    assert report.gpus[1].energy is not None
    assert report.gpus[1].energy.idle_mj == 1_000_000


def test_by_sm_share_work_of_unknown_pids_takes_its_part_of_static_energy() -> None:
    played = Played(AttributionOptions(energy_policy=EnergyPolicy.SM))
    for _ in range(2):
        reading = replace(one(listed(1)), utilization=played.rows((1, 10, 0), (4242, 90, 0)))
        report = played.next(reading, processes=[old(1)])
    assert report.gpus[0].energy is not None
    assert report.gpus[0].energy.unattributed_mj == pytest.approx(900_000, rel=0.02)


def test_idle_memory_that_is_inferred_counts_as_idle_memory() -> None:
    played = Played()
    hidden = old(1)._replace(gpu_minors_open=frozenset({0}), uvm_open=True)
    for _ in range(4):
        reading = replace(one(used_gib=20), utilization=played.rows())
        report = played.next(reading, processes=[hidden])
    (workload,) = report.workloads
    assert workload.gpus[0].idle_bytes == 20 * GIB


@pytest.mark.parametrize("cap", [{"max_workloads": 1}, {"max_processes": 1}], ids=["workloads", "processes"])
def test_table_and_document_render_when_a_cap_is_reached_and_when_a_gpu_is_absent(cap: dict[str, int]) -> None:
    played = Played(AttributionOptions(**cap))  # type: ignore[arg-type]
    processes = [old(1), facts(2, CONTAINER, start_ticks=1), facts(3, start_ticks=1)]
    for _ in range(2):
        report = played.next(one(listed(1), listed(2), listed(3)), processes=processes)
        assert "otel-gpu" in render(report)
        assert document(report)["gpus"]
    without_gpu = played.next(processes=processes)
    assert "otel-gpu" in render(without_gpu)
    assert document(without_gpu)["gpus"] == []
