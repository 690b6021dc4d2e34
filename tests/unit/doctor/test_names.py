from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from otel_gpu.config.groups import Environment
from otel_gpu.doctor.findings import Finding, Verdict, is_blind
from otel_gpu.doctor.names import _FIXES, SourceAnswer, check_names, with_conflicts
from otel_gpu.model import SourceState, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import Claim, NameRead, PodContainer, WorkloadInfo
from otel_gpu.sources.names.candidates import Kind, Presence, Socket, SourceCandidate
from tests.unit.doctor.hosts import complete_gpu

CONTAINER = WorkloadRef(WorkloadKind.CONTAINER, "a" * 64)
JOB = WorkloadRef(WorkloadKind.SLURM_JOB, "7")


def answer(
    name: str = "docker", read: NameRead | None = None, *, used: bool = True, kind: Kind = Kind.DOCKER
) -> SourceAnswer:
    return SourceAnswer(
        SourceCandidate(name, kind, used, why="/run/x.sock" if used else "not found at /run/x.sock"), read
    )


def known(*refs: WorkloadRef) -> NameRead:
    return NameRead({ref.id: WorkloadInfo(ref, WorkloadNames(container="c")) for ref in refs})


def named(
    *answers: SourceAnswer, environment: Environment = Environment.AUTO, workloads: Collection[WorkloadRef] = ()
) -> dict[str, Finding]:
    return {finding.subject: finding for finding in check_names(environment, answers, workloads)}


def test_a_name_source_is_ok_with_the_number_of_its_workloads() -> None:
    found = named(answer(read=known(CONTAINER)), answer("cri", known(CONTAINER, JOB)), workloads=[CONTAINER])
    assert found["environment"].found == "auto: names from docker, cri"
    assert found["docker"] == Finding("docker", Verdict.OK, "/run/x.sock: 1 workload known")
    assert found["cri"].found == "/run/x.sock: 2 workloads known"
    assert found["names"] == Finding("names", Verdict.OK, "known for 1 of 1 container or job on a GPU")


def test_the_kubelets_answer_is_counted_in_pod_containers() -> None:
    for names, text in ((("a",), "1 pod container with a GPU"), (("a", "b"), "2 pod containers with a GPU")):
        read = NameRead(pods={PodContainer("n", "p", name): (Claim("0"),) for name in names})
        found = named(answer("pod-resources", read, kind=Kind.POD_RESOURCES))["pod-resources"]
        assert found.found == f"/run/x.sock: {text}"


def test_a_missing_source_is_unused_with_environment_auto() -> None:
    found = named(answer(used=False))
    assert found["environment"].found == "auto: no name source found"
    assert found["docker"] == Finding("docker", Verdict.UNUSED, "not found at /run/x.sock")


def test_a_named_environment_reports_its_own_sources_only() -> None:
    found = named(answer("slurm", known()), answer(used=False), environment=Environment.SLURM)
    assert list(found) == ["environment", "slurm"]


@pytest.mark.parametrize("state", [SourceState.DEGRADED, SourceState.UNAVAILABLE])
def test_a_failing_source_is_degraded_with_its_reason(state: SourceState) -> None:
    reason = "/run/x.sock: permission denied; add the agent's user to the group docker"
    found = named(answer(read=NameRead(state=state, reason=reason)))
    assert (found["docker"].verdict, found["docker"].found) == (Verdict.DEGRADED, f"{state}: {reason}")
    assert not is_blind(list(found.values()))


def test_used_sources_come_before_unused_ones() -> None:
    found = named(answer("cri", used=False), answer(read=known(CONTAINER)), answer("podman", used=False))
    assert list(found) == ["environment", "docker", "cri", "podman"]


def test_a_source_with_a_missing_prerequisite_is_degraded_if_requested_and_else_unused() -> None:
    candidate = SourceCandidate(
        "kubernetes", Kind.KUBERNETES, used=True, why="asked", lacks="no account", fix="mount one"
    )
    wanted = named(SourceAnswer(candidate, NameRead(state=SourceState.UNAVAILABLE, reason="x")))["kubernetes"]
    assert wanted == Finding("kubernetes", Verdict.DEGRADED, "unavailable: no account", "mount one")
    unused = named(SourceAnswer(replace(candidate, used=False, why="no account"), None))["kubernetes"]
    assert unused == Finding("kubernetes", Verdict.UNUSED, "no account", "mount one")


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("presence", list(Presence))
@pytest.mark.parametrize(
    "read",
    [None, NameRead(state=SourceState.UNAVAILABLE, reason="x"), NameRead(state=SourceState.DEGRADED, reason="x")],
)
def test_every_source_without_an_answer_has_a_fix(kind: Kind, presence: Presence, read: NameRead | None) -> None:
    has_socket = kind not in {Kind.SLURM, Kind.KUBERNETES}
    socket = Socket(Path("/run/x.sock"), presence) if has_socket else None
    found = named(SourceAnswer(SourceCandidate("x", kind, used=True, why="", socket=socket), read))["x"]
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
def test_the_fix_of_an_existing_socket_is_a_command_that_makes_the_same_request(
    kind: Kind, state: SourceState, fix: str
) -> None:
    candidate = SourceCandidate("x", kind, used=True, why="", socket=Socket(Path("/run/x y.sock"), Presence.SOCKET))
    found_fix = named(SourceAnswer(candidate, NameRead(state=state, reason="x")))["x"].fix
    assert (found_fix or "").endswith((f": {fix}", f"; {fix}"))


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
def test_the_fix_of_an_unusable_socket_says_how_to_make_it_available(
    kind: Kind, presence: Presence, words: str
) -> None:
    candidate = SourceCandidate("x", kind, used=True, why="", socket=Socket(Path("/run/x.sock"), presence))
    fix = named(SourceAnswer(candidate, NameRead(state=SourceState.UNAVAILABLE, reason="x")))["x"].fix
    assert (fix or "").endswith(words)


def test_every_kind_has_its_fixes() -> None:
    assert set(_FIXES) == set(Kind)
    for kind, fixes in _FIXES.items():
        assert fixes.unavailable
        assert fixes.degraded
        assert bool(fixes.missing) == bool(fixes.denied) == (kind not in {Kind.SLURM, Kind.KUBERNETES})


def test_the_fix_of_an_engine_at_an_address_uses_the_engines_own_client() -> None:
    candidate = SourceCandidate("docker", Kind.DOCKER, used=True, why="", url="tcp://10.0.0.1:2375")
    fix = named(SourceAnswer(candidate, NameRead(state=SourceState.UNAVAILABLE, reason="x")))["docker"].fix
    assert fix == "this command must answer: docker --host tcp://10.0.0.1:2375 version"
    podman = SourceAnswer(replace(candidate, name="podman", kind=Kind.PODMAN), None)
    assert named(podman)["podman"].fix == "this command must answer: podman --url tcp://10.0.0.1:2375 version"


def test_a_source_without_an_answer_in_time_is_degraded() -> None:
    assert named(answer(read=None))["docker"].found == "/run/x.sock: no answer in time"


# ---------------------------------------------------------------------------- conflicts between answers


def with_conflicts_named(*answers: SourceAnswer, workloads: Collection[WorkloadRef] = ()) -> dict[str, Finding]:
    return named(*with_conflicts(answers, workloads, [complete_gpu()]), workloads=workloads)


def test_grants_to_pods_without_a_container_id_are_degraded_as_in_the_agent() -> None:
    read = NameRead(pods={PodContainer("n", "p", "c"): (Claim("0"),)})
    alone = with_conflicts_named(answer("cri", used=False), answer("pod-resources", read, kind=Kind.POD_RESOURCES))
    assert alone["pod-resources"].verdict is Verdict.DEGRADED
    assert "--cri-socket" in alone["pod-resources"].found
    pod = WorkloadInfo(CONTAINER, WorkloadNames(container="c", pod="p", namespace="n"))
    both = with_conflicts_named(
        answer("cri", NameRead({CONTAINER.id: pod}), kind=Kind.CRI),
        answer("pod-resources", read, kind=Kind.POD_RESOURCES),
    )
    assert both["pod-resources"].verdict is Verdict.OK


def test_contradicting_names_are_degraded_at_the_second_source() -> None:
    one, other = (
        NameRead({CONTAINER.id: WorkloadInfo(CONTAINER, WorkloadNames(container=name))}) for name in ("one", "other")
    )
    found = with_conflicts_named(answer("late", None), answer("docker", one), answer("podman", other, kind=Kind.PODMAN))
    assert found["late"].found.endswith("no answer in time")
    assert found["docker"].verdict is Verdict.OK
    assert found["podman"].verdict is Verdict.DEGRADED
    assert "is 'other' here and 'one' in another source" in found["podman"].found


def test_a_grant_of_an_unknown_gpu_is_degraded_at_its_source() -> None:
    read = NameRead({CONTAINER.id: WorkloadInfo(CONTAINER, WorkloadNames(container="c"), claims=(Claim("7"),))})
    found = with_conflicts_named(answer(read=read))["docker"]
    assert (found.verdict, found.found) == (
        Verdict.DEGRADED,
        "degraded: c was granted '7', which is not a GPU of this host",
    )


# ---------------------------------------------------------------------------- workloads without a name


def test_workloads_on_gpus_without_a_name_are_counted() -> None:
    unit = WorkloadRef(WorkloadKind.SYSTEMD_UNIT, "ollama.service")
    found = named(answer(read=known(CONTAINER)), workloads=[CONTAINER, JOB, unit])["names"]
    assert found.verdict is Verdict.DEGRADED
    assert found.found == "missing for 1 of 2 containers and jobs on GPUs: 7 (slurm)"
    assert "names" not in named(answer(read=known(CONTAINER)), workloads=[unit])


def test_a_container_does_not_name_a_job_with_the_same_id() -> None:
    found = named(answer(read=known(WorkloadRef(WorkloadKind.CONTAINER, "7"))), workloads=[JOB])["names"]
    assert found.verdict is Verdict.DEGRADED


@pytest.mark.parametrize(
    ("runtime", "pod", "label", "fix"),
    [
        ("docker", None, "docker", "--docker-host unix:///var/run/docker.sock"),
        ("podman", None, "podman", "--podman-host unix:///run/podman/podman.sock"),
        ("containerd", "u", "containerd, a pod", "--cri-socket /run/containerd/containerd.sock"),
        ("cri-o", "u", "cri-o, a pod", "--cri-socket /run/crio/crio.sock"),
        (None, "u", "runtime unknown, a pod", "--cri-socket PATH"),
        ("mesos", None, "mesos", "no name source supports containers of mesos"),
        (
            None,
            None,
            "runtime unknown",
            "--docker-host unix:///var/run/docker.sock or --podman-host unix:///run/podman/podman.sock",
        ),
    ],
)
def test_a_workload_without_a_name_is_listed_with_its_runtime_and_the_flag_for_it(
    runtime: str | None, pod: str | None, label: str, fix: str
) -> None:
    ref = WorkloadRef(WorkloadKind.CONTAINER, "abcdef0123456789" * 4, runtime=runtime, pod_uid=pod)
    found = named(workloads=[ref])["names"]
    assert found.found == f"missing for 1 of 1 container or job on a GPU: abcdef012345 ({label})"
    assert found.fix == fix


def test_of_many_workloads_without_a_name_three_are_listed_and_each_fix_once() -> None:
    refs = [WorkloadRef(WorkloadKind.CONTAINER, f"{number}" * 64, runtime="docker") for number in range(5)]
    found = named(workloads=refs)["names"]
    assert found.found.endswith(": 000000000000 (docker), 111111111111 (docker), 222222222222 (docker) and 2 more")
    assert found.fix == "--docker-host unix:///var/run/docker.sock"
