"""What the doctor says of an agent that speaks of its own pod only: which that is, and what can be seen of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from otel_gpu.agent.scope import POD_UID_FIX, OwnPod
from otel_gpu.doctor.findings import Finding, blind, degraded, ok, unused
from otel_gpu.doctor.gpus import listed_pids
from otel_gpu.sources.base import GpuRead, ProcessRead
from otel_gpu.sources.proc.pid_trust import pid_trust

_SHARED_PIDS_FIX: Final = "in the pod's manifest, shareProcessNamespace: true"
_DRIVER_FIX: Final = f"a driver from 570.86 on; {_SHARED_PIDS_FIX}; HOST_PROC=/proc"


def examine_pod(own: OwnPod, gpus: GpuRead, processes: ProcessRead) -> list[Finding]:
    """Judge whether the agent's own pod is known, and whether those in it can be told from others."""
    return [_scope(own), _pids(gpus, processes), *_members(own, gpus, processes), _inference(processes)]


def _scope(own: OwnPod) -> Finding:
    found = f"pod: {own.pod}, told by {own.origin}"
    if own.pod.uid is not None:
        return ok("scope", found)
    return degraded("scope", f"{found}: counts only for containers that somebody names", POD_UID_FIX)


def _pids(gpus: GpuRead, processes: ProcessRead) -> Finding:
    if processes.pids_complete:
        return ok("pid namespace", "the host's: NVML shows every process")
    trusted = pid_trust(gpus.driver, processes)
    if not trusted.lists:
        found = "not the host's: what NVML tells of processes cannot be matched with those here"
        return blind("pid namespace", found, _DRIVER_FIX)
    if not trusted.rows:
        found = "not the host's: NVML shows who is in it, not what they do (drivers from 570.86 on tell)"
        return degraded("pid namespace", found, _DRIVER_FIX)
    return ok("pid namespace", "not the host's: NVML shows who is in it")


def _members(own: OwnPod, gpus: GpuRead, processes: ProcessRead) -> Iterator[Finding]:
    if own.pod.uid is None:
        return  # /proc tells no names
    on_gpus = [processes.processes[pid] for pid in listed_pids(gpus) & processes.processes.keys()]
    count = sum(1 for facts in on_gpus if own.pod.has(facts.workload, None))
    if count:
        yield ok("pod", f"{count} of its processes seen on GPUs")
    else:
        yield unused("pod", "none of its processes is seen on a GPU", _SHARED_PIDS_FIX)


def _inference(processes: ProcessRead) -> Finding:
    if processes.all_visible:
        return ok("inference", "every process of the host is seen")
    found = "off: memory that the driver does not measure may as well be that of pods which cannot be seen"
    return unused("inference", found)
