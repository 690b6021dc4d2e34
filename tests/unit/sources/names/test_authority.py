"""Which source's text counts, by the kind of source and what the cgroup of the workload shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import HOST, KUBERNETES, SLURM, Claim, NameRead, Speaker, SpeakerKind, WorkloadInfo
from otel_gpu.sources.names.authority import Statement, admit, seen_cgroups

ID, UID, OTHER_UID = "a" * 64, "0c3e1f7a-8f4e-4a53-b9e2-5d6f1c2b3a49", "1c3e1f7a-8f4e-4a53-b9e2-5d6f1c2b3a49"
DOCKER = Speaker(SpeakerKind.ENGINE, frozenset({"docker", "ecs"}))
USER_DOCKER = replace(DOCKER, uid=1000)
OUTSIDE = WorkloadRef(WorkloadKind.CONTAINER, ID)
OF_USER = replace(OUTSIDE, user_uid=1000)
IN_POD = replace(OUTSIDE, pod_uid=UID)
OWN = WorkloadNames(container="k8s_main", image="vllm:1")
POD = WorkloadNames(container="main", pod="p", namespace="billing", pod_uid=UID)


def stated(runtime: str = "docker", *, labelled: WorkloadNames | None = None, **more: object) -> WorkloadInfo:
    """What a source says of the container."""
    info = WorkloadInfo(replace(OUTSIDE, runtime=runtime), OWN, claims=(Claim("0"),), labelled=labelled)
    return info._replace(**more)  # type: ignore[arg-type]


def judged(speaker: Speaker, info: WorkloadInfo, *cgroups: WorkloadRef) -> Statement:
    return admit(speaker, info, seen_cgroups(cgroups, [NameRead({ID: info}, speaker=speaker)]))


@pytest.mark.parametrize("pod_uid", [None, UID])
@pytest.mark.parametrize("user_uid", [None, 1000])
@pytest.mark.parametrize("runtime", [None, "docker", "ecs", "podman", "containerd", "cri-o"])
@pytest.mark.parametrize("speaker", [DOCKER, USER_DOCKER, KUBERNETES], ids=["root's", "a user's", "kubernetes"])
def test_the_cgroup_decides_whether_a_source_may_name_a_container(
    speaker: Speaker, runtime: str | None, user_uid: int | None, pod_uid: str | None
) -> None:
    """Docker, whose containers have labels of a pod, and the kubelet's source, which says the same."""
    cgroup = replace(OUTSIDE, runtime=runtime, user_uid=user_uid, pod_uid=pod_uid)
    is_engine = speaker.kind is SpeakerKind.ENGINE
    info = stated(labelled=POD) if is_engine else stated(names=POD._replace(runtime="docker"))
    found = judged(speaker, info, cgroup).info
    counts = found is not None and found.ref.key == cgroup.key
    shows_docker = runtime in {"docker", "ecs"}
    if speaker is KUBERNETES:
        expected = user_uid is None and (pod_uid is not None or runtime in (None, "docker"))
    elif speaker is DOCKER:
        expected = user_uid is None and (shows_docker or (runtime is None and pod_uid is None))
    else:
        expected = user_uid == 1000 and (shows_docker or runtime is None)
    assert counts is expected
    names_pod = counts and found is not None and found.names.pod is not None
    assert names_pod is (expected and (speaker is KUBERNETES or (speaker is DOCKER and pod_uid is not None)))
    if counts and found is not None and not names_pod:
        assert (found.names, found.labelled) == (OWN, None)


@pytest.mark.parametrize("speaker", [DOCKER, replace(DOCKER, runtimes=frozenset({"podman"}))])
def test_a_container_of_another_runtime_is_refused_with_its_grants(speaker: Speaker) -> None:
    cgroup = replace(OUTSIDE, runtime="containerd")
    assert judged(speaker, stated(), cgroup) == Statement(
        None,
        f"container {ID[:12]}: its cgroup is of containerd, which this source is not; what this source says of it is "
        "ignored",
    )


def test_names_of_a_pod_take_the_uid_of_its_cgroup() -> None:
    cgroup = replace(IN_POD, runtime="docker")
    right, wrong = (judged(DOCKER, stated(labelled=POD._replace(pod_uid=uid)), cgroup) for uid in (UID, OTHER_UID))
    assert right.info is not None
    assert (right.info.names, right.info.ref.pod_uid) == (POD.over(OWN), UID)
    assert wrong.info is not None
    assert (wrong.info.names, wrong.info.ref.pod_uid) == (OWN, UID)
    assert wrong.problem is not None
    assert "its labels name pod 'billing/p', but its cgroup is that of pod" in wrong.problem


def test_a_forged_pod_is_reported_in_one_line() -> None:
    forged = POD._replace(namespace="a\nb", pod="\x1b[2J")
    problem = judged(DOCKER, stated(labelled=forged), replace(OUTSIDE, runtime="docker")).problem
    assert problem is not None
    assert problem.isprintable()


def test_a_container_without_a_visible_cgroup_has_roots_names_but_no_pod() -> None:
    found = judged(DOCKER, stated(labelled=POD))
    assert found == Statement(stated())
    [claim] = found.info.claims if found.info else ()
    assert claim == Claim("0")


def test_the_process_that_an_engine_names_shows_where_the_container_is() -> None:
    in_pod = stated(labelled=POD, place=replace(IN_POD, runtime="docker"))
    assert judged(DOCKER, in_pod).info == in_pod._replace(
        ref=replace(IN_POD, runtime="docker"), names=POD.over(OWN), labelled=None
    )
    elsewhere = stated(place=replace(OUTSIDE, runtime="podman"))
    assert judged(DOCKER, elsewhere).info is None
    over_tcp = stated(place=replace(OF_USER, runtime="docker"))
    found = judged(DOCKER, over_tcp).info
    assert found is not None
    assert found.ref.key == OF_USER.key


def test_a_user_engine_names_what_runs_in_the_slice_of_its_user_only() -> None:
    mine = stated(place=replace(OF_USER, runtime="docker"), labelled=POD)
    found = judged(USER_DOCKER, mine)
    assert found.info is not None
    assert found.info.ref == replace(OF_USER, runtime="docker")
    assert (found.info.names, found.info.claims) == (OWN, (Claim("0"),))
    assert found.problem is not None
    assert "its labels name pod 'billing/p', but it is of user 1000's engine" in found.problem
    for place in (None, OUTSIDE, replace(OF_USER, user_uid=1001), IN_POD):
        refused = judged(USER_DOCKER, stated(place=place))
        assert refused.info is None
        assert refused.problem is not None
        assert "no process of it is in a cgroup of user 1000" in refused.problem
    assert judged(USER_DOCKER, stated(running=False)) == Statement(None)


def test_a_source_of_kubernetes_names_no_pod_that_the_cgroup_contradicts() -> None:
    cri = stated("containerd", names=POD)
    assert judged(KUBERNETES, cri, IN_POD).info == cri
    other = judged(KUBERNETES, cri, replace(IN_POD, pod_uid=OTHER_UID))
    assert other.info is None
    assert other.problem is not None
    assert f"its cgroup is of pod {OTHER_UID}, not of {UID}" in other.problem


def test_slurm_names_jobs_and_a_simulated_host_everything() -> None:
    job = WorkloadInfo(WorkloadRef(WorkloadKind.SLURM_JOB, "7"), WorkloadNames(title="train"))
    assert judged(SLURM, job) == Statement(job)
    assert judged(SLURM, stated()) == Statement(None)
    assert judged(HOST, stated(names=POD), replace(OUTSIDE, runtime="podman")).info == stated(names=POD)
