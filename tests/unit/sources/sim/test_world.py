"""Processes alive at a time, and the jobs of a stream."""

from __future__ import annotations

import pytest

from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.sim.world import JobStream, ProcessSpec, Roster, WorkloadSpec, WorldSpec, job
from tests.unit.sources.sim.builders import gpu, process, use, world

HOUR_US = 3_600_000_000


def stream(workload: WorkloadSpec, every_s: float = 10.0, longest_s: float = 35.0, pid_count: int = 50) -> JobStream:
    template = ProcessSpec(0, "job", workload, (use(0.5),))
    return JobStream("jobs", every_s, 5.0, longest_s, (template,), first_pid=1000, pid_count=pid_count)


def pod() -> WorkloadSpec:
    ref = WorkloadRef(WorkloadKind.CONTAINER, "0" * 64, "containerd", pod_uid="0" * 36)
    return WorkloadSpec(ref, WorkloadNames("work", "image:1", "batch", "default", "0" * 36))


def test_a_process_is_alive_from_its_start_until_before_its_end() -> None:
    roster = Roster(world(process(1, start_s=1.0, end_s=2.0), process(2, start_s=-5.0)))

    def pids(time_us: int) -> list[int]:
        return [alive.pid for alive in roster.at(time_us).processes]

    assert [pids(t) for t in (0, 999_999, 1_000_000, 1_999_999, 2_000_000)] == [[2], [2], [2, 1], [2, 1], [2]]
    assert pids(1_500_000) == [2, 1], "time may be asked for backwards"


def test_an_answer_is_valid_until_the_next_start_or_end() -> None:
    roster = Roster(world(process(1, start_s=1.0, end_s=2.0), process(2, start_s=1.5)))
    assert [roster.at(t).until_us for t in (0, 1_000_000, 1_500_000)] == [1_000_000, 1_500_000, 2_000_000]
    assert roster.at(1_600_000) is roster.at(1_900_000)


def test_a_stream_is_endless_and_bounded_at_any_time() -> None:
    spec = WorldSpec(seed=3, gpus=(gpu(),), streams=(stream(pod()),))
    roster = Roster(spec)
    seen = set()
    for second in range(40 * 3600, 41 * 3600):
        alive = roster.at(second * 1_000_000).processes
        assert len(alive) <= 5
        seen |= {(one.pid, one.start_s) for one in alive}
    assert 350 <= len(seen) <= 370
    assert len({pid for pid, _ in seen}) == 50, "pids are used again"


def test_jobs_do_not_depend_on_the_first_lookup() -> None:
    spec = WorldSpec(seed=3, gpus=(gpu(),), streams=(stream(pod()),))
    straight, jumping = Roster(spec), Roster(spec)
    expected = {t: straight.at(t).processes for t in range(0, HOUR_US, 777_777)}
    for t in sorted(expected, key=lambda t: (t * 7919) % 104_729):
        assert jumping.at(t).processes == expected[t]


def test_jobs_that_started_before_world_time_0_are_alive_at_it() -> None:
    spec = WorldSpec(seed=3, gpus=(gpu(),), streams=(stream(pod(), every_s=1.0),))
    assert any(alive.start_s < 0 for alive in Roster(spec).at(0).processes)


def test_each_job_in_a_container_is_its_own_pod() -> None:
    jobs = [job(stream(pod()), number, seed=9) for number in range(200)]
    assert len({one.workload.ref.id for one in jobs}) == 200
    assert all(len(one.workload.ref.id) == 64 for one in jobs)
    names = [one.workload.names for one in jobs]
    assert len({name.pod for name in names if name}) == 200
    assert all(name and name.pod and name.pod.startswith("batch-") and name.container == "work" for name in names)
    assert all(one.workload.names and one.workload.names.pod_uid == one.workload.ref.pod_uid for one in jobs)


def test_slurm_jobs_have_consecutive_numbers() -> None:
    slurm = stream(WorkloadSpec(WorkloadRef(WorkloadKind.SLURM_JOB, "500")))
    assert [job(slurm, number, seed=9).workload.ref.id for number in range(3)] == ["500", "501", "502"]


def test_a_stream_with_too_few_pids_is_refused() -> None:
    with pytest.raises(ValueError, match="too few pids"):
        stream(pod(), pid_count=4)
