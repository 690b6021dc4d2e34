"""Names and grants resolved from what several sources know of the same workloads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.model import SourceState, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import (
    KUBERNETES,
    Claim,
    NameRead,
    PodContainer,
    Speaker,
    SpeakerKind,
    WorkloadInfo,
)
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


DOCKER = Speaker(SpeakerKind.ENGINE, frozenset({"docker", "ecs"}))
PODMAN = Speaker(SpeakerKind.ENGINE, frozenset({"podman"}))
IGNORED = "which this source is not; what this source says of it is ignored"


@pytest.mark.parametrize(
    ("runtime", "expected", "wrong", "problem"),
    [
        ("docker", "one", 1, f"container {ID[:12]}: its cgroup is of docker, {IGNORED}"),
        ("podman", "two", 0, f"container {ID[:12]}: its cgroup is of podman, {IGNORED}"),
        (None, "one", 1, f"{ID[:12]} is 'two' here and 'one' in another source"),
    ],
)
def test_an_engine_names_no_container_of_another_runtime_and_is_reported_once(
    runtime: str | None, expected: str, wrong: int, problem: str
) -> None:
    docker = read(known(WorkloadNames(container="one", image="one:1")), speaker=DOCKER)
    podman = read(known(WorkloadNames(container="two"), Claim("1")), speaker=PODMAN)
    resolver = NameResolver()
    for cycle in range(3):
        resolution = resolve(docker, podman, workloads=(replace(REF, runtime=runtime),), resolver=resolver)
        assert resolution.names[REF.key].container == expected
        assert len(resolution.grants) == (expected == "two")
        assert resolution.reads[1 - wrong].state is SourceState.OK
        assert (resolution.reads[wrong].state, resolution.reads[wrong].reason) == (SourceState.DEGRADED, problem)
        assert resolution.reads[wrong].errors == (1 if cycle == 0 else 0)


def test_a_user_engine_neither_gets_nor_hides_names_and_grants_of_a_container_of_root() -> None:
    podman = read(
        known(WorkloadNames(container="victim"), Claim("0"), ref=replace(REF, runtime="podman")), speaker=PODMAN
    )
    forged = known(WorkloadNames(container="forged"), Claim("1"), ref=replace(REF, runtime="podman"), since_s=9.0)
    user = read(forged, speaker=replace(PODMAN, uid=1000))
    for reads in ((podman, user), (user, podman)):
        resolution = resolve(*reads, workloads=())
        assert resolution.names == {REF.key: WorkloadNames(container="victim")}
        assert [(grant.workload.key, grant.gpu_uuid) for grant in resolution.grants] == [(REF.key, uuid_of(0))]
        [refused] = [each for each in resolution.reads if each.speaker.uid == 1000]
        assert refused.reason is not None
        assert "no process of it is in a cgroup of user 1000" in refused.reason


def test_a_user_that_creates_a_cgroup_with_the_id_of_root_is_another_workload() -> None:
    mine = replace(REF, runtime="podman", user_uid=1000)
    podman = read(known(WorkloadNames(container="victim"), Claim("0")), speaker=PODMAN)
    forged = known(WorkloadNames(container="forged"), Claim("0"), place=mine)
    user = read(forged, speaker=replace(PODMAN, uid=1000))
    victim = replace(REF, runtime="podman")
    resolution = resolve(podman, user, workloads=(victim, mine))
    assert resolution.names == {
        victim.key: WorkloadNames(container="victim"),
        mine.key: WorkloadNames(container="forged"),
    }
    assert {grant.workload.key for grant in resolution.grants} == {victim.key, mine.key}
    unknown = resolve(podman, workloads=(mine,))
    assert unknown.names == {mine.key: WorkloadNames(), victim.key: WorkloadNames(container="victim")}


def test_a_container_with_a_forged_pod_does_not_take_the_grant_of_that_pod() -> None:
    trainer = replace(REF, id="b" * 64, runtime="containerd", pod_uid="uid")
    names = WorkloadNames(container="main", pod="web-0", namespace="prod", pod_uid="uid")
    cri = read(known(names, ref=trainer, since_s=1.0), speaker=KUBERNETES)
    kubelet = NameRead(pods={pod_of(names): (Claim("0"),)}, speaker=KUBERNETES)
    forged = known(WorkloadNames(container="x"), labelled=names, since_s=99.0)
    docker = read(forged, speaker=DOCKER)
    resolution = resolve(cri, docker, kubelet, workloads=(REF, trainer))
    assert resolution.names == {trainer.key: names, REF.key: WorkloadNames(container="x")}
    assert [grant.workload for grant in resolution.grants] == [trainer]
    assert resolution.reads[1].reason == (
        f"container {ID[:12]}: its labels name pod 'prod/web-0', but its cgroup is no pod's; they are ignored"
    )


def test_only_sources_of_kubernetes_grant_gpus_to_pods() -> None:
    cri = read(known(IN_POD), speaker=KUBERNETES)
    pods = {pod_of(IN_POD): (Claim("0"),)}
    assert resolve(cri, NameRead(pods=pods, speaker=KUBERNETES)).grants
    assert not resolve(cri, NameRead(pods=pods, speaker=DOCKER)).grants


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


def test_a_nested_container_of_another_runtime_or_pod_has_no_names_of_that_id() -> None:
    docker = read(known(WorkloadNames(container="main"), Claim("0")), speaker=DOCKER)
    assert resolve(docker, workloads=(NESTED,)).names == {NESTED.key: WorkloadNames(container="main")}
    assert resolve(docker, workloads=(replace(NESTED, runtime="podman"),)).names == {}
    pod = known(IN_POD._replace(pod_uid="uid"), Claim("0"))
    cri = read(pod, speaker=KUBERNETES)
    for uid, named in (("uid", True), ("other", False)):
        assert (NESTED.key in resolve(cri, workloads=(replace(NESTED, pod_uid=uid),)).names) is named


def test_an_impostor_takes_nothing_of_a_container_whose_process_the_engine_names() -> None:
    """The victim was granted a GPU and does not use it yet: only the engine shows that it runs."""
    victim = read(known(WorkloadNames(container="victim"), Claim("0"), place=REF), speaker=DOCKER)
    resolution = resolve(victim, workloads=(NESTED,))
    assert resolution.names == {REF.key: WorkloadNames(container="victim"), NESTED.key: WorkloadNames()}
    assert [grant.workload.key for grant in resolution.grants] == [REF.key]


def test_a_user_engine_cannot_take_names_from_nested_containers_by_knowing_the_outer_one() -> None:
    inner = read(known(WorkloadNames(container="main")))
    user = read(known(WorkloadNames(container="x"), ref=OUTER), speaker=replace(DOCKER, uid=1000))
    assert resolve(inner, user, workloads=(NESTED,)).names == {NESTED.key: WorkloadNames(container="main")}
    same_id = replace(NESTED, user_uid=1000)
    assert resolve(inner, workloads=(NESTED, same_id)).names == {NESTED.key: WorkloadNames(container="main")}


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
