from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.doctor.findings import Finding, Verdict, is_blind
from otel_gpu.doctor.visibility import check_capabilities, check_node_scope, check_proc
from otel_gpu.model import SourceState, UnreadableReason
from otel_gpu.sources.base import GpuRead, ProcessRead, UnreadableProcess
from otel_gpu.sources.proc.source import ProcfsSource
from tests.builders import facts, gpu_read, listed, mig, process_read
from tests.proc_tree import ProcTree
from tests.unit.doctor.hosts import complete_gpu


@pytest.fixture
def own_proc(tmp_path: Path) -> ProcTree:
    """The ``/proc`` of an agent on the host itself."""
    tree = ProcTree(tmp_path / "proc")
    tree.set_namespaces()
    return tree


def findings(
    own_proc: ProcTree, gpus: GpuRead | None = None, processes: ProcessRead | None = None
) -> dict[str, Finding]:
    """Findings by subject, for a host without problems except for the given reads."""
    read = processes or process_read(facts(1))
    found = [*check_node_scope(own_proc.root), *check_proc(gpus or gpu_read(complete_gpu()), read)]
    by_subject = {finding.subject: finding for finding in found}
    assert len(by_subject) == len(found)
    return by_subject


def test_a_host_without_problems_has_no_fixes(own_proc: ProcTree) -> None:
    found = findings(own_proc)
    assert list(found) == ["scope", "pid namespace", "cgroup namespace", "proc"]
    assert {finding.verdict for finding in found.values()} == {Verdict.OK}
    assert not any(finding.fix for finding in found.values())
    assert not is_blind(list(found.values()))


@pytest.mark.parametrize("reason", sorted(set(UnreadableReason) - {"denied", "hidden"}))
def test_a_process_that_could_not_be_read_is_named_with_its_reason(
    own_proc: ProcTree, reason: UnreadableReason
) -> None:
    process = UnreadableProcess(4242, "evil", reason, "no answer within 0.3 s")
    read = replace(process_read(facts(1)), unreadable={reason: 1}, unreadable_processes=(process,))
    finding = findings(own_proc, processes=read)["process"]
    assert finding.verdict is Verdict.DEGRADED
    assert finding.found == "pid 4242 (evil) could not be read: no answer within 0.3 s"
    assert finding.fix


def test_denied_processes_are_not_named_one_by_one(own_proc: ProcTree) -> None:
    process = UnreadableProcess(4242, None, UnreadableReason.DENIED, "Permission denied")
    read = replace(process_read(facts(1)), unreadable={"denied": 1}, unreadable_processes=(process,))
    assert "process" not in findings(own_proc, processes=read)


# ---------------------------------------------------------------------------- namespaces


def test_a_private_pid_namespace_is_blind_with_a_fix(own_proc: ProcTree) -> None:
    own_proc.set_namespaces(pid=4026532178)
    finding = findings(own_proc)["pid namespace"]
    assert finding.verdict is Verdict.BLIND
    assert finding.found == "the agent's own: NVML hides other processes, or reports pids that are not valid here"
    assert finding.fix == "docker run --pid=host, in Kubernetes hostPID: true"


def test_the_fix_of_a_private_pid_namespace_is_the_sources_own(
    own_proc: ProcTree,
) -> None:
    own_proc.set_namespaces(pid=4026532178)
    read = ProcfsSource(own_proc.root, ManualClock(), own_proc=own_proc.root).read([1])
    found = findings(own_proc, processes=read)
    assert found["proc"].verdict is Verdict.DEGRADED
    assert found["pid namespace"].fix is not None
    assert found["pid namespace"].fix in found["proc"].found


def test_in_a_private_pid_namespace_pids_are_not_looked_up_in_proc(own_proc: ProcTree) -> None:
    """An equal pid may be another process."""
    own_proc.set_namespaces(pid=4026532178)
    read = ProcessRead(state=SourceState.DEGRADED, reason="private", pids_complete=False)
    found = findings(own_proc, gpu_read(complete_gpu(0, (8, 9))), read)
    assert "processes" not in found
    assert is_blind(list(found.values()))


def test_a_private_cgroup_namespace_is_degraded(own_proc: ProcTree) -> None:
    own_proc.set_namespaces(cgroup=4026532179)
    finding = findings(own_proc)["cgroup namespace"]
    assert finding.verdict is Verdict.DEGRADED
    assert finding.fix == "docker run --cgroupns=host"
    assert "may not be" in finding.found


@pytest.mark.parametrize("kind", ["pid", "cgroup"])
def test_a_namespace_that_is_not_readable_is_degraded(own_proc: ProcTree, kind: str) -> None:
    link = own_proc.root / "self/ns" / kind
    link.unlink()
    finding = findings(own_proc)[f"{kind} namespace"]
    assert (finding.verdict, finding.found) == (Verdict.DEGRADED, f"unknown: {link} is not readable")


# ---------------------------------------------------------------------------- /proc


def test_a_partly_readable_proc_is_degraded_and_an_unreadable_one_is_blind(own_proc: ProcTree) -> None:
    for state, verdict in ((SourceState.DEGRADED, Verdict.DEGRADED), (SourceState.UNAVAILABLE, Verdict.BLIND)):
        finding = findings(own_proc, processes=process_read(facts(1), state=state, reason="hidepid"))["proc"]
        assert (finding.verdict, finding.found) == (verdict, "hidepid")
        assert finding.fix


def test_some_pids_missing_in_proc_are_degraded_and_all_are_blind(own_proc: ProcTree) -> None:
    some = findings(own_proc, gpu_read(complete_gpu(0, (1, 8)), complete_gpu(1, (9,))), process_read(facts(1)))[
        "processes"
    ]
    assert some.verdict is Verdict.DEGRADED
    assert some.found == "2 of 3 pids that NVML lists are not in /proc (first: 8)"
    assert "HOST_PROC" in (some.fix or "")
    every = findings(own_proc, gpu_read(complete_gpu(0, (8, 9))), process_read(facts(1)))["processes"]
    assert every.verdict is Verdict.BLIND


def test_pids_on_mig_instances_count(own_proc: ProcTree) -> None:
    reading = replace(complete_gpu(0, ()), mig=(mig("MIG-1", (1, 0), [listed(7)]), mig("MIG-2", (2, 0), None)))
    assert findings(own_proc, gpu_read(reading), process_read())["processes"].verdict is Verdict.BLIND


def test_a_gpu_without_processes_is_not_blind(own_proc: ProcTree) -> None:
    assert "processes" not in findings(own_proc, gpu_read(complete_gpu(0, ())), process_read())


@pytest.mark.parametrize(
    ("reason", "complete", "fix"),
    [
        (
            "open files of 3 processes are not readable: run as root with CAP_SYS_PTRACE",
            True,
            "--cap-add SYS_PTRACE",
        ),
        ("the workload of 1 process is unknown … (docker run --cgroupns=host)", True, "docker run --cgroupns=host"),
        ("NVML does not show processes", False, "hostPID: true"),
        ("start times are unknown", True, "HOST_PROC"),
    ],
    ids=["capabilities", "cgroups", "pids", "else"],
)
def test_each_reason_of_proc_has_its_own_fix(own_proc: ProcTree, reason: str, complete: bool, fix: str) -> None:
    read = ProcessRead(state=SourceState.DEGRADED, reason=reason, pids_complete=complete)
    finding = findings(own_proc, gpu_read(), read)["proc"]
    assert fix in (finding.fix or "")


# ---------------------------------------------------------------------------- capabilities

BOTH = 1 << 19 | 1 << 2


def capabilities(own_proc: ProcTree, mask: int | None, *, in_pod: bool = False) -> Finding:
    own_proc.write("self/status", "Name:\tx\n" + ("" if mask is None else f"CapPrm:\t0\nCapEff:\t{mask:016x}\n"))
    return check_capabilities(own_proc.root, in_pod=in_pod)


def test_both_capabilities_are_ok(own_proc: ProcTree) -> None:
    for mask in (BOTH, (1 << 41) - 1):
        assert capabilities(own_proc, mask).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("mask", "missing"),
    [(0, "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"), (1 << 2, "CAP_SYS_PTRACE"), (1 << 19, "CAP_DAC_READ_SEARCH")],
)
def test_a_missing_capability_is_degraded_with_the_consequence_and_a_fix(
    own_proc: ProcTree, mask: int, missing: str
) -> None:
    found = capabilities(own_proc, mask)
    assert found.verdict is Verdict.DEGRADED
    assert found.found.startswith(f"without {missing} the agent sees open GPUs only of its own user's processes;")
    assert found.fix is not None
    for manifest in ("--cap-add SYS_PTRACE", "capabilities: {add: [SYS_PTRACE", "AmbientCapabilities=CAP_SYS_PTRACE"):
        assert manifest in found.fix


def test_a_sidecar_needs_no_capability(own_proc: ProcTree) -> None:
    assert capabilities(own_proc, 0, in_pod=True).verdict is Verdict.UNUSED


def test_unknown_capabilities_are_degraded(own_proc: ProcTree) -> None:
    assert capabilities(own_proc, None).verdict is Verdict.DEGRADED
    assert check_capabilities(own_proc.root / "none").verdict is Verdict.DEGRADED
