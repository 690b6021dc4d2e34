"""Names and grants resolved from what several sources know of the same workloads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.model import SourceState, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import Claim, NameRead, PodContainer, WorkloadInfo
from otel_gpu.sources.names.resolver import NameResolver, Resolution, pids_by_workload
from tests.builders import facts, gpu, uuid_of

ID = "a" * 64
REF = WorkloadRef(WorkloadKind.CONTAINER, ID, runtime="docker")
GPUS = (gpu(0), gpu(1))


def known(names: WorkloadNames, *claims: Claim, ref: WorkloadRef = REF, **more: object) -> WorkloadInfo:
    return WorkloadInfo(ref, names, claims=claims)._replace(**more)  # type: ignore[arg-type]


def read(*workloads: WorkloadInfo, **more: object) -> NameRead:
    return replace(NameRead({each.ref.id: each for each in workloads}), **more)  # type: ignore[arg-type]


def resolve(
    *reads: NameRead, workloads: tuple[WorkloadRef, ...] = (REF,), resolver: NameResolver | None = None
) -> Resolution:
    return (resolver or NameResolver()).resolve(reads, workloads, GPUS)


# ---------------------------------------------------------------------------- names


def test_names_of_several_sources_complement_each_other() -> None:
    cri = read(known(WorkloadNames(container="main", pod="web-0", namespace="prod")))
    api = read(known(WorkloadNames(container="main", extra=(("k8s.pod.label.team", "ml"),), image="web:1")))
    assert resolve(cri, api).names == {
        REF.key: WorkloadNames(
            container="main", pod="web-0", namespace="prod", image="web:1", extra=(("k8s.pod.label.team", "ml"),)
        )
    }


def test_only_workloads_on_a_gpu_or_with_a_grant_are_named() -> None:
    granted, other = (replace(REF, id=letter * 64) for letter in "bc")
    source = read(
        known(WorkloadNames(container="on-gpu")),
        known(WorkloadNames(container="granted"), Claim("0"), ref=granted),
        known(WorkloadNames(container="other"), ref=other),
    )
    assert set(resolve(source).names) == {REF.key, granted.key}


def test_the_runtime_in_the_cgroup_decides_between_contradicting_sources_which_is_one_error() -> None:
    docker = read(known(WorkloadNames(container="one", image="one:1", runtime="docker")))
    podman = read(known(WorkloadNames(container="two", pod="p", namespace="n", runtime="podman")))
    for ref, expected in (
        (REF, WorkloadNames(container="one", image="one:1", runtime="docker")),
        (replace(REF, runtime="podman"), WorkloadNames(container="two", pod="p", namespace="n", runtime="podman")),
        (replace(REF, runtime=None), WorkloadNames(container="one", image="one:1", runtime="docker")),
    ):
        resolver = NameResolver()
        for cycle in range(3):
            resolution = resolve(docker, podman, workloads=(ref,), resolver=resolver)
            assert resolution.names == {REF.key: expected}
            assert resolution.reads[0] == docker
            assert resolution.reads[1].state is SourceState.DEGRADED
            assert resolution.reads[1].reason == f"{ID[:12]} is 'two' here and 'one' in another source"
            assert resolution.reads[1].errors == (1 if cycle == 0 else 0)


def test_a_workload_is_pending_while_any_source_is_looking_it_up() -> None:
    other, done = (replace(REF, id=letter * 64) for letter in "bc")
    reads = read(pending=frozenset({ID, "not on a GPU"})), read(pending=frozenset({other.id}))
    assert resolve(*reads, workloads=(REF, other, done)).pending == {REF.key, other.key}


def test_a_job_and_a_container_with_the_same_id_are_two_workloads() -> None:
    job, lxc = (WorkloadRef(kind, "101") for kind in (WorkloadKind.SLURM_JOB, WorkloadKind.LXC))
    resolution = resolve(read(known(WorkloadNames(title="train"), ref=job)), workloads=(job, lxc))
    assert resolution.names == {job.key: WorkloadNames(title="train")}


# ---------------------------------------------------------------------------- nested containers


OUTER = replace(REF, id="f" * 64)
NESTED = replace(REF, outer_container_id=OUTER.id)


def test_a_nested_container_has_the_names_known_by_its_id() -> None:
    """A node of kind seen from outside: only the runtime inside knows its containers."""
    resolution = resolve(read(known(WorkloadNames(container="main"), Claim("0"))), workloads=(NESTED,))
    assert resolution.names == {NESTED.key: WorkloadNames(container="main")}
    assert [grant.workload for grant in resolution.grants] == [NESTED]


def test_two_steps_of_a_nested_slurm_job_are_one_workload_with_its_names() -> None:
    steps = [
        WorkloadRef(WorkloadKind.SLURM_JOB, "7", slurm_step=step, outer_container_id="b" * 64) for step in ("0", "1")
    ]
    slurm = read(known(WorkloadNames(title="train"), ref=WorkloadRef(WorkloadKind.SLURM_JOB, "7")))
    for workloads in (tuple(steps[:1]), tuple(steps)):
        assert resolve(slurm, workloads=workloads).names == {steps[0].key: WorkloadNames(title="train")}


@pytest.mark.parametrize(
    ("others", "workloads"),
    [
        ([known(WorkloadNames(container="outer"), ref=OUTER)], (NESTED,)),
        ([], (NESTED, REF)),
        ([], (NESTED, replace(NESTED, outer_container_id="e" * 64))),
        ([], (replace(REF, outer_container_id="101"),)),
    ],
    ids=["the outer container is known", "the victim is on a GPU", "two use the id", "the outer one has no engine id"],
)
def test_an_impostor_in_a_nested_cgroup_takes_neither_names_nor_grants(
    others: list[WorkloadInfo], workloads: tuple[WorkloadRef, ...]
) -> None:
    host = read(known(WorkloadNames(container="victim"), Claim("0")), *others)
    resolver = NameResolver()
    resolve(host, workloads=(REF,), resolver=resolver)
    resolution = resolve(host, workloads=workloads, resolver=resolver)
    assert resolution.names[REF.key] == WorkloadNames(container="victim")
    assert {resolution.names[ref.key] for ref in workloads if ref is not REF} == {WorkloadNames()}  # explicitly none
    assert [grant.workload for grant in resolution.grants] == [REF]


def test_an_impostor_loses_names_when_the_victim_appears_or_the_outer_container_is_known() -> None:
    resolver = NameResolver()
    host = read(known(WorkloadNames(container="victim")))
    victim, none = WorkloadNames(container="victim"), WorkloadNames()
    assert resolve(host, workloads=(NESTED,), resolver=resolver).names == {NESTED.key: victim}
    both = resolve(host, workloads=(NESTED, REF), resolver=resolver)
    assert both.names == {REF.key: victim, NESTED.key: none}
    assert resolve(host, workloads=(NESTED,), resolver=resolver).names == {NESTED.key: victim}
    podman = read(known(WorkloadNames(container="mallory"), ref=OUTER))
    assert resolve(host, podman, workloads=(NESTED,), resolver=resolver).names == {NESTED.key: none}
    assert resolve(podman, workloads=(NESTED,), resolver=resolver).names == {}  # no source knows the id


# ---------------------------------------------------------------------------- from cycle to cycle


def test_a_change_of_the_runtime_in_the_cgroup_counts_at_once_for_agreeing_sources_too() -> None:
    resolver = NameResolver()
    reads = [read(known(WorkloadNames(container="one", runtime=runtime))) for runtime in ("podman", "docker")]
    for runtime, expected in (("podman", "podman"), ("docker", "docker"), (None, "podman")):
        resolution = resolve(*reads, workloads=(replace(REF, runtime=runtime),), resolver=resolver)
        assert resolution.names[REF.key].runtime == expected
        assert [each.errors for each in resolution.reads] == [0, 0]


def test_names_and_grants_depend_on_the_present_cycle_only() -> None:
    one = read(known(WorkloadNames(container="one"), Claim("0")))
    renamed = read(known(WorkloadNames(container="two"), Claim("1")))
    other = read(known(WorkloadNames(container="three", runtime="podman"), Claim("7")))
    cycles = [
        ([one], (REF,)),
        ([replace(one, errors=3, pending=frozenset({ID}))], (REF,)),
        ([renamed], (REF,)),
        ([renamed, other], (REF,)),
        ([renamed, other], (replace(REF, runtime="podman"),)),
        ([other, renamed], (REF, NESTED)),
        ([other], (NESTED,)),
        ([], (REF,)),
        ([one], ()),
    ]
    resolver = NameResolver()
    for reads, workloads in cycles:
        kept = resolve(*reads, workloads=workloads, resolver=resolver)
        assert kept[:3] == resolve(*reads, workloads=workloads)[:3]


def test_pids_are_grouped_by_workload_and_ended_workloads_have_none() -> None:
    ended = replace(REF, id="ended")
    found = pids_by_workload([facts(1, REF), facts(2, REF), facts(3)], also=[ended, REF])
    assert {ref.id: list(pids) for ref, pids in found.items()} == {"ended": [], ID: [1, 2], "host": [3]}


# ---------------------------------------------------------------------------- grants


def test_a_workload_that_has_ended_has_no_grant() -> None:
    running = known(WorkloadNames(container="one"), Claim("0"), since_s=5.0)
    assert [(grant.workload, grant.since_s) for grant in resolve(read(running)).grants] == [(REF, 5.0)]
    assert resolve(read(running._replace(running=False))).grants == ()


def pod_of(names: WorkloadNames) -> PodContainer:
    return PodContainer(names.namespace or "", names.pod or "", names.container or "")


IN_POD = WorkloadNames(container="main", pod="web-0", namespace="prod")


def test_a_claim_by_pod_and_container_name_belongs_to_the_container_that_runs_now() -> None:
    ended, older, young = (replace(REF, id=letter * 64) for letter in "bcd")
    cri = read(
        known(IN_POD, ref=young, since_s=30.0),
        known(IN_POD, ref=ended, running=False, since_s=40.0),
        known(IN_POD, ref=older, since_s=20.0),
    )
    gpus = tuple(
        replace(each, identity=replace(each.identity, uuid=f"GPU-{each.identity.index}0000000")) for each in GPUS
    )
    pods = NameRead(pods={pod_of(IN_POD): (Claim("GPU-10000000", replicas=2),)})
    grants = NameResolver().resolve([cri, pods], [REF], gpus).grants
    assert [(g.workload, g.gpu_uuid, g.share, g.since_s) for g in grants] == [(young, "GPU-10000000", 0.5, 30.0)]


def test_a_container_that_does_not_exist_yet_is_no_problem_and_has_no_grant() -> None:
    pods = NameRead(pods={PodContainer("prod", "pulling-its-image", "main"): (Claim("0"),)})
    resolution = resolve(read(known(IN_POD)), pods)
    assert resolution.grants == ()
    assert resolution.reads[1] == pods


def test_pods_without_a_source_of_container_ids_are_reported_with_the_remedy() -> None:
    resolution = resolve(NameRead(pods={pod_of(IN_POD): (Claim("0"),)}))
    assert resolution.grants == ()
    [checked] = resolution.reads
    assert checked.state is SourceState.DEGRADED
    assert checked.reason is not None
    assert "--cri-socket" in checked.reason
    assert "--kubernetes-api" in checked.reason


@pytest.mark.parametrize("state", [SourceState.OK, SourceState.UNAVAILABLE])
def test_a_grant_of_an_unknown_gpu_is_reported_beside_other_reasons(state: SourceState) -> None:
    resolver = NameResolver()
    one = read(known(WorkloadNames(container="trainer"), Claim("7"), Claim("8"), Claim("0")))
    one = replace(one, state=state, reason=None if state is SourceState.OK else "away")
    resolution = resolve(one, resolver=resolver)
    assert [grant.gpu_uuid for grant in resolution.grants] == [uuid_of(0)]
    [checked] = resolution.reads
    assert checked.state is (SourceState.DEGRADED if state is SourceState.OK else state)
    problem = "trainer was granted '7', which is not a GPU of this host (and 1 more)"
    assert checked.reason == (problem if state is SourceState.OK else f"away; {problem}")
    assert checked.errors == 2
    assert resolve(one, resolver=resolver).reads[0].errors == 0


def test_a_problem_that_comes_back_is_an_error_again() -> None:
    resolver = NameResolver()
    wrong, right = (read(known(WorkloadNames(container="trainer"), Claim(device))) for device in "70")
    errors = [resolve(each, resolver=resolver).reads[0].errors for each in (wrong, wrong, right, wrong)]
    assert errors == [1, 0, 0, 1]
