"""What several sources know of the same workloads, put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from otel_gpu.directory import Directory, Named, PidsByWorkload, pids_by_workload
from otel_gpu.model import ProcessFacts, SourceState, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import Claim, Known, NameRead, PodContainer
from tests.builders import facts, gpu, uuid_of

ID = "a" * 64
REF = WorkloadRef(WorkloadKind.CONTAINER, ID, runtime="docker")
GPUS = (gpu(0), gpu(1))


def known(names: WorkloadNames, *claims: Claim, ref: WorkloadRef = REF, **more: object) -> Known:
    return replace(Known(ref, names, claims=claims), **more)  # type: ignore[arg-type]


def read(*everybody: Known, **more: object) -> NameRead:
    return replace(NameRead({one.ref.id: one for one in everybody}), **more)  # type: ignore[arg-type]


def update(directory: Directory, *reads: NameRead, asked: tuple[WorkloadRef, ...] = (REF,)) -> Named:
    return directory.update(reads, asked, GPUS)


# ---------------------------------------------------------------------------- names


def test_what_one_does_not_know_another_may() -> None:
    cri = read(known(WorkloadNames(container="main", pod="web-0", namespace="prod")))
    api = read(known(WorkloadNames(container="main", extra=(("k8s.pod.label.team", "ml"),), image="web:1")))
    named = update(Directory(), cri, api)
    assert named.names == {
        REF.key: WorkloadNames(
            container="main", pod="web-0", namespace="prod", image="web:1", extra=(("k8s.pod.label.team", "ml"),)
        )
    }


def test_names_are_told_of_who_is_there_or_was_given_a_gpu_and_of_nobody_else() -> None:
    given, other = (replace(REF, id=letter * 64) for letter in "bc")
    everybody = read(
        known(WorkloadNames(container="here")),
        known(WorkloadNames(container="given"), Claim("0"), ref=given),
        known(WorkloadNames(container="other"), ref=other),
    )
    assert set(update(Directory(), everybody).names) == {REF.key, given.key}


def test_an_id_that_two_claim_is_whose_its_cgroup_says_and_counted_once() -> None:
    docker = read(known(WorkloadNames(container="one", image="one:1", runtime="docker")))
    podman = read(known(WorkloadNames(container="two", pod="p", namespace="n", runtime="podman")))
    for asked, expected in (
        (REF, WorkloadNames(container="one", image="one:1", runtime="docker")),
        (replace(REF, runtime="podman"), WorkloadNames(container="two", pod="p", namespace="n", runtime="podman")),
        (replace(REF, runtime=None), WorkloadNames(container="one", image="one:1", runtime="docker")),
    ):
        directory = Directory()
        for cycle in range(3):
            assert update(directory, docker, podman, asked=(asked,)).names == {REF.key: expected}
            assert directory.judged(0, docker) is docker
            judged = directory.judged(1, podman)
            assert judged.state is SourceState.DEGRADED
            assert judged.reason == f"{ID[:12]} is 'two' here and 'one' to another source"
            assert judged.errors == (1 if cycle == 0 else 0)


def test_what_is_still_looked_up_by_anybody_is_pending() -> None:
    other, settled = (replace(REF, id=letter * 64) for letter in "bc")
    reads = read(pending=frozenset({ID, "nobody asked"})), read(pending=frozenset({other.id}))
    assert update(Directory(), *reads, asked=(REF, other, settled)).pending == {REF.key, other.key}


def test_a_job_with_the_number_of_a_container_is_somebody_else() -> None:
    job, lxc = (WorkloadRef(kind, "101") for kind in (WorkloadKind.SLURM_JOB, WorkloadKind.LXC))
    named = update(Directory(), read(known(WorkloadNames(title="train"), ref=job)), asked=(job, lxc))
    assert named.names == {job.key: WorkloadNames(title="train")}


OUTER = replace(REF, id="f" * 64)
INSIDE = replace(REF, outer_container_id=OUTER.id)


def test_who_is_inside_of_a_container_is_whom_somebody_knows_by_that_id() -> None:
    """A node of kind seen from outside: only the runtime inside knows its containers."""
    named = update(Directory(), read(known(WorkloadNames(container="main"), Claim("0"))), asked=(INSIDE,))
    assert named.names == {INSIDE.key: WorkloadNames(container="main")}
    assert [grant.workload for grant in named.grants] == [INSIDE]


@pytest.mark.parametrize(
    ("others", "asked"),
    [
        ([known(WorkloadNames(container="outer"), ref=OUTER)], (INSIDE,)),
        ([], (INSIDE, REF)),
        ([], (INSIDE, replace(INSIDE, outer_container_id="e" * 64))),
        ([], (replace(REF, outer_container_id="101"),)),
    ],
    ids=["who is known beside the outer one", "who is there", "whom two are", "who is in no engine's container"],
)
def test_an_impostor_inside_of_a_container_takes_neither_names_nor_gpus(
    others: list[Known], asked: tuple[WorkloadRef, ...]
) -> None:
    host = read(known(WorkloadNames(container="victim"), Claim("0")), *others)
    directory = Directory()
    update(directory, host, asked=(REF,))
    named = update(directory, host, asked=asked)
    assert named.names[REF.key] == WorkloadNames(container="victim")
    assert {named.names[ref.key] for ref in asked if ref is not REF} == {WorkloadNames()}  # none, in so many words
    assert [grant.workload for grant in named.grants] == [REF]


def test_an_impostor_loses_what_he_took_when_the_other_comes_or_the_outer_one_is_known() -> None:
    directory = Directory()
    host = read(known(WorkloadNames(container="victim")))
    victims, nobodys = WorkloadNames(container="victim"), WorkloadNames()
    assert update(directory, host, asked=(INSIDE,)).names == {INSIDE.key: victims}
    assert update(directory, host, asked=(INSIDE, REF)).names == {REF.key: victims, INSIDE.key: nobodys}
    assert update(directory, host, asked=(INSIDE,)).names == {INSIDE.key: victims}
    podman = read(known(WorkloadNames(container="mallory"), ref=OUTER))
    assert update(directory, host, podman, asked=(INSIDE,)).names == {INSIDE.key: nobodys}
    assert update(directory, podman, asked=(INSIDE,)).names == {}  # nobody says anything of it


def test_nothing_is_put_together_again_while_nothing_changes() -> None:
    directory = Directory()
    one = read(known(WorkloadNames(container="one"), Claim("0")))
    first = update(directory, one)
    again = update(directory, replace(one, errors=3, pending=frozenset({"z"})))
    assert again.grants is first.grants
    changed = update(directory, read(known(WorkloadNames(container="one"), Claim("1"))))
    assert [grant.gpu_uuid for grant in changed.grants] == [uuid_of(1)]


def test_pids_are_those_of_their_workload_and_who_has_left_has_none() -> None:
    left = replace(REF, id="left")
    found = pids_by_workload([facts(1, REF), facts(2, REF), facts(3)], also=[left, REF])
    assert {ref.id: list(pids) for ref, pids in found.items()} == {"left": [], ID: [1, 2], "host": [3]}


def by_pid(*processes: ProcessFacts) -> Mapping[int, ProcessFacts]:
    return {each.key.pid: each for each in processes}


def test_pids_are_the_same_object_until_anybody_comes_goes_or_moves() -> None:
    left = replace(REF, id="left")
    pids = PidsByWorkload()
    first = pids.of(by_pid(facts(1, REF), facts(2)))
    assert pids.of(by_pid(facts(1, REF), facts(2))) is first
    for processes, also in (
        ([facts(1, REF), facts(2), facts(3)], ()),
        ([facts(1, REF)], ()),
        ([facts(1), facts(2)], ()),
        ([facts(1, REF), facts(3)], ()),
        ([facts(1, REF), facts(2)], (left,)),
    ):
        assert pids.of(by_pid(*processes), also=also) == pids_by_workload(processes, also=also) != first


def test_names_are_the_same_object_while_the_workloads_and_what_is_told_of_them_are() -> None:
    directory, told, asked = Directory(), read(known(WorkloadNames(container="one"))), (REF,)
    first = directory.update([told], asked, [])
    assert directory.update([replace(told, pending=frozenset({ID}))], asked, []).names is first.names
    assert directory.update([told], asked, []).names is first.names
    renamed = read(known(WorkloadNames(container="two")))
    assert directory.update([renamed], asked, []).names[REF.key].container == "two"
    assert directory.update([renamed], (), []).names == {}


# ---------------------------------------------------------------------------- grants


def test_who_has_ended_has_no_gpu_any_more() -> None:
    running = known(WorkloadNames(container="one"), Claim("0"), since_s=5.0)
    assert [(g.workload, g.since_s) for g in update(Directory(), read(running)).grants] == [(REF, 5.0)]
    assert update(Directory(), read(replace(running, running=False))).grants == ()


def pod_of(names: WorkloadNames) -> PodContainer:
    return PodContainer(names.namespace or "", names.pod or "", names.container or "")


IN_POD = WorkloadNames(container="main", pod="web-0", namespace="prod")


def test_what_the_kubelet_gave_to_a_container_belongs_to_the_one_that_runs_now() -> None:
    old, older, young = (replace(REF, id=letter * 64) for letter in "bcd")
    cri = read(
        known(IN_POD, ref=young, since_s=30.0),
        known(IN_POD, ref=old, running=False, since_s=40.0),
        known(IN_POD, ref=older, since_s=20.0),
    )
    long = tuple(
        replace(each, identity=replace(each.identity, uuid=f"GPU-{each.identity.index}0000000")) for each in GPUS
    )
    pods = NameRead(pods={pod_of(IN_POD): (Claim("GPU-10000000", replicas=2),)})
    grants = Directory().update([cri, pods], [REF], long).grants
    assert [(g.workload, g.gpu_uuid, g.share, g.since_s) for g in grants] == [(young, "GPU-10000000", 0.5, 30.0)]


def test_a_container_that_does_not_exist_yet_is_no_trouble_and_has_nothing() -> None:
    directory = Directory()
    pods = NameRead(pods={PodContainer("prod", "pulling-its-image", "main"): (Claim("0"),)})
    assert update(directory, read(known(IN_POD)), pods).grants == ()
    assert directory.judged(1, pods) is pods


def test_that_nobody_knows_containers_of_pods_is_told_with_what_to_do() -> None:
    directory = Directory()
    pods = NameRead(pods={pod_of(IN_POD): (Claim("0"),)})
    assert update(directory, pods).grants == ()
    judged = directory.judged(0, pods)
    assert judged.state is SourceState.DEGRADED
    assert judged.reason is not None
    assert "--cri-socket" in judged.reason
    assert "--kubernetes-api" in judged.reason


@pytest.mark.parametrize("state", [SourceState.OK, SourceState.UNAVAILABLE])
def test_a_gpu_that_is_not_here_is_told_beside_what_else_is_wrong(state: SourceState) -> None:
    directory = Directory()
    one = read(known(WorkloadNames(container="trainer"), Claim("7"), Claim("8"), Claim("0")))
    one = replace(one, state=state, reason=None if state is SourceState.OK else "away")
    named = update(directory, one)
    assert [grant.gpu_uuid for grant in named.grants] == [uuid_of(0)]
    judged = directory.judged(0, one)
    assert judged.state is (SourceState.DEGRADED if state is SourceState.OK else state)
    told = "trainer was given '7', which is no GPU of this host (and 1 more)"
    assert judged.reason == (told if state is SourceState.OK else f"away; {told}")
    assert judged.errors == 2
    update(directory, one)
    assert directory.judged(0, one).errors == 0
