"""Grants: a workload without a process is allocated, and a grant is weak evidence for hidden memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.attribution.cost import Prices
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.model import GpuState, Grant, WorkloadNames
from tests.builders import GIB, WALL_NS, failed_gpu, gpu, listed, memory, mig, uuid_of
from tests.unit.attribution.played import JOB, WEB, Played, gpu_with, old, process, totals, workload

TO_WEB = Grant(WEB, uuid_of(0), since_s=WALL_NS / 1e9 - 3600)


def test_a_workload_with_a_grant_and_no_process_is_allocated() -> None:
    played = Played()
    for _ in range(4):
        report = played.next(gpu_with(), grants=[TO_WEB])
    found = workload(report, "web")
    assert (found.state, found.active, found.idle_s) == (GpuState.ALLOCATED, True, None)
    assert totals(found).allocated_us == 15_000_000
    assert (totals(found).idle_us, totals(found).unknown_us) == (0, 0)
    assert found.measured_bytes is None


def test_a_granted_workload_is_busy_with_a_process_and_allocated_again_without_one() -> None:
    played = Played()
    played.next(gpu_with(), grants=[TO_WEB])
    states = []
    for cycle in range(6):
        here = [listed(1)] if cycle in (1, 2) else []
        reading = replace(gpu_with(*here), utilization=played.rows(*([(1, 50)] if here else [])))
        report = played.next(reading, processes=[old(1, WEB)] if here else [], grants=[TO_WEB])
        states.append(workload(report, "web").state)
    allocated, busy = GpuState.ALLOCATED, GpuState.BUSY
    assert states == [allocated, busy, busy, allocated, allocated, allocated]
    times = totals(workload(report, "web"))
    assert (times.allocated_us, times.busy_us) == (20_000_000, 10_000_000)


def test_a_revoked_grant_ends_the_workload() -> None:
    played = Played()
    played.next(gpu_with(), grants=[TO_WEB])
    report = played.next(gpu_with())
    assert not workload(report, "web").active
    assert workload(report, "web").inferred_bytes == 0


def test_unexplained_memory_is_inferred_for_the_granted_workload_with_half_the_confidence() -> None:
    played = Played()
    reading = gpu(0, (), memory=memory(used_gib=20, reserved_gib=0))
    for _ in range(3):
        report = played.next(reading, grants=[TO_WEB])
    found = workload(report, "web")
    assert found.inferred_bytes == 20 * GIB
    assert found.confidence == pytest.approx(0.5)
    [device] = report.gpus
    assert device.memory is not None
    assert (device.memory.inferred_bytes, device.memory.unattributed_bytes) == (20 * GIB, 0)
    assert device.memory.conservation_error_bytes == 0


def test_with_a_visible_process_nothing_is_inferred_by_the_grant() -> None:
    played = Played()
    reading = gpu(0, [listed(1, GIB)], memory=memory(used_gib=20, reserved_gib=0))
    for _ in range(3):
        report = played.next(reading, processes=[old(1, WEB)], grants=[TO_WEB])
    assert workload(report, "web").inferred_bytes == 0
    assert process(report, 1).memory_bytes == GIB


def test_nothing_is_inferred_by_a_grant_of_an_empty_gpu() -> None:
    played = Played()
    report = played.next(gpu(0, (), memory=memory(used_gib=0.1, reserved_gib=0)), grants=[TO_WEB])
    assert workload(report, "web").inferred_bytes == 0


def test_mig_instances_are_granted_separately() -> None:
    played = Played()
    instances = [
        mig("MIG-1", (1, 0), (), memory=memory(total_gib=10, used_gib=4, reserved_gib=0)),
        mig("MIG-2", (2, 0), (), memory=memory(total_gib=10, used_gib=0, reserved_gib=0)),
    ]
    reading = gpu(0, (), memory=memory(used_gib=4, reserved_gib=0), mig=instances)
    grants = [Grant(WEB, uuid_of(0), "MIG-1"), Grant(JOB, uuid_of(0), "MIG-2")]
    for _ in range(2):
        report = played.next(reading, grants=grants)
    assert (workload(report, "web").mig_uuid, workload(report, "web").inferred_bytes) == ("MIG-1", 4 * GIB)
    assert (workload(report, "job").mig_uuid, workload(report, "job").inferred_bytes) == ("MIG-2", 0)


def test_a_grant_persists_and_is_billed_while_the_gpu_does_not_answer() -> None:
    played = Played(AttributionOptions(prices=Prices("EUR", {"": 3600.0})))
    played.next(gpu_with(), grants=[TO_WEB])
    report = played.next(failed_gpu(), grants=[TO_WEB])
    report = played.next(grants=[TO_WEB])
    found = workload(report, "web")
    assert found.state in (None, GpuState.ALLOCATED)
    assert found.active
    assert {cost.state: cost.amount for cost in found.costs}[GpuState.ALLOCATED] == pytest.approx(10.0)


def test_the_granted_share_is_reported_while_it_is_granted_and_is_zero_afterwards() -> None:
    played = Played()
    assert workload(played.next(gpu_with(), grants=[replace(TO_WEB, share=0.25)]), "web").allocation == 0.25
    with_process = played.next(gpu_with(listed(1)), processes=[old(1, WEB)], grants=[replace(TO_WEB, share=0.25)])
    assert workload(with_process, "web").allocation == 0.25
    assert workload(played.next(gpu_with()), "web").allocation == 0.0


def test_a_workload_without_a_grant_has_no_granted_share() -> None:
    played = Played()
    report = played.next(gpu_with(listed(1)), processes=[old(1, WEB)], grants=[Grant(JOB, uuid_of(0), share=1.0)])
    assert workload(report, "web").allocation is None


def test_a_workload_with_possible_access_has_no_time_memory_or_energy() -> None:
    played = Played()
    reading = gpu(0, (), memory=memory(used_gib=20, reserved_gib=0))
    could = replace(TO_WEB, possible=True)
    names = {"web": WorkloadNames(container="cadvisor")}
    for _ in range(3):
        report = played.next(reading, grants=[could], names=names)
    [found] = report.workloads
    assert (found.display_name, found.reported_gpus, found.active_gpus) == ("cadvisor", (), ())
    [part] = found.gpus
    assert (part.possible, part.totals, part.state, part.inferred_bytes) == (True, None, None, None)
    assert report.gpus[0].memory is not None
    assert report.gpus[0].memory.inferred_bytes == 0
    assert played.next(reading).workloads == ()


def test_a_workload_with_possible_access_and_a_process_is_reported_as_a_user() -> None:
    played = Played()
    could = [replace(TO_WEB, possible=True), replace(TO_WEB, possible=True, gpu_uuid=uuid_of(1))]
    report = played.next(gpu_with(listed(1)), gpu(1), processes=[old(1, WEB)], grants=could)
    parts = {part.gpu_uuid: part.possible for found in report.workloads for part in found.gpus}
    assert parts == {uuid_of(0): False, uuid_of(1): True}


def test_possible_access_to_another_gpu_has_the_names_under_which_the_workload_is_exported() -> None:
    played = Played()
    could = [replace(TO_WEB, possible=True), replace(TO_WEB, possible=True, gpu_uuid=uuid_of(1))]
    for name in ("first", "first", "first", "second"):
        report = played.next(
            gpu_with(listed(1)),
            gpu(1),
            processes=[old(1, WEB)],
            grants=could,
            names={"web": WorkloadNames(container=name)},
        )
    namings = {(found.naming, found.display_name) for found in report.workloads}
    assert namings == {(0, "first"), (1, "second")}
    assert [found.naming for found in report.workloads if found.gpus[0].possible] == [1]
