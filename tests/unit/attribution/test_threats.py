"""Effects of a hostile workload on the figures of others, and their limits. SECURITY.md refers to these tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.metrics.labels import WorkloadIdentity
from otel_gpu.model import GpuReading, ProcessFacts, Report, WorkloadKind, WorkloadRef
from otel_gpu.sources.proc.cgroup import parse_cgroup
from tests.builders import GIB, facts, gpu, listed, memory, snapshot
from tests.unit.attribution.played import CYCLE_MJ, Played, old

VICTIM, QUIET, MALLORY = (WorkloadRef(WorkloadKind.CONTAINER, letter * 64) for letter in "abc")


def holding(pid: int, workload: WorkloadRef, gib: int, *, since_ticks: int = 100) -> ProcessFacts:
    """A process that NVML does not list, with the GPU open and ``gib`` of nvidia-uvm mapped."""
    process = facts(pid, workload, opens=[0], uvm=True, start_ticks=since_ticks)
    return process._replace(uvm_mapping_bytes=gib * GIB)


def play(*cycles: tuple[GpuReading, Iterable[ProcessFacts]]) -> Report:
    """The report of the last of these cycles, 5 s apart."""
    attributor = Attributor()
    for number, (reading, processes) in enumerate(cycles):
        report = attributor.observe(snapshot(reading, processes=processes, at_s=5.0 * number))
    return report


def bytes_of(report: Report, workload: WorkloadRef) -> tuple[int, int]:
    """Bytes measured and inferred of a workload."""
    parts = [part for each in report.workloads if each.ref == workload for part in each.gpus]
    return sum(part.measured_bytes or 0 for part in parts), sum(part.inferred_bytes or 0 for part in parts)


def millijoules(report: Report, workload: WorkloadRef) -> dict[str, int]:
    [energy] = [
        part.totals.energy for each in report.workloads if each.ref == workload for part in each.gpus if part.totals
    ]
    return {
        "measured": energy.measured_mj or 0,
        "estimated": energy.estimated_mj or 0,
        "inferred": energy.inferred_mj or 0,
    }


def adds_up(report: Report) -> bool:
    [device] = report.gpus
    return device.memory is not None and device.memory.conservation_error_bytes == 0


# ---------------------------------------------------------------------------- memory


def test_an_open_device_attracts_only_memory_that_the_driver_does_not_measure() -> None:
    reading = gpu(0, [listed(1, 4 * GIB)], memory=memory(used_gib=10, reserved_gib=0))
    seen, bait = facts(1, VICTIM, opens=[0], uvm=True), holding(3, MALLORY, 64)
    without, with_bait = (play((reading, each), (reading, each)) for each in ([seen], [seen, bait]))
    assert bytes_of(without, VICTIM) == bytes_of(with_bait, VICTIM) == (4 * GIB, 0)
    assert without.gpus[0].memory is not None
    assert without.gpus[0].memory.unattributed_bytes == 6 * GIB
    assert bytes_of(with_bait, MALLORY) == (0, 6 * GIB)  # it only raises its own figure
    assert adds_up(with_bait)


def test_bait_takes_inferred_memory_from_a_neighbour_and_lowers_the_confidence() -> None:
    reading = gpu(0, (), memory=memory(used_gib=10, reserved_gib=0))
    honest, bait = holding(2, QUIET, 10), holding(3, MALLORY, 90)
    alone, beside = (play((reading, each), (reading, each)) for each in ([honest], [honest, bait]))
    assert bytes_of(alone, QUIET) == (0, 10 * GIB)
    assert bytes_of(beside, QUIET)[1] < 10 * GIB
    assert bytes_of(beside, MALLORY)[1] > 0
    assert adds_up(beside)
    confidences = [part.confidence for each in beside.workloads for part in each.gpus]
    assert all(confidence is not None and confidence < 1 for confidence in confidences)


def test_bait_that_comes_later_takes_nothing_that_a_neighbour_held_before() -> None:
    reading = gpu(0, (), memory=memory(used_gib=10, reserved_gib=0))
    honest, bait = holding(2, QUIET, 10), holding(3, MALLORY, 90, since_ticks=5000)
    report = play((reading, [honest]), (reading, [honest]), (reading, [honest, bait]), (reading, [honest, bait]))
    assert bytes_of(report, QUIET) == (0, 10 * GIB)
    assert bytes_of(report, MALLORY) == (0, 0)


def test_bait_on_a_gpu_whose_memory_is_explained_gets_nothing() -> None:
    reading = gpu(0, [listed(1, 4 * GIB)], memory=memory(used_gib=4, reserved_gib=0))
    processes = [facts(1, VICTIM, opens=[0], uvm=True), holding(3, MALLORY, 64)]
    report = play((reading, processes), (reading, processes))
    assert bytes_of(report, MALLORY) == (0, 0)


# ---------------------------------------------------------------------------- energy


def energy(*processes: ProcessFacts, used_gib: float) -> Report:
    """The report of the third cycle in which the victim, listed with 4 GiB, does all the work."""
    played = Played()
    present = [old(1, VICTIM), *processes]
    for _ in range(3):
        reading = gpu(0, [listed(1, 4 * GIB)], memory=memory(used_gib=used_gib, reserved_gib=0))
        report = played.next(replace(reading, utilization=played.rows((1, 90))), processes=present)
    return report


def test_bait_on_explained_memory_leaves_a_neighbours_energy_measured() -> None:
    report = energy(holding(3, MALLORY, 64), used_gib=4)
    assert millijoules(report, VICTIM) == {"measured": 2 * CYCLE_MJ, "estimated": 0, "inferred": 0}


def test_bait_on_unexplained_memory_makes_a_neighbours_energy_an_estimate_and_pays_its_part() -> None:
    report = energy(holding(3, MALLORY, 64), used_gib=10)
    victim, mallory = millijoules(report, VICTIM), millijoules(report, MALLORY)
    assert victim["measured"] == 0
    assert mallory["inferred"] > 0  # the bait pays its part of static energy
    [device] = report.gpus
    assert device.totals is not None
    assert sum(victim.values()) + sum(mallory.values()) + device.totals.unattributed_mj == 2 * CYCLE_MJ


# ---------------------------------------------------------------------------- identity


BELOW_ITS_OWN = [
    "/docker/{own}/docker/{other}",
    "/docker/{own}/system.slice/docker-{other}.scope",
    "/docker/{own}/docker/{quiet}/docker/{other}",
    "/kubepods/pod{pod}/{own}/kubepods/pod{victims_pod}/{other}",
    "/lxc.payload.mallory/system.slice/docker-{other}.scope",
]


def claimed(path: str) -> WorkloadRef:
    """The workload of a process in this cgroup."""
    ids = {"own": MALLORY.id, "other": VICTIM.id, "quiet": QUIET.id}
    pods = {"pod": "1" * 32, "victims_pod": "2" * 32}
    found = parse_cgroup("0::" + path.format(**ids, **pods))
    assert found is not None
    return found


@pytest.mark.parametrize("path", BELOW_ITS_OWN)
def test_a_process_that_names_another_container_below_its_own_cgroup_is_not_attributed_to_it(path: str) -> None:
    impostor = claimed(path)
    assert impostor.key != VICTIM.key
    assert impostor.outer_container_id in {MALLORY.id, "mallory"}
    assert impostor.pod_uid in {None, "1" * 32}
    reading = gpu(0, [listed(1, 4 * GIB), listed(3, 2 * GIB)], memory=memory(used_gib=6, reserved_gib=0))
    report = play(*[(reading, [old(1, VICTIM), old(3, impostor)])] * 3)
    assert bytes_of(report, VICTIM) == (4 * GIB, 0)
    assert bytes_of(report, impostor) == (2 * GIB, 0)
    identities = [dict(WorkloadIdentity.of(each.ref, each.names).attributes) for each in report.workloads]
    assert {each.get("gpu.workload.outer.id") for each in identities} == {None, impostor.outer_container_id}
    assert [each["container.id"] for each in identities if "container.id" in each] == [VICTIM.id]


JOB = WorkloadRef(WorkloadKind.SLURM_JOB, "7")
UNIT = WorkloadRef(WorkloadKind.SYSTEMD_UNIT, "ollama.service")
USER = "/user.slice/user-1000.slice/user@1000.service"


@pytest.mark.parametrize(
    ("path", "victim"),
    [
        (f"{USER}/docker-{{other}}.scope", VICTIM),
        (f"{USER}/user.slice/user-1001.slice/docker-{{other}}.scope", replace(VICTIM, user_uid=1001)),
        (f"{USER}/docker-{{own}}.scope/docker/{{other}}", replace(VICTIM, user_uid=1000)),
        (f"{USER}/slurmstepd.scope/job_7/step_0", JOB),
        (f"{USER}/slurm/uid_0/job_7/step_0", JOB),
        (f"{USER}/ollama.service", UNIT),
        ("/system.slice/app.service/slurm/uid_0/job_7/step_0", JOB),
        ("/lxc.payload.mallory/slurm/uid_0/job_7/step_0", JOB),
    ],
)
def test_a_user_or_a_system_container_that_names_a_workload_of_others_is_not_attributed_to_it(
    path: str, victim: WorkloadRef
) -> None:
    impostor = claimed(path)
    assert impostor.key != victim.key
    reading = gpu(0, [listed(1, 4 * GIB), listed(3, 2 * GIB)], memory=memory(used_gib=6, reserved_gib=0))
    report = play(*[(reading, [old(1, victim), old(3, impostor)])] * 3)
    assert bytes_of(report, victim) == (4 * GIB, 0)
    assert bytes_of(report, impostor) == (2 * GIB, 0)
    assert len({WorkloadIdentity.of(each.ref, each.names) for each in report.workloads}) == 2


def test_a_system_service_with_a_delegated_subtree_can_name_any_container() -> None:
    """A known limit: Podman in a unit, which root configured, looks the same."""
    assert claimed("/system.slice/app.service/docker-{other}.scope").key == VICTIM.key


def test_an_impostors_energy_is_attributed_to_the_impostor() -> None:
    played, impostor = Played(), claimed(BELOW_ITS_OWN[0])
    for _ in range(3):
        reading = gpu(0, [listed(3, 4 * GIB)], memory=memory(used_gib=4, reserved_gib=0))
        report = played.next(replace(reading, utilization=played.rows((3, 90))), processes=[old(3, impostor)])
    assert millijoules(report, impostor)["measured"] == 2 * CYCLE_MJ
    assert [each.ref for each in report.workloads] == [impostor]


def test_a_process_stays_with_the_workload_it_was_first_seen_in() -> None:
    reading = gpu(0, [listed(1, 4 * GIB)], memory=memory(used_gib=4, reserved_gib=0))
    report = play((reading, [facts(1, MALLORY)]), (reading, [facts(1, VICTIM)]))
    assert bytes_of(report, MALLORY) == (4 * GIB, 0)
    assert bytes_of(report, VICTIM) == (0, 0)
