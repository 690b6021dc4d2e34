"""GPUs that were given to a workload: allocated while nobody of it is there, and weak evidence for hidden memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.attribution.cost import Prices
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.model import GpuState, Grant, WorkloadNames
from tests.builders import GIB, WALL_NS, failed_gpu, gpu, listed, memory, mig, uuid_of
from tests.unit.attribution.played import JOB, WEB, Played, gpu_with, old, process, totals, workload

TO_WEB = Grant(WEB, uuid_of(0), since_s=WALL_NS / 1e9 - 3600)


def test_a_gpu_that_was_given_and_has_no_process_is_allocated() -> None:
    played = Played()
    for _ in range(4):
        answer = played.next(gpu_with(), grants=[TO_WEB])
    found = workload(answer, "web")
    assert (found.state, found.active, found.idle_s) == (GpuState.ALLOCATED, True, None)
    assert totals(found).allocated_us == 15_000_000
    assert (totals(found).idle_us, totals(found).unknown_us) == (0, 0)
    assert found.measured_bytes is None


def test_with_a_process_it_is_busy_or_idle_and_allocated_again_when_that_has_gone() -> None:
    played = Played()
    played.next(gpu_with(), grants=[TO_WEB])
    states = []
    for cycle in range(6):
        here = [listed(1)] if cycle in (1, 2) else []
        reading = replace(gpu_with(*here), utilization=played.rows(*([(1, 50)] if here else [])))
        answer = played.next(reading, processes=[old(1, WEB)] if here else [], grants=[TO_WEB])
        states.append(workload(answer, "web").state)
    allocated, busy = GpuState.ALLOCATED, GpuState.BUSY
    assert states == [allocated, busy, busy, allocated, allocated, allocated]
    times = totals(workload(answer, "web"))
    assert (times.allocated_us, times.busy_us) == (20_000_000, 10_000_000)


def test_a_grant_that_is_taken_back_ends_the_workload() -> None:
    played = Played()
    played.next(gpu_with(), grants=[TO_WEB])
    answer = played.next(gpu_with())
    assert not workload(answer, "web").active
    assert workload(answer, "web").inferred_bytes == 0


def test_memory_that_nothing_else_explains_is_probably_whose_the_gpu_is_with_half_the_confidence() -> None:
    played = Played()
    reading = gpu(0, (), memory=memory(used_gib=20, reserved_gib=0))
    for _ in range(3):
        answer = played.next(reading, grants=[TO_WEB])
    found = workload(answer, "web")
    assert found.inferred_bytes == 20 * GIB
    assert found.confidence == pytest.approx(0.5)
    [device] = answer.gpus
    assert device.memory is not None
    assert (device.memory.inferred_bytes, device.memory.unattributed_bytes) == (20 * GIB, 0)
    assert device.memory.conservation_error_bytes == 0


def test_a_visible_process_of_the_workload_leaves_no_room_for_a_guess() -> None:
    played = Played()
    reading = gpu(0, [listed(1, GIB)], memory=memory(used_gib=20, reserved_gib=0))
    for _ in range(3):
        answer = played.next(reading, processes=[old(1, WEB)], grants=[TO_WEB])
    assert workload(answer, "web").inferred_bytes == 0
    assert process(answer, 1).memory_bytes == GIB


def test_a_gpu_that_was_given_and_is_empty_holds_no_memory_of_anybody() -> None:
    played = Played()
    answer = played.next(gpu(0, (), memory=memory(used_gib=0.1, reserved_gib=0)), grants=[TO_WEB])
    assert workload(answer, "web").inferred_bytes == 0


def test_an_instance_is_given_apart_from_the_gpu() -> None:
    played = Played()
    instances = [
        mig("MIG-1", (1, 0), (), memory=memory(total_gib=10, used_gib=4, reserved_gib=0)),
        mig("MIG-2", (2, 0), (), memory=memory(total_gib=10, used_gib=0, reserved_gib=0)),
    ]
    reading = gpu(0, (), memory=memory(used_gib=4, reserved_gib=0), mig=instances)
    grants = [Grant(WEB, uuid_of(0), "MIG-1"), Grant(JOB, uuid_of(0), "MIG-2")]
    for _ in range(2):
        answer = played.next(reading, grants=grants)
    assert (workload(answer, "web").mig_uuid, workload(answer, "web").inferred_bytes) == ("MIG-1", 4 * GIB)
    assert (workload(answer, "job").mig_uuid, workload(answer, "job").inferred_bytes) == ("MIG-2", 0)


def test_a_grant_stands_while_the_gpu_does_not_answer_and_costs() -> None:
    played = Played(AttributionOptions(prices=Prices("EUR", {"": 3600.0})))
    played.next(gpu_with(), grants=[TO_WEB])
    answer = played.next(failed_gpu(), grants=[TO_WEB])
    answer = played.next(grants=[TO_WEB])
    found = workload(answer, "web")
    assert found.state in (None, GpuState.ALLOCATED)
    assert found.active
    assert {cost.state: cost.amount for cost in found.costs}[GpuState.ALLOCATED] == pytest.approx(10.0)


def test_what_was_given_is_told_while_it_is_and_nothing_after_that() -> None:
    played = Played()
    assert workload(played.next(gpu_with(), grants=[replace(TO_WEB, share=0.25)]), "web").allocation == 0.25
    with_process = played.next(gpu_with(listed(1)), processes=[old(1, WEB)], grants=[replace(TO_WEB, share=0.25)])
    assert workload(with_process, "web").allocation == 0.25
    assert workload(played.next(gpu_with()), "web").allocation == 0.0


def test_of_who_was_given_nothing_nobody_tells_a_part() -> None:
    played = Played()
    answer = played.next(gpu_with(listed(1)), processes=[old(1, WEB)], grants=[Grant(JOB, uuid_of(0), share=1.0)])
    assert workload(answer, "web").allocation is None


def test_who_could_use_a_gpu_has_access_and_neither_time_nor_memory_nor_energy() -> None:
    played = Played()
    reading = gpu(0, (), memory=memory(used_gib=20, reserved_gib=0))
    could = replace(TO_WEB, possible=True)
    names = {"web": WorkloadNames(container="cadvisor")}
    for _ in range(3):
        answer = played.next(reading, grants=[could], names=names)
    [found] = answer.workloads
    assert (found.display_name, found.told_gpus, found.active_gpus) == ("cadvisor", (), ())
    [part] = found.gpus
    assert (part.possible, part.totals, part.state, part.inferred_bytes) == (True, None, None, None)
    assert answer.gpus[0].memory is not None
    assert answer.gpus[0].memory.inferred_bytes == 0
    assert played.next(reading).workloads == ()


def test_who_could_use_a_gpu_and_does_is_told_as_one_who_does() -> None:
    played = Played()
    could = [replace(TO_WEB, possible=True), replace(TO_WEB, possible=True, gpu_uuid=uuid_of(1))]
    answer = played.next(gpu_with(listed(1)), gpu(1), processes=[old(1, WEB)], grants=could)
    parts = {part.gpu_uuid: part.possible for found in answer.workloads for part in found.gpus}
    assert parts == {uuid_of(0): False, uuid_of(1): True}
