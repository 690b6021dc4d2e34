"""Reports of one or two cycles: workloads, processes, MIG instances, names and energy."""

from __future__ import annotations

import pytest

from otel_gpu.model import (
    HOST_WORKLOAD,
    START_UNKNOWN,
    UNIDENTIFIED_WORKLOAD,
    ProcessKey,
    Report,
    SourceOutcome,
    SourceState,
    WorkloadKind,
    WorkloadNames,
    WorkloadRef,
)
from tests.builders import (
    CONTAINER,
    CONTAINER_ID,
    DRIVER,
    GIB,
    WALL_NS,
    attribute,
    facts,
    gpu,
    listed,
    memory,
    mig,
    snapshot,
)

UNIT = WorkloadRef(WorkloadKind.SYSTEMD_UNIT, "ollama.service")


def measured(report: Report) -> dict[tuple[str, str, str | None], int | None]:
    """Bytes by workload id, GPU and MIG instance."""
    return {
        (workload.ref.id, part.gpu_uuid, part.mig_uuid): part.measured_bytes
        for workload in report.workloads
        for part in workload.gpus
    }


def test_a_workload_holds_what_its_processes_hold_gpu_by_gpu() -> None:
    report = attribute(
        None,
        snapshot(
            gpu(0, [listed(1, GIB), listed(2, 2 * GIB), listed(3, 4 * GIB)]),
            gpu(1, [listed(1, 8 * GIB)]),
            processes=[facts(1, CONTAINER), facts(2, CONTAINER), facts(3, UNIT)],
        ),
    )
    assert measured(report) == {
        (CONTAINER_ID, "GPU-0", None): 3 * GIB,
        (CONTAINER_ID, "GPU-1", None): 8 * GIB,
        ("ollama.service", "GPU-0", None): 4 * GIB,
    }


def test_a_process_is_reported_with_its_identity_and_its_workload() -> None:
    report = attribute(
        None, snapshot(gpu(0, [listed(7, GIB)]), processes=[facts(7, CONTAINER, name="vllm", start_ticks=250)])
    )
    (process,) = report.processes
    assert (process.key, process.name, process.workload) == (ProcessKey(7, 250), "vllm", CONTAINER)
    assert process.start_time_s == 1_700_000_002.5
    assert (process.gpu_uuid, process.mig_uuid, process.memory_bytes) == ("GPU-0", None, GIB)


def test_a_pid_that_proc_never_showed_is_measured_as_unidentified() -> None:
    report = attribute(None, snapshot(gpu(0, [listed(9, GIB)], memory=memory()), processes=[facts(1)]))
    (process,) = report.processes
    assert (process.key, process.name, process.start_time_s) == (ProcessKey(9, START_UNKNOWN), None, None)
    assert process.workload == UNIDENTIFIED_WORKLOAD
    assert process.workload != HOST_WORKLOAD
    assert measured(report) == {("unidentified", "GPU-0", None): GIB}
    assert report.gpus[0].memory is not None
    assert report.gpus[0].memory.measured_bytes == GIB


def test_the_host_and_the_unidentified_are_two_workloads() -> None:
    report = attribute(None, snapshot(gpu(0, [listed(1, GIB), listed(9, 2 * GIB)]), processes=[facts(1)]))
    assert measured(report) == {("host", "GPU-0", None): GIB, ("unidentified", "GPU-0", None): 2 * GIB}


def test_a_process_listed_without_a_figure_leaves_its_workload_without_one() -> None:
    report = attribute(None, snapshot(gpu(0, [listed(1, None)]), processes=[facts(1, CONTAINER)]))
    assert measured(report) == {(CONTAINER_ID, "GPU-0", None): None}


def test_known_figures_are_summed_beside_unknown_ones() -> None:
    report = attribute(
        None,
        snapshot(gpu(0, [listed(1, None), listed(2, GIB)]), processes=[facts(1, CONTAINER), facts(2, CONTAINER)]),
    )
    assert measured(report) == {(CONTAINER_ID, "GPU-0", None): GIB}


def test_two_references_to_one_container_are_one_workload() -> None:
    other = WorkloadRef(WorkloadKind.CONTAINER, CONTAINER_ID)  # as read from another cgroup of the container
    report = attribute(
        None, snapshot(gpu(0, [listed(1, GIB), listed(2, GIB)]), processes=[facts(1, CONTAINER), facts(2, other)])
    )
    assert measured(report) == {(CONTAINER_ID, "GPU-0", None): 2 * GIB}


def test_one_id_of_two_kinds_is_two_workloads() -> None:
    job, lxc = (WorkloadRef(kind, "42") for kind in (WorkloadKind.SLURM_JOB, WorkloadKind.LXC))
    report = attribute(
        None, snapshot(gpu(0, [listed(1, GIB), listed(2, GIB)]), processes=[facts(1, job), facts(2, lxc)])
    )
    assert sorted(workload.ref.kind.value for workload in report.workloads) == ["lxc", "slurm_job"]


def test_each_workload_gets_its_own_names() -> None:
    names = {CONTAINER_ID: WorkloadNames(container="vllm", pod="vllm-0"), "other": WorkloadNames(container="other")}
    report = attribute(
        None,
        snapshot(gpu(0, [listed(1), listed(2)]), processes=[facts(1, CONTAINER), facts(2, UNIT)], names=names),
    )
    assert {workload.ref.id: workload.names for workload in report.workloads} == {
        CONTAINER_ID: names[CONTAINER_ID],
        "ollama.service": None,
    }


# ---------------------------------------------------------------------------- processes in no list


def test_an_unlisted_process_with_the_gpu_open_for_cuda_is_reported_without_a_figure() -> None:
    report = attribute(None, snapshot(gpu(0), gpu(1), processes=[facts(5, CONTAINER, opens={1}, uvm=True)]))
    (process,) = report.processes
    assert (process.key.pid, process.gpu_uuid, process.memory_bytes) == (5, "GPU-1", None)


def test_an_open_device_alone_makes_no_holder() -> None:
    assert attribute(None, snapshot(gpu(0), processes=[facts(5, opens={0}, uvm=False)])).processes == ()


def test_a_process_that_is_gone_has_nothing_open() -> None:
    report = attribute(None, snapshot(gpu(0), processes=[facts(5, opens={0}, uvm=True, alive=False)]))
    assert report.processes == ()


def test_a_listed_process_with_the_device_open_is_reported_once() -> None:
    report = attribute(None, snapshot(gpu(0, [listed(5, GIB)]), processes=[facts(5, opens={0}, uvm=True)]))
    assert [process.memory_bytes for process in report.processes] == [GIB]


def test_a_process_listed_on_an_instance_with_the_gpu_open_is_reported_once() -> None:
    reading = gpu(0, [], mig=[mig("MIG-a", (1, 0), [listed(5, GIB)])])
    report = attribute(None, snapshot(reading, processes=[facts(5, opens={0}, uvm=True)]))
    assert [(process.mig_uuid, process.memory_bytes) for process in report.processes] == [("MIG-a", GIB)]


# ---------------------------------------------------------------------------- MIG


def test_instances_divide_their_own_memory_and_the_gpu_counts_each_holder_once() -> None:
    first, second = listed(1, GIB, instance=(1, 0)), listed(2, 2 * GIB, instance=(2, 0))
    reading = gpu(
        0,
        [first, second, listed(3, 4 * GIB)],
        memory=memory(total_gib=80, used_gib=10, reserved_gib=0),
        mig=[
            mig("MIG-a", (1, 0), [first], memory=memory(total_gib=10, used_gib=1.5, reserved_gib=0)),
            mig("MIG-b", (2, 0), None, memory=memory(total_gib=20, used_gib=1, reserved_gib=0), profile="2g.20gb"),
            mig("MIG-c", (3, 0), [], memory=None, profile=None),
        ],
    )
    report = attribute(None, snapshot(reading, processes=[facts(1, CONTAINER), facts(2, UNIT), facts(3, UNIT)]))
    (one,) = report.gpus
    assert one.memory is not None
    assert one.memory.measured_bytes == 7 * GIB
    assert one.memory.unattributed_bytes == 3 * GIB
    assert one.mig is not None
    assert [(instance.uuid, instance.profile) for instance in one.mig] == [
        ("MIG-a", "1g.10gb"),
        ("MIG-b", "2g.20gb"),
        ("MIG-c", None),
    ]
    first_split, second_split, third_split = (instance.memory for instance in one.mig)
    assert first_split is not None
    assert (first_split.measured_bytes, first_split.unattributed_bytes) == (GIB, GIB // 2)
    assert second_split is not None
    assert (second_split.measured_bytes, second_split.overcount_bytes) == (2 * GIB, GIB)
    assert third_split is None
    assert measured(report) == {
        (CONTAINER_ID, "GPU-0", "MIG-a"): GIB,
        ("ollama.service", "GPU-0", None): 4 * GIB,
        ("ollama.service", "GPU-0", "MIG-b"): 2 * GIB,
    }


def test_without_mig_instances_are_none_and_with_mig_they_may_be_empty() -> None:
    report = attribute(None, snapshot(gpu(0), gpu(1, mig=[])))
    assert [one.mig for one in report.gpus] == [None, ()]


# ---------------------------------------------------------------------------- from one cycle to the next


def test_the_first_cycle_has_no_window_and_no_energy() -> None:
    report = attribute(None, snapshot(gpu(0, energy_mj=5_000)))
    assert report.window_s is None
    assert report.gpus[0].energy is None


@pytest.mark.parametrize(
    ("before", "now", "delta"),
    [(5_000, 9_000, 4_000), (5_000, 5_000, 0), (5_000, 10, 0), (None, 9_000, None), (5_000, None, None)],
    ids=["advanced", "did not advance", "was reset", "was absent", "is absent"],
)
def test_energy_is_what_the_counter_advanced_by(before: int | None, now: int | None, delta: int | None) -> None:
    report = attribute(snapshot(gpu(0, energy_mj=before)), snapshot(gpu(0, energy_mj=now), at_s=2.5))
    energy = report.gpus[0].energy
    assert report.window_s == 2.5
    assert (energy.delta_mj if energy is not None else None) == delta


def test_energy_goes_to_the_process_on_the_gpu_and_is_idle_without_one() -> None:
    alone = [listed(1)]
    before = snapshot(gpu(0, energy_mj=1), gpu(1, alone, energy_mj=5), processes=[facts(1)])
    now = snapshot(gpu(0, energy_mj=3), gpu(1, alone, energy_mj=12), processes=[facts(1)], at_s=1)
    report = attribute(before, now)
    idle, measured = (one.energy for one in report.gpus)
    assert idle is not None
    assert measured is not None
    assert (idle.attributed_mj, idle.idle_mj, idle.unattributed_mj) == (0, 2, 0)
    assert (measured.attributed_mj, measured.idle_mj, measured.unattributed_mj) == (7, 0, 0)
    (process,) = report.processes
    assert process.energy.measured_mj == 7


def test_a_counter_is_followed_by_uuid_when_indices_change() -> None:
    before = snapshot(gpu(0, energy_mj=1_000), gpu(1, energy_mj=50_000))
    now = snapshot(gpu(1, energy_mj=50_007), gpu(0, energy_mj=1_003), at_s=1)
    deltas = {one.identity.uuid: one.energy.delta_mj for one in attribute(before, now).gpus if one.energy is not None}
    assert deltas == {"GPU-0": 3, "GPU-1": 7}


def test_the_report_has_its_time_its_driver_and_the_outcomes_of_the_sources() -> None:
    sources = (SourceOutcome("nvml", SourceState.DEGRADED, "GPU 1: lost", 0.1, 1),)
    report = attribute(None, snapshot(gpu(0), sources=sources, at_s=3))
    assert (report.wall_ns, report.monotonic_ns) == (WALL_NS + 3 * 10**9, 3 * 10**9)
    assert (report.sources, report.driver) == (sources, DRIVER)


def test_the_report_does_not_depend_on_the_order_of_the_reads() -> None:
    entries = [listed(3, GIB), listed(1, GIB), listed(2, 2 * GIB)]
    processes = [facts(2, UNIT), facts(1, CONTAINER), facts(3, CONTAINER)]
    forward = attribute(None, snapshot(gpu(0, entries), processes=processes))
    backward = attribute(None, snapshot(gpu(0, entries[::-1]), processes=processes[::-1]))
    assert (forward.processes, forward.workloads) == (backward.processes, backward.workloads)
    assert [process.key.pid for process in forward.processes] == [1, 2, 3]


def test_an_empty_snapshot_gives_an_empty_report() -> None:
    report = attribute(None, snapshot())
    assert (report.gpus, report.workloads, report.processes) == ((), (), ())
