"""What the doctor says of the agent's place on the host: its namespaces, /proc, its capabilities."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from otel_gpu.doctor.findings import Finding, Verdict, blind, degraded, ok, unused
from otel_gpu.doctor.gpus import listed_pids
from otel_gpu.model import SourceState
from otel_gpu.sources.base import GpuRead, ProcessRead
from otel_gpu.sources.proc.host import (
    CGROUP_NAMESPACE_FIX,
    PID_NAMESPACE_FIX,
    cgroup_namespace_is_initial,
    pid_namespace_is_initial,
)

_NEEDED: Final = {"SYS_PTRACE": 19, "DAC_READ_SEARCH": 2}
"""By their bits: linux/capability.h."""

_CAPABILITIES: Final = re.compile(r"^CapEff:[ \t]+([0-9a-f]{1,16})$", re.MULTILINE)
CAPABILITIES_FIX: Final = (
    "run as root with both: docker run --user 0 --cap-add SYS_PTRACE --cap-add DAC_READ_SEARCH …, in Kubernetes "
    "securityContext: {runAsUser: 0, capabilities: {add: [SYS_PTRACE, DAC_READ_SEARCH]}}, in a unit "
    "AmbientCapabilities=CAP_SYS_PTRACE CAP_DAC_READ_SEARCH"
)
_PROC_FIX: Final = (
    "in a container: docker run -v /proc:/host/proc:ro -e HOST_PROC=/host/proc …, in Kubernetes a hostPath /proc and "
    "env: [{name: HOST_PROC, value: /host/proc}]"
)
_UNSEEN_FIX: Final = "run in the host's pid namespace, or point --proc-root (HOST_PROC) to the host's /proc"
_MOUNT_FIX: Final = "mount /proc: mount -t proc proc /proc"


def parse_capabilities(text: str) -> int | None:
    """The mask of effective capabilities from ``/proc/<pid>/status`` (proc_pid_status(5))."""
    found = _CAPABILITIES.search(text)
    return int(found[1], 16) if found else None


def examine_node(own_proc: Path = Path("/proc")) -> list[Finding]:
    """Judge the place of an agent that speaks of its whole node: the namespaces this process lives in."""
    return [
        ok("scope", "node: everybody on this host, and its GPUs"),
        _pid_namespace(own_proc),
        _cgroup_namespace(own_proc),
    ]


def examine_proc(gpus: GpuRead, read: ProcessRead) -> list[Finding]:
    """Judge what /proc shows, and whether those are there whom NVML lists."""
    return [_proc(read), *_unseen(gpus, read)]


def examine_capabilities(own_proc: Path = Path("/proc"), *, in_pod: bool = False) -> Finding:
    """Judge what this process may do: in its own pod it needs nothing."""
    try:
        mask = parse_capabilities((own_proc / "self/status").read_text("utf-8", "replace"))
    except OSError:
        mask = None
    if mask is None:
        return degraded("capabilities", f"unknown: {own_proc}/self/status does not tell", _MOUNT_FIX)
    missing = [name for name, bit in _NEEDED.items() if not mask >> bit & 1]
    if not missing:
        return ok("capabilities", f"{' and '.join(_NEEDED)} are effective")
    if in_pod:
        return unused("capabilities", "none is needed for processes of this user in this pod")
    found = (
        f"without {' and '.join(f'CAP_{name}' for name in missing)} it is seen of this user's processes only who has a "
        "GPU open, and what NVML does not list stays unattributed"
    )
    return degraded("capabilities", found, CAPABILITIES_FIX)


def _pid_namespace(own_proc: Path) -> Finding:
    initial = pid_namespace_is_initial(own_proc)
    if initial is None:
        return degraded("pid namespace", f"unknown: {own_proc}/self/ns/pid is not readable", _MOUNT_FIX)
    if initial:
        return ok("pid namespace", "the host's: NVML shows every process")
    found = "the agent's own: NVML hides others' processes, or names pids that mean nothing here"
    return blind("pid namespace", found, PID_NAMESPACE_FIX)


def _cgroup_namespace(own_proc: Path) -> Finding:
    initial = cgroup_namespace_is_initial(own_proc)
    if initial is None:
        return degraded("cgroup namespace", f"unknown: {own_proc}/self/ns/cgroup is not readable", _MOUNT_FIX)
    if initial:
        return ok("cgroup namespace", "the host's")
    found = (
        "the agent's own: pods and containers are told from their cgroup all the same, services, jobs and the "
        "agent's own container may not be"
    )
    return degraded("cgroup namespace", found, CGROUP_NAMESPACE_FIX)


def _proc(read: ProcessRead) -> Finding:
    if read.state is SourceState.OK:
        return ok("proc", "processes, cgroups and open device files are readable")
    found = read.reason or read.state.value
    if read.state is SourceState.UNAVAILABLE:
        return blind("proc", found, _PROC_FIX)
    return degraded("proc", found, _proc_fix(read, found))


def _proc_fix(read: ProcessRead, found: str) -> str:
    """What mends it: the reasons name it, and the lines of the other subjects have it in full."""
    if not read.pids_complete:
        return PID_NAMESPACE_FIX
    if CGROUP_NAMESPACE_FIX in found:
        return CGROUP_NAMESPACE_FIX
    return CAPABILITIES_FIX if "CAP_SYS_PTRACE" in found else _PROC_FIX


def _unseen(gpus: GpuRead, read: ProcessRead) -> Iterator[Finding]:
    if not read.pids_complete:
        return  # told above; in another pid namespace a pid that is there may be somebody else's
    listed = listed_pids(gpus)
    unseen = sorted(listed - read.processes.keys())
    if unseen:
        verdict = Verdict.BLIND if len(unseen) == len(listed) else Verdict.DEGRADED
        found = f"{len(unseen)} of {len(listed)} pids that NVML lists are not in /proc (first: {unseen[0]})"
        yield Finding("processes", verdict, found, _UNSEEN_FIX)
