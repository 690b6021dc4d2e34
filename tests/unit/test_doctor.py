from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.doctor import (
    Asked,
    Finding,
    Verdict,
    examine,
    examine_accounting,
    examine_names,
    is_blind,
    judged,
    listed_pids,
    report,
)
from otel_gpu.environment import Candidate, Kind, Presence, Socket
from otel_gpu.export.text import Paint
from otel_gpu.model import GpuReading, SourceState, UtilizationRead, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.settings_names import Environment
from otel_gpu.setup import GpuAccounting, Mode
from otel_gpu.sources.base import Claim, GpuRead, Known, NameRead, PodContainer, ProcessRead
from otel_gpu.sources.procfs import ProcfsSource
from otel_gpu.values import Daemon
from tests.builders import facts, failed_gpu, gpu, gpu_read, listed, memory, mig, process_read
from tests.procfs_tree import ProcTree

PLAIN = Paint(enabled=False)


@pytest.fixture
def own_proc(tmp_path: Path) -> ProcTree:
    """The ``/proc`` of an agent on the host itself."""
    tree = ProcTree(tmp_path / "proc")
    tree.set_namespaces()
    return tree


def complete(index: int = 0, pids: tuple[int, ...] = (1,)) -> GpuReading:
    """A GPU that answers everything."""
    reading = gpu(index, [listed(pid) for pid in pids], memory=memory(), energy_mj=1, power_w=60)
    return replace(reading, utilization=UtilizationRead(0, 0, ()))


def findings(
    own_proc: ProcTree, gpus: GpuRead | None = None, processes: ProcessRead | None = None
) -> dict[str, Finding]:
    """Findings by subject, for a host on which all is well but for what is told."""
    found = examine(gpus or gpu_read(complete()), processes or process_read(facts(1)), own_proc.root)
    by_subject = {finding.subject: finding for finding in found}
    assert len(by_subject) == len(found)
    return by_subject


def test_a_host_on_which_all_is_well_gets_no_fixes(own_proc: ProcTree) -> None:
    found = findings(own_proc)
    assert list(found) == ["nvml", "gpu 0", "pid namespace", "cgroup namespace", "proc"]
    assert {finding.verdict for finding in found.values()} == {Verdict.OK}
    assert not any(finding.fix for finding in found.values())
    assert not is_blind(list(found.values()))
    assert found["nvml"].found == "driver 570.124.06, 1 of 1 GPU answering"
    assert found["gpu 0"].found.endswith(": memory, processes, utilisation, power and energy are told")


@pytest.mark.parametrize(("verdict", "blind"), [(Verdict.OK, False), (Verdict.DEGRADED, False), (Verdict.BLIND, True)])
def test_one_blind_finding_is_blindness_and_a_degraded_one_is_not(verdict: Verdict, blind: bool) -> None:
    assert is_blind([Finding("a", Verdict.OK, "fine"), Finding("b", verdict, "so so")]) is blind


# ---------------------------------------------------------------------------- NVML


def test_without_nvml_attribution_is_blind_and_the_reason_is_told(own_proc: ProcTree) -> None:
    read = GpuRead(state=SourceState.UNAVAILABLE, reason="NVML: the driver is not loaded", errors=1)
    nvml = findings(own_proc, read)["nvml"]
    assert (nvml.verdict, nvml.found) == (Verdict.BLIND, "NVML: the driver is not loaded")
    assert nvml.fix is not None


def test_one_lost_gpu_of_two_degrades_and_the_other_is_examined(own_proc: ProcTree) -> None:
    read = gpu_read(complete(0), failed_gpu(1), state=SourceState.DEGRADED, reason="GPU 1: GPU is lost")
    found = findings(own_proc, read)
    assert found["nvml"].verdict is Verdict.DEGRADED
    assert found["nvml"].found == "driver 570.124.06, 1 of 2 GPUs answering; GPU 1: GPU is lost"
    assert found["nvml"].fix is not None
    assert "gpu 0" in found
    assert "gpu 1" not in found


def test_a_lost_gpu_degrades_even_without_a_reason(own_proc: ProcTree) -> None:
    assert findings(own_proc, gpu_read(complete(0), failed_gpu(1)))["nvml"].verdict is Verdict.DEGRADED


def test_all_gpus_lost_is_blindness(own_proc: ProcTree) -> None:
    assert findings(own_proc, gpu_read(failed_gpu(0), failed_gpu(1)))["nvml"].verdict is Verdict.BLIND


def test_a_driver_that_does_not_tell_its_version_is_no_trouble(own_proc: ProcTree) -> None:
    found = findings(own_proc, replace(gpu_read(complete()), driver=None))
    assert found["nvml"] == Finding("nvml", Verdict.OK, "driver of unknown version, 1 of 1 GPU answering")


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        (replace(complete(), memory=None), "lacks device memory"),
        (replace(complete(), processes=None), "lacks process lists"),
        (replace(complete(), utilization=None), "lacks utilisation per process"),
        (replace(complete(), power_w=None), "lacks power"),
        (replace(complete(), energy_mj=None), "lacks an energy counter"),
        (
            replace(complete(), memory=memory(reserved_gib=None)),
            "lacks the driver's own memory apart from what is used",
        ),
        (replace(complete(), power_w=None, memory=None), "lacks device memory, power"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_figure_the_gpu_does_not_give_is_named(own_proc: ProcTree, reading: GpuReading, words: str) -> None:
    finding = findings(own_proc, gpu_read(reading))["gpu 0"]
    assert finding.verdict is Verdict.DEGRADED
    assert words in finding.found


def test_a_partitioned_gpu_is_told_why_it_has_no_utilisation_and_needs_no_lists_of_its_own(own_proc: ProcTree) -> None:
    reading = replace(complete(), processes=None, utilization=None, mig=(mig("MIG-1", (1, 0), [listed(1)]),))
    finding = findings(own_proc, gpu_read(reading))["gpu 0"]
    assert "process lists" not in finding.found
    assert finding.found.endswith("lacks utilisation per process; MIG gives no utilisation per process")


# ---------------------------------------------------------------------------- accounting

IN_MIG_MODE = "not supported in MIG mode, where the driver keeps it off"


def accounted(*modes: Mode | str, persistent: bool | None = True) -> list[Finding]:
    """What is found of GPUs with these modes; a text is why it is not supported."""
    gpus = [
        GpuAccounting(index, "A", mode, persistent=persistent)
        if isinstance(mode, Mode)
        else GpuAccounting(index, "A", Mode.UNSUPPORTED, reason=mode, persistent=persistent)
        for index, mode in enumerate(modes)
    ]
    return examine_accounting(gpu_read(*(complete(index) for index in range(len(modes)))), gpus)


def test_accounting_that_is_on_everywhere_is_well() -> None:
    assert accounted(Mode.ON, Mode.ON) == [Finding("accounting", Verdict.OK, "on for 2 of 2 GPUs")]


def test_accounting_that_is_off_degrades_with_the_exact_fix() -> None:
    (found,) = accounted(Mode.ON, Mode.OFF, Mode.OFF)
    assert found == Finding(
        "accounting",
        Verdict.DEGRADED,
        "on for 1 of 3 GPUs; off on GPU 1, 2: who comes and goes there between two looks is not seen",
        "as root: otel-gpu setup accounting, or nvidia-smi -am 1",
    )
    assert not is_blind([found])


def test_accounting_that_no_gpu_supports_is_unused_with_each_reason_once() -> None:
    assert accounted(IN_MIG_MODE, "not supported", IN_MIG_MODE) == [
        Finding("accounting", Verdict.UNUSED, f"{IN_MIG_MODE}: GPU 0, 2; not supported: GPU 1")
    ]
    (beside,) = accounted(Mode.ON, IN_MIG_MODE)
    assert (beside.verdict, beside.found) == (Verdict.OK, f"on for 1 of 2 GPUs; {IN_MIG_MODE}: GPU 1")


def test_without_persistence_mode_it_is_told_that_accounting_is_lost_where_it_is_on() -> None:
    (found,) = accounted(Mode.ON, persistent=False)
    assert found == Finding(
        "accounting",
        Verdict.OK,
        "on for 1 of 1 GPU; persistence mode is off on GPU 0: it is lost there when the driver unloads",
        "as root: nvidia-smi -pm 1",
    )
    assert "persistence" not in accounted(Mode.OFF, persistent=False)[0].found


def test_a_gpu_that_answers_and_does_not_tell_its_mode_degrades_and_a_lost_one_is_told_of_elsewhere() -> None:
    silent = [GpuAccounting(index, reason="no answer within 2.0 s") for index in (0, 1)]
    assert examine_accounting(gpu_read(complete(0), failed_gpu(1)), silent) == [
        Finding("accounting", Verdict.DEGRADED, "no answer within 2.0 s: GPU 0")
    ]
    assert examine_accounting(gpu_read(failed_gpu(0)), silent) == []
    assert examine_accounting(gpu_read(complete(0)), ()) == []


# ---------------------------------------------------------------------------- namespaces


def test_a_private_pid_namespace_is_blindness_with_the_exact_fix(own_proc: ProcTree) -> None:
    own_proc.set_namespaces(pid=4026532178)
    finding = findings(own_proc)["pid namespace"]
    assert finding.verdict is Verdict.BLIND
    assert finding.found == "the agent's own: NVML hides others' processes, or names pids that mean nothing here"
    assert finding.fix == "docker run --pid=host, in Kubernetes hostPID: true"


def test_the_fix_of_a_private_pid_namespace_is_the_one_that_the_source_names(
    own_proc: ProcTree,
) -> None:
    own_proc.set_namespaces(pid=4026532178)
    read = ProcfsSource(own_proc.root, ManualClock(), own_proc=own_proc.root).read([1])
    found = findings(own_proc, processes=read)
    assert found["proc"].verdict is Verdict.DEGRADED
    assert found["pid namespace"].fix is not None
    assert found["pid namespace"].fix in found["proc"].found


def test_in_a_private_pid_namespace_no_pid_is_looked_for_in_proc(own_proc: ProcTree) -> None:
    """Whether one is there says nothing: it may be somebody else's."""
    own_proc.set_namespaces(pid=4026532178)
    read = ProcessRead(state=SourceState.DEGRADED, reason="private", pids_complete=False)
    found = findings(own_proc, gpu_read(complete(0, (8, 9))), read)
    assert "processes" not in found
    assert is_blind(list(found.values()))


def test_a_private_cgroup_namespace_degrades(own_proc: ProcTree) -> None:
    own_proc.set_namespaces(cgroup=4026532179)
    finding = findings(own_proc)["cgroup namespace"]
    assert finding.verdict is Verdict.DEGRADED
    assert finding.fix == "docker run --cgroupns=host"
    assert "may not be" in finding.found


@pytest.mark.parametrize("kind", ["pid", "cgroup"])
def test_a_namespace_that_cannot_be_told_is_not_taken_for_the_hosts(own_proc: ProcTree, kind: str) -> None:
    link = own_proc.root / "self/ns" / kind
    link.unlink()
    finding = findings(own_proc)[f"{kind} namespace"]
    assert (finding.verdict, finding.found) == (Verdict.DEGRADED, f"unknown: {link} is not readable")


# ---------------------------------------------------------------------------- /proc


def test_a_half_readable_proc_degrades_and_an_unreadable_one_is_blindness(own_proc: ProcTree) -> None:
    for state, verdict in ((SourceState.DEGRADED, Verdict.DEGRADED), (SourceState.UNAVAILABLE, Verdict.BLIND)):
        finding = findings(own_proc, processes=process_read(facts(1), state=state, reason="hidepid"))["proc"]
        assert (finding.verdict, finding.found) == (verdict, "hidepid")


def test_pids_that_proc_does_not_show_degrade_and_all_of_them_are_blindness(own_proc: ProcTree) -> None:
    some = findings(own_proc, gpu_read(complete(0, (1, 8)), complete(1, (9,))), process_read(facts(1)))["processes"]
    assert some.verdict is Verdict.DEGRADED
    assert some.found == "2 of 3 pids that NVML lists are not in /proc (first: 8)"
    assert some.fix is not None
    assert "HOST_PROC" in some.fix
    every = findings(own_proc, gpu_read(complete(0, (8, 9))), process_read(facts(1)))["processes"]
    assert every.verdict is Verdict.BLIND


def test_pids_on_mig_instances_count_too(own_proc: ProcTree) -> None:
    reading = replace(complete(0, ()), mig=(mig("MIG-1", (1, 0), [listed(7)]), mig("MIG-2", (2, 0), None)))
    assert listed_pids(gpu_read(reading)) == {7}
    assert findings(own_proc, gpu_read(reading), process_read())["processes"].verdict is Verdict.BLIND


def test_a_gpu_that_nobody_uses_is_no_blindness(own_proc: ProcTree) -> None:
    assert "processes" not in findings(own_proc, gpu_read(complete(0, ())), process_read())


# ---------------------------------------------------------------------------- names

CONTAINER = WorkloadRef(WorkloadKind.CONTAINER, "a" * 64)
JOB = WorkloadRef(WorkloadKind.SLURM_JOB, "7")


def asked(name: str = "docker", read: NameRead | None = None, *, used: bool = True, kind: Kind = Kind.DOCKER) -> Asked:
    return Asked(Candidate(name, kind, used, why="/run/x.sock" if used else "not found at /run/x.sock"), read)


def known(*refs: WorkloadRef) -> NameRead:
    return NameRead({ref.id: Known(ref, WorkloadNames()) for ref in refs})


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
    candidate = Candidate("docker", Kind.DOCKER, used=True, why="", daemon=Daemon("tcp://10.0.0.1:2375"))
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
    pod = Known(CONTAINER, WorkloadNames(container="c", pod="p", namespace="n"))
    both = with_judgement(
        asked("cri", NameRead({CONTAINER.id: pod}), kind=Kind.CRI),
        asked("pod-resources", read, kind=Kind.POD_RESOURCES),
    )
    assert both["pod-resources"].verdict is Verdict.OK


def test_an_id_that_two_claim_degrades_the_second_of_those_who_answered() -> None:
    one, other = (
        NameRead({CONTAINER.id: Known(CONTAINER, WorkloadNames(container=name))}) for name in ("one", "other")
    )
    found = with_judgement(asked("late", None), asked("docker", one), asked("podman", other, kind=Kind.PODMAN))
    assert found["late"].found.endswith("no answer in time")
    assert found["docker"].verdict is Verdict.OK
    assert found["podman"].verdict is Verdict.DEGRADED
    assert "is 'other' here and 'one' to another source" in found["podman"].found


def test_a_gpu_that_was_given_and_is_not_here_degrades() -> None:
    read = NameRead({CONTAINER.id: Known(CONTAINER, WorkloadNames(container="c"), claims=(Claim("7"),))})
    found = with_judgement(asked(read=read))["docker"]
    assert (found.verdict, found.found) == (
        Verdict.DEGRADED,
        "degraded: c was given '7', which is no GPU of this host",
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


# ---------------------------------------------------------------------------- the report


def test_the_report_has_a_line_for_each_finding_and_the_fix_below() -> None:
    text = report(
        [Finding("nvml", Verdict.OK, "fine"), Finding("pid namespace", Verdict.BLIND, "private", "do this")], PLAIN
    )
    assert text == (
        "ok        nvml           fine\n"
        "blind     pid namespace  private\n"
        "                         fix: do this\n"
    )  # fmt: skip


def test_the_report_is_coloured_only_when_asked_for() -> None:
    one = [Finding("nvml", Verdict.BLIND, "no driver")]
    assert "\x1b[31mblind   \x1b[0m" in report(one, Paint(enabled=True))
    assert "\x1b" not in report(one, PLAIN)


def test_what_a_driver_says_cannot_act_on_the_terminal() -> None:
    text = report([Finding("nvml", Verdict.OK, "\x1b[2J\nok        proc  fine")], PLAIN)
    assert "\x1b" not in text
    assert len(text.splitlines()) == 1


def test_on_a_terminal_what_was_found_is_wrapped_below_itself_and_a_fix_is_left_whole() -> None:
    one = [Finding("cri", Verdict.DEGRADED, "word " * 20, "curl " + "x" * 100)]
    *found, fix = report(one, PLAIN, width=60).splitlines()
    assert len(found) > 1
    assert all(len(line) <= 60 for line in found)
    assert all(line.startswith(" " * 15 + "word") for line in found[1:])
    assert fix == " " * 15 + "fix: curl " + "x" * 100
    assert len(report(one, PLAIN).splitlines()) == 2


def test_who_is_not_asked_is_faint_on_a_terminal() -> None:
    text = report([Finding("cri", Verdict.UNUSED, "not found")], Paint(enabled=True))
    assert "\x1b[2mcri  not found\x1b[0m" in text


def test_a_fix_cannot_act_on_the_terminal_either() -> None:
    assert "\x1b" not in report([Finding("cri", Verdict.DEGRADED, "x", "ls \x1b[2J")], PLAIN)
