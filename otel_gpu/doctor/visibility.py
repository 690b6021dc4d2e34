"""Checks of what the agent can see of processes: its scope, namespaces, /proc and capabilities."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from otel_gpu.bounded_io import TooLarge, read_file
from otel_gpu.doctor.findings import Finding, Verdict, blind, degraded, ok, unused
from otel_gpu.doctor.gpus import listed_pids
from otel_gpu.model import SourceState, UnreadableReason
from otel_gpu.sources.base import GpuRead, ProcessRead
from otel_gpu.sources.proc.host import (
    CGROUP_NAMESPACE_FIX,
    PID_NAMESPACE_FIX,
    POD_UID_FIX,
    OwnPod,
    cgroup_namespace_is_initial,
    pid_namespace_is_initial,
)
from otel_gpu.sources.proc.pid_trust import pid_trust
from otel_gpu.view.text import plural

_NEEDED: Final = {"SYS_PTRACE": 19, "DAC_READ_SEARCH": 2}
"""Capabilities and their bits in linux/capability.h."""

_MAX_STATUS_BYTES: Final = 64 << 10
"""The limit of /proc/<pid>/status. It has about 1.5 KB, and some ten more for a process in thousands of groups."""

_CAPABILITIES: Final = re.compile(r"^CapEff:[ \t]+([0-9a-f]{1,16})$", re.MULTILINE)
CAPABILITIES_FIX: Final = (
    "run as root with both: docker run --user 0 --cap-add SYS_PTRACE --cap-add DAC_READ_SEARCH …, in Kubernetes "
    "securityContext: {runAsUser: 0, capabilities: {add: [SYS_PTRACE, DAC_READ_SEARCH]}}, in a systemd unit "
    "AmbientCapabilities=CAP_SYS_PTRACE CAP_DAC_READ_SEARCH"
)
_PROC_FIX: Final = (
    "in a container: docker run -v /proc:/host/proc:ro -e HOST_PROC=/host/proc …, in Kubernetes a hostPath /proc and "
    "env: [{name: HOST_PROC, value: /host/proc}]"
)
_UNSEEN_FIX: Final = "run in the host's pid namespace, or set --proc-root (HOST_PROC) to the host's /proc"
_UNREADABLE_FIXES: Final = {
    UnreadableReason.TIMED_OUT: "see what it waits for: cat /proc/<pid>/stack; ls -l /proc/<pid>/fd",
    UnreadableReason.TOO_LARGE: "none needed: nothing is inferred from its mappings; measured memory is not affected",
    UnreadableReason.MALFORMED: "set --proc-root (HOST_PROC) to a procfs",
    UnreadableReason.UNIDENTIFIED: "see /proc/<pid>/cgroup: its form is not one of those in docs/names.md",
}
_MOUNT_FIX: Final = "mount /proc: mount -t proc proc /proc"
_SHARED_PIDS_FIX: Final = "in the pod's manifest, shareProcessNamespace: true"
_POD_PIDS_FIX: Final = f"use driver 570.86 or later; {_SHARED_PIDS_FIX}; HOST_PROC=/proc"


# ---------------------------------------------------------------------------- the whole node


def check_node_scope(own_proc: Path = Path("/proc")) -> list[Finding]:
    """Check the namespaces of an agent that reports its whole node."""
    return [
        ok("scope", "node: all processes and GPUs of this host"),
        _pid_namespace(own_proc),
        _cgroup_namespace(own_proc),
    ]


def _pid_namespace(own_proc: Path) -> Finding:
    initial = pid_namespace_is_initial(own_proc)
    if initial is None:
        return degraded("pid namespace", f"unknown: {own_proc}/self/ns/pid is not readable", _MOUNT_FIX)
    if initial:
        return ok("pid namespace", "the host's: NVML lists every process")
    found = "the agent's own: NVML hides other processes, or reports pids that are not valid here"
    return blind("pid namespace", found, PID_NAMESPACE_FIX)


def _cgroup_namespace(own_proc: Path) -> Finding:
    initial = cgroup_namespace_is_initial(own_proc)
    if initial is None:
        return degraded("cgroup namespace", f"unknown: {own_proc}/self/ns/cgroup is not readable", _MOUNT_FIX)
    if initial:
        return ok("cgroup namespace", "the host's")
    found = (
        "the agent's own: pods and containers are still recognised; services, jobs and the agent's own container "
        "may not be"
    )
    return degraded("cgroup namespace", found, CGROUP_NAMESPACE_FIX)


# ---------------------------------------------------------------------------- one pod


def check_pod_scope(own: OwnPod, gpus: GpuRead, processes: ProcessRead) -> list[Finding]:
    """Check whether a sidecar knows its own pod and can tell the pod's processes from others."""
    return [_scope(own), _pod_pids(gpus, processes), *_pod_processes(own, gpus, processes), _inference(processes)]


def _scope(own: OwnPod) -> Finding:
    found = f"pod: {own.pod} (from {own.origin})"
    if own.pod.uid is not None:
        return ok("scope", found)
    return degraded("scope", f"{found}; its uid is unknown: only containers with a known name count", POD_UID_FIX)


def _pod_pids(gpus: GpuRead, processes: ProcessRead) -> Finding:
    if processes.pids_complete:
        return ok("pid namespace", "the host's: NVML lists every process")
    trusted = pid_trust(gpus.driver, processes)
    if not trusted.lists:
        found = "not the host's: pids from NVML cannot be matched with the processes here"
        return blind("pid namespace", found, _POD_PIDS_FIX)
    if not trusted.rows:
        found = "not the host's: NVML lists the processes in it, without their utilisation (needs driver 570.86)"
        return degraded("pid namespace", found, _POD_PIDS_FIX)
    return ok("pid namespace", "not the host's: NVML lists the processes in it")


def _pod_processes(own: OwnPod, gpus: GpuRead, processes: ProcessRead) -> Iterator[Finding]:
    if own.pod.uid is None:
        return  # a cgroup contains the uid of its pod and no name
    on_gpus = [processes.processes[pid] for pid in listed_pids(gpus) & processes.processes.keys()]
    count = sum(1 for facts in on_gpus if own.pod.has(facts.workload, None))
    if count:
        yield ok("pod", f"{plural(count, 'process')} of the pod seen on GPUs")
    else:
        yield unused("pod", "no process of the pod is seen on a GPU", _SHARED_PIDS_FIX)


def _inference(processes: ProcessRead) -> Finding:
    if processes.all_visible:
        return ok("inference", "on: every process of the host is visible")
    return unused("inference", "off: memory that the driver does not list may belong to pods that are not visible here")


# ---------------------------------------------------------------------------- /proc


def check_proc(gpus: GpuRead, read: ProcessRead) -> list[Finding]:
    """Check what /proc shows, and whether it has the processes that NVML lists."""
    return [_proc(read), *_unreadable(read), *_unseen(gpus, read)]


def _proc(read: ProcessRead) -> Finding:
    if read.state is SourceState.OK:
        return ok("proc", "processes, cgroups and open device files are readable")
    found = read.reason or read.state.value
    if read.state is SourceState.UNAVAILABLE:
        return blind("proc", found, _PROC_FIX)
    return degraded("proc", found, _proc_fix(read, found))


def _proc_fix(read: ProcessRead, found: str) -> str:
    """The fix for a reason of the source, which names a shorter one."""
    if not read.pids_complete:
        return PID_NAMESPACE_FIX
    if CGROUP_NAMESPACE_FIX in found:
        return CGROUP_NAMESPACE_FIX
    return CAPABILITIES_FIX if "CAP_SYS_PTRACE" in found else _PROC_FIX


def _unreadable(read: ProcessRead) -> Iterator[Finding]:
    """The processes that could not be read for a reason of their own. Missing privileges are findings of ``_proc``."""
    for process in read.unreadable_processes:
        if process.reason in _UNREADABLE_FIXES:
            name = f" ({process.name})" if process.name else ""
            found = f"pid {process.pid}{name} could not be read: {process.detail}"
            yield degraded("process", found, _UNREADABLE_FIXES[process.reason])


def _unseen(gpus: GpuRead, read: ProcessRead) -> Iterator[Finding]:
    if not read.pids_complete:
        return  # reported above; in another pid namespace an equal pid may be another process
    listed = listed_pids(gpus)
    unseen = sorted(listed - read.processes.keys())
    if unseen:
        verdict = Verdict.BLIND if len(unseen) == len(listed) else Verdict.DEGRADED
        found = f"{len(unseen)} of {len(listed)} pids that NVML lists are not in /proc (first: {unseen[0]})"
        yield Finding("processes", verdict, found, _UNSEEN_FIX)


# ---------------------------------------------------------------------------- capabilities


def parse_capabilities(text: str) -> int | None:
    """The mask of effective capabilities from ``/proc/<pid>/status`` (proc_pid_status(5))."""
    found = _CAPABILITIES.search(text)
    return int(found[1], 16) if found else None


def check_capabilities(own_proc: Path = Path("/proc"), *, in_pod: bool = False) -> Finding:
    """Check the capabilities of this process. A sidecar needs none."""
    try:
        status = read_file(own_proc / "self/status", _MAX_STATUS_BYTES)
        mask = parse_capabilities(status.decode("utf-8", "replace"))
    except (OSError, TooLarge):
        mask = None
    if mask is None:
        return degraded("capabilities", f"unknown: {own_proc}/self/status does not contain them", _MOUNT_FIX)
    missing = [name for name, bit in _NEEDED.items() if not mask >> bit & 1]
    if not missing:
        return ok("capabilities", f"{' and '.join(_NEEDED)} are effective")
    if in_pod:
        return unused("capabilities", "none needed for processes of this user in this pod")
    found = (
        f"without {' and '.join(f'CAP_{name}' for name in missing)} the agent sees open GPUs only of "
        "its own user's processes; memory that NVML does not list stays unattributed"
    )
    return degraded("capabilities", found, CAPABILITIES_FIX)
