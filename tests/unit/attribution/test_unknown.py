"""Unknown is not zero, not idle, not alone: what the driver does not tell, and what shows somebody else."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from otel_gpu.attribution.cost import Prices
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.model import AccountingRecord, GpuReading, GpuState, WorkloadNames
from tests.builders import GIB, WALL_NS, facts, gpu, listed, memory, mig, snapshot
from tests.unit.attribution.played import JOB, WEB, Played, gpu_with, old, process, totals, workload


def test_lists_that_cannot_be_read_end_nobody_who_runs_and_tell_no_memory() -> None:
    played = Played()
    for _ in range(2):
        played.next(gpu_with(listed(1)), processes=[old(1, WEB)])
    for _ in range(20):
        answer = played.next(replace(gpu_with(), processes=None), processes=[old(1, WEB)])
        assert process(answer, 1).active
        assert process(answer, 1).memory_bytes is None
    answer = played.next(replace(gpu_with(), processes=None), processes=[])
    for _ in range(8):
        answer = played.next(replace(gpu_with(), processes=None), processes=[])
    assert not process(answer, 1).active, "who is gone from /proc for longer than the grace has left"


def test_a_workload_of_which_somebody_is_missing_is_not_idle_and_books_no_idle_time() -> None:
    played = Played()
    for cycle in range(9):
        here = [listed(1), listed(2)] if cycle < 3 else [listed(1)]
        rows = played.rows((2, 50)) if cycle < 3 else played.rows()
        answer = played.next(replace(gpu_with(*here), utilization=rows), processes=[old(1, WEB), old(2, WEB)])
        assert workload(answer, "web").state is not GpuState.IDLE
    assert totals(workload(answer, "web")).idle_us == 0


@pytest.mark.parametrize(
    ("used_gib", "expected_mj"),
    [((1, 10, 1), [0, 0]), ((10, 1, 1), [0, 1_000_000])],
    ids=["in the middle", "at the start"],
)
def test_memory_of_a_stranger_at_either_end_means_that_nobody_was_alone(
    used_gib: tuple[int, ...], expected_mj: list[int]
) -> None:
    played = Played()
    measured = []
    for used in used_gib:
        reading = gpu(0, [listed(1, GIB)], memory=memory(used_gib=used, reserved_gib=0))
        measured.append(process(played.next(reading, processes=[old(1, WEB)]), 1).energy.measured_mj)
    assert measured[1:] == expected_mj


def test_a_stranger_in_an_interval_of_several_cycles_is_not_forgotten() -> None:
    played = Played()
    answer = None
    for number, (used, energy_mj) in enumerate(((1, 1000), (10, None), (1, 2_000_000))):
        reading = gpu(0, [listed(1, GIB)], memory=memory(used_gib=used, reserved_gib=0), energy_mj=energy_mj)
        world = snapshot(replace(reading, power_limit_w=400.0), processes=[old(1, WEB)], at_s=5 * number)
        answer = played.attributor.observe(world)
    assert answer is not None
    assert process(answer, 1).energy.measured_mj == 0
    assert process(answer, 1).energy.estimated_mj == 1_999_000


def test_who_came_and_went_between_two_cycles_means_that_nobody_was_alone() -> None:
    played = Played()
    for _ in range(2):
        played.next(gpu_with(listed(1)), processes=[old(1, WEB)])
    start_us = WALL_NS // 1000 + round((played.at_s + 0.5) * 1e6)
    visit = AccountingRecord(77, start_us, 4000, 90, None, None, running=False)
    answer = played.next(replace(gpu_with(listed(1)), accounting=(visit,)), processes=[old(1, WEB)])
    assert process(answer, 1).energy.measured_mj == 0
    assert process(answer, 1).energy.estimated_mj == 1_000_000
    answer = played.next(replace(gpu_with(listed(1)), accounting=()), processes=[old(1, WEB)])
    assert process(answer, 1).energy.measured_mj == 1_000_000


def test_instances_whose_lists_cannot_be_read_are_not_empty() -> None:
    played = Played()
    unreadable = gpu(0, None, memory=None, mig=[mig("MIG-1", (1, 0), None), mig("MIG-2", (2, 0), ())])
    for _ in range(5):
        answer = played.next(unreadable)
    [device] = answer.gpus
    assert device.energy is not None
    assert (device.energy.idle_mj, device.energy.unattributed_mj) == (0, 1_000_000)
    assert device.basis is not None
    assert device.basis.idle_origin != "observed"


def test_state_is_bounded_where_nobody_tells_of_energy() -> None:
    played = Played()
    sizes = []
    for cycle in range(600):
        pid = 1000 + cycle
        world = snapshot(gpu_with(listed(pid)), processes=[facts(pid, WEB, start_ticks=cycle + 1)], at_s=5 * cycle)
        played.attributor.observe(world)
        if cycle % 100 == 99:
            sizes.append(len(json.dumps(played.attributor.to_state()["gpus"])))
    assert max(sizes) <= 1.1 * sizes[0]


def test_a_negative_figure_of_memory_is_none_and_is_counted() -> None:
    played = Played()
    reading = gpu(0, [listed(1, -5 * GIB), listed(2, 3 * GIB)], memory=memory(used_gib=4, reserved_gib=0))
    answer = played.next(reading, processes=[old(1, WEB), old(2, WEB)])
    assert process(answer, 1).memory_bytes is None
    assert workload(answer, "web").measured_bytes == 3 * GIB
    assert answer.anomalies == 1


def test_with_full_books_a_renamed_workload_still_has_a_successor_of_its_own() -> None:
    played = Played(AttributionOptions(max_processes=2, max_workloads=2))
    for cycle in range(80):
        names = {"web": WorkloadNames(container="old" if cycle < 3 else "new"), "job": WorkloadNames(container="job")}
        answer = played.next(
            gpu_with(listed(1), listed(2)), processes=[old(1, WEB), old(2, JOB)], names=names, looked_up=True
        )
    assert [(each.ref.id, each.naming) for each in answer.workloads] == [("job", 0), ("web", 1)]
    assert [(each.key.pid, each.workload.id, each.naming) for each in answer.processes] == [
        (1, "web", 1),
        (2, "job", 0),
    ]


def test_two_who_share_a_gpu_for_an_hour_pay_for_an_hour_together() -> None:
    played = Played(AttributionOptions(prices=Prices("EUR", {"": 2.0})))
    for _ in range(721):
        reading = replace(gpu_with(listed(1), listed(2)), utilization=played.rows((1, 50), (2, 50)))
        answer = played.next(reading, processes=[old(1, WEB), old(2, JOB)])
    paid = {w.ref.id: sum(cost.amount for part in w.gpus for cost in part.costs) for w in answer.workloads}
    assert paid == pytest.approx({"web": 1.0, "job": 1.0})


def with_rows(played: Played, *work: tuple[int, int]) -> GpuReading:
    return replace(gpu_with(listed(1), listed(2)), utilization=played.rows(*work))


def test_a_figure_of_work_that_cannot_be_true_is_not_no_work_in_the_division_of_energy() -> None:
    played = Played()
    for _ in range(3):
        answer = played.next(with_rows(played, (1, 150), (2, 50)), processes=[old(1, WEB), old(2, JOB)])
    assert process(answer, 1).energy.estimated_mj == process(answer, 2).energy.estimated_mj == 500_000


def test_a_neighbour_whose_work_is_not_known_may_hide_a_light_process() -> None:
    played = Played()
    for _ in range(6):
        answer = played.next(with_rows(played, (1, 150)), processes=[old(1, WEB), old(2, JOB)])
    assert process(answer, 2).state is GpuState.UNKNOWN


def test_an_unknown_pid_with_an_incredible_row_means_that_nobody_was_alone() -> None:
    played = Played()
    for _ in range(3):
        reading = replace(gpu_with(listed(1)), utilization=played.rows((1, 50), (77, 150)))
        answer = played.next(reading, processes=[old(1, WEB)])
    assert process(answer, 1).energy.measured_mj == 0
