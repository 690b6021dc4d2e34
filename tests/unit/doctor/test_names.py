from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from otel_gpu.doctor.findings import Finding, Verdict, is_blind
from otel_gpu.doctor.names import Asked, examine_names, judged
from otel_gpu.model import SourceState, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.settings_names import Environment
from otel_gpu.sources.base import Claim, NameRead, PodContainer, WorkloadInfo
from otel_gpu.sources.names.candidates import Candidate, Kind, Presence, Socket
from tests.unit.doctor.hosts import complete

CONTAINER = WorkloadRef(WorkloadKind.CONTAINER, "a" * 64)
JOB = WorkloadRef(WorkloadKind.SLURM_JOB, "7")


def asked(name: str = "docker", read: NameRead | None = None, *, used: bool = True, kind: Kind = Kind.DOCKER) -> Asked:
    return Asked(Candidate(name, kind, used, why="/run/x.sock" if used else "not found at /run/x.sock"), read)


def known(*refs: WorkloadRef) -> NameRead:
    return NameRead({ref.id: WorkloadInfo(ref, WorkloadNames(container="c")) for ref in refs})


def named(
    *who: Asked, environment: Environment = Environment.AUTO, workloads: Collection[WorkloadRef] = ()
) -> dict[str, Finding]:
    return {finding.subject: finding for finding in examine_names(environment, who, workloads)}


def test_who_tells_names_is_told_with_how_many_he_knows() -> None:
    found = named(asked(read=known(CONTAINER)), asked("cri", known(CONTAINER, JOB)), workloads=[CONTAINER])
    assert found["environment"].found == "auto: asked for names: docker, cri"
    assert found["docker"] == Finding("docker", Verdict.OK, "/run/x.sock: 1 workload known")
    assert found["cri"].found == "/run/x.sock: 2 workloads known"
    assert found["names"] == Finding("names", Verdict.OK, "known for 1 of 1 container or job on a GPU")


def test_what_the_kubelet_gave_is_counted_in_containers_of_pods() -> None:
    for names, told in ((("a",), "1 container of pods given a GPU"), (("a", "b"), "2 containers of pods given a GPU")):
        read = NameRead(pods={PodContainer("n", "p", name): (Claim("0"),) for name in names})
        found = named(asked("pod-resources", read, kind=Kind.POD_RESOURCES))["pod-resources"]
        assert found.found == f"/run/x.sock: {told}"


def test_who_is_not_there_is_told_in_auto_and_is_no_trouble() -> None:
    found = named(asked(used=False))
    assert found["environment"].found == "auto: asked for names: nobody"
    assert found["docker"] == Finding("docker", Verdict.UNUSED, "not found at /run/x.sock")


def test_in_a_named_environment_nothing_is_told_of_others() -> None:
    found = named(asked("slurm", known()), asked(used=False), environment=Environment.SLURM)
    assert list(found) == ["environment", "slurm"]


@pytest.mark.parametrize("state", [SourceState.DEGRADED, SourceState.UNAVAILABLE])
def test_who_cannot_tell_degrades_with_his_reason_and_blinds_nobody(state: SourceState) -> None:
    reason = "/run/x.sock: permission denied; add the agent's user to the group docker"
    found = named(asked(read=NameRead(state=state, reason=reason)))
    assert (found["docker"].verdict, found["docker"].found) == (Verdict.DEGRADED, f"{state}: {reason}")
    assert not is_blind(list(found.values()))


def test_who_is_asked_comes_before_who_is_not() -> None:
    found = named(asked("cri", used=False), asked(read=known(CONTAINER)), asked("podman", used=False))
    assert list(found) == ["environment", "docker", "cri", "podman"]


def test_who_lacks_something_is_told_as_unavailable_if_he_was_wanted_and_else_as_unused() -> None:
    candidate = Candidate("kubernetes", Kind.KUBERNETES, used=True, why="asked", lacks="no account", fix="mount one")
    wanted = named(Asked(candidate, NameRead(state=SourceState.UNAVAILABLE, reason="x")))["kubernetes"]
    assert wanted == Finding("kubernetes", Verdict.DEGRADED, "unavailable: no account", "mount one")
    unused = named(Asked(replace(candidate, used=False, why="no account"), None))["kubernetes"]
    assert unused == Finding("kubernetes", Verdict.UNUSED, "no account", "mount one")


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("presence", list(Presence))
@pytest.mark.parametrize(
    "read",
    [None, NameRead(state=SourceState.UNAVAILABLE, reason="x"), NameRead(state=SourceState.DEGRADED, reason="x")],
)
def test_whoever_does_not_tell_gets_a_fix(kind: Kind, presence: Presence, read: NameRead | None) -> None:
    has_socket = kind not in {Kind.SLURM, Kind.KUBERNETES}
    socket = Socket(Path("/run/x.sock"), presence) if has_socket else None
    found = named(Asked(Candidate("x", kind, used=True, why="", socket=socket), read))["x"]
    assert found.verdict is Verdict.DEGRADED
    assert found.fix


@pytest.mark.parametrize(
    ("kind", "state", "fix"),
    [
        (Kind.DOCKER, SourceState.UNAVAILABLE, "curl --unix-socket '/run/x y.sock' http://localhost/version"),
        (Kind.PODMAN, SourceState.UNAVAILABLE, "curl --unix-socket '/run/x y.sock' http://localhost/version"),
        (Kind.DOCKER, SourceState.DEGRADED, "curl --unix-socket '/run/x y.sock' http://localhost/containers/json"),
        (Kind.CRI, SourceState.DEGRADED, "crictl --runtime-endpoint unix://'/run/x y.sock' ps"),
        (Kind.POD_RESOURCES, SourceState.UNAVAILABLE, "ss -xlp | grep '/run/x y.sock'"),
        (Kind.POD_RESOURCES, SourceState.DEGRADED, "nvidia-smi -L"),
    ],
)
def test_of_a_socket_that_is_there_a_command_is_told_that_asks_the_same(
    kind: Kind, state: SourceState, fix: str
) -> None:
    candidate = Candidate("x", kind, used=True, why="", socket=Socket(Path("/run/x y.sock"), Presence.SOCKET))
    told = named(Asked(candidate, NameRead(state=state, reason="x")))["x"].fix
    assert told is not None
    assert told.endswith((f": {fix}", f"; {fix}"))


@pytest.mark.parametrize(
    ("kind", "presence", "words"),
    [
        (Kind.DOCKER, Presence.MISSING, "--docker-host unix:///PATH"),
        (Kind.PODMAN, Presence.MISSING, "--podman-host unix:///PATH"),
        (Kind.CRI, Presence.MISSING, "--cri-socket unix:///PATH"),
        (Kind.POD_RESOURCES, Presence.MISSING, "--pod-resources-socket unix:///PATH"),
        (Kind.DOCKER, Presence.DENIED, "usermod -aG $(stat -c %G /run/x.sock) USER"),
        (Kind.CRI, Presence.DENIED, "securityContext: {runAsUser: 0}"),
        (Kind.CRI, Presence.OTHER, "ls -ld /run/x.sock"),
    ],
)
def test_of_a_socket_that_cannot_be_used_it_is_told_how_it_comes_there(
    kind: Kind, presence: Presence, words: str
) -> None:
    candidate = Candidate("x", kind, used=True, why="", socket=Socket(Path("/run/x.sock"), presence))
    fix = named(Asked(candidate, NameRead(state=SourceState.UNAVAILABLE, reason="x")))["x"].fix
    assert fix is not None
    assert fix.endswith(words)


def test_an_engine_at_an_address_is_asked_by_its_own_program() -> None:
    candidate = Candidate("docker", Kind.DOCKER, used=True, why="", url="tcp://10.0.0.1:2375")
    fix = named(Asked(candidate, NameRead(state=SourceState.UNAVAILABLE, reason="x")))["docker"].fix
    assert fix == "this must answer: docker --host tcp://10.0.0.1:2375 version"


def test_who_does_not_answer_in_time_degrades() -> None:
    assert named(asked(read=None))["docker"].found == "/run/x.sock: no answer in time"


# ---------------------------------------------------------------------------- answers beside each other


def with_judgement(*who: Asked, workloads: Collection[WorkloadRef] = ()) -> dict[str, Finding]:
    return named(*judged(who, workloads, [complete()]), workloads=workloads)


def test_gpus_given_to_pods_whose_ids_nobody_knows_degrade_as_they_do_in_the_agent() -> None:
    read = NameRead(pods={PodContainer("n", "p", "c"): (Claim("0"),)})
    alone = with_judgement(asked("cri", used=False), asked("pod-resources", read, kind=Kind.POD_RESOURCES))
    assert alone["pod-resources"].verdict is Verdict.DEGRADED
    assert "--cri-socket" in alone["pod-resources"].found
    pod = WorkloadInfo(CONTAINER, WorkloadNames(container="c", pod="p", namespace="n"))
    both = with_judgement(
        asked("cri", NameRead({CONTAINER.id: pod}), kind=Kind.CRI),
        asked("pod-resources", read, kind=Kind.POD_RESOURCES),
    )
    assert both["pod-resources"].verdict is Verdict.OK


def test_contradicting_names_degrade_the_second_source_that_answered() -> None:
    one, other = (
        NameRead({CONTAINER.id: WorkloadInfo(CONTAINER, WorkloadNames(container=name))}) for name in ("one", "other")
    )
    found = with_judgement(asked("late", None), asked("docker", one), asked("podman", other, kind=Kind.PODMAN))
    assert found["late"].found.endswith("no answer in time")
    assert found["docker"].verdict is Verdict.OK
    assert found["podman"].verdict is Verdict.DEGRADED
    assert "is 'other' here and 'one' in another source" in found["podman"].found


def test_a_grant_of_an_unknown_gpu_degrades_its_source() -> None:
    read = NameRead({CONTAINER.id: WorkloadInfo(CONTAINER, WorkloadNames(container="c"), claims=(Claim("7"),))})
    found = with_judgement(asked(read=read))["docker"]
    assert (found.verdict, found.found) == (
        Verdict.DEGRADED,
        "degraded: c was granted '7', which is not a GPU of this host",
    )


# ---------------------------------------------------------------------------- who has no name


def test_workloads_on_gpus_that_nobody_knows_are_counted() -> None:
    unit = WorkloadRef(WorkloadKind.SYSTEMD_UNIT, "ollama.service")
    found = named(asked(read=known(CONTAINER)), workloads=[CONTAINER, JOB, unit])["names"]
    assert found.verdict is Verdict.DEGRADED
    assert found.found == "missing for 1 of 2 containers and jobs on GPUs: 7 (slurm)"
    assert "names" not in named(asked(read=known(CONTAINER)), workloads=[unit])


def test_a_container_does_not_name_the_job_whose_number_is_its_id() -> None:
    found = named(asked(read=known(WorkloadRef(WorkloadKind.CONTAINER, "7"))), workloads=[JOB])["names"]
    assert found.verdict is Verdict.DEGRADED


@pytest.mark.parametrize(
    ("runtime", "pod", "who", "fix"),
    [
        ("docker", None, "docker", "--docker-host unix:///var/run/docker.sock"),
        ("podman", None, "podman", "--podman-host unix:///run/podman/podman.sock"),
        ("containerd", "u", "containerd, a pod", "--cri-socket /run/containerd/containerd.sock"),
        ("cri-o", "u", "cri-o, a pod", "--cri-socket /run/crio/crio.sock"),
        (None, "u", "runtime unknown, a pod", "--cri-socket PATH"),
        ("mesos", None, "mesos", "nobody who is asked here knows containers of mesos"),
        (
            None,
            None,
            "runtime unknown",
            "--docker-host unix:///var/run/docker.sock or --podman-host unix:///run/podman/podman.sock",
        ),
    ],
)
def test_of_who_has_no_name_a_short_id_is_told_who_runs_it_and_the_flag_for_him(
    runtime: str | None, pod: str | None, who: str, fix: str
) -> None:
    ref = WorkloadRef(WorkloadKind.CONTAINER, "abcdef0123456789" * 4, runtime=runtime, pod_uid=pod)
    found = named(workloads=[ref])["names"]
    assert found.found == f"missing for 1 of 1 container or job on a GPU: abcdef012345 ({who})"
    assert found.fix == fix


def test_of_many_who_have_no_name_a_few_are_told_and_each_fix_once() -> None:
    refs = [WorkloadRef(WorkloadKind.CONTAINER, f"{number}" * 64, runtime="docker") for number in range(5)]
    found = named(workloads=refs)["names"]
    assert found.found.endswith(": 000000000000 (docker), 111111111111 (docker), 222222222222 (docker) and 2 more")
    assert found.fix == "--docker-host unix:///var/run/docker.sock"
