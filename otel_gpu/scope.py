"""Of whom the agent speaks: of everybody on its node, or of its own pod only.

A sidecar tells what its pod uses and no more: figures of whole GPUs told by every pod on them, and by the node's agent
as well, would count several times in a sum over a fleet. So an answer is narrowed once, before anybody reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from otel_gpu.errors import UsageError
from otel_gpu.model import GpuReading, GpuReport, MigReading, MigReport, Pod, Report
from otel_gpu.sources.cgroup import parse_cgroup
from otel_gpu.sources.procfs_files import read_file

_UID: Final = ("POD_UID", "K8S_POD_UID")
_NAME: Final = ("POD_NAME", "K8S_POD_NAME")
_NAMESPACE: Final = ("POD_NAMESPACE", "K8S_NAMESPACE_NAME")
_UID_TEXT: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
"""A UUID; of a static pod, a hash of its manifest. Both as they are in cgroups."""

_CGROUP: Final = "self/cgroup"
POD_UID_FIX: Final = "env: [{name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}]"


class Scope(StrEnum):
    """Of whom the agent speaks."""

    NODE = "node"
    POD = "pod"


@dataclass(frozen=True, slots=True)
class OwnPod:
    """The agent's own pod, and what told so."""

    pod: Pod
    origin: str


# ---------------------------------------------------------------------------- which pod is one's own


def find_own_pod(environment: Mapping[str, str], own_proc: Path = Path("/proc")) -> OwnPod:
    """The pod that this process runs in. UsageError if neither its cgroup nor a variable tells."""
    uid, uid_origin = _uid_by_cgroup(own_proc), f"{own_proc}/{_CGROUP}"
    if uid is None:
        uid, uid_origin = _uid_by_variable(environment)
    (name, name_origin), (namespace, namespace_origin) = (_first(environment, names) for names in (_NAME, _NAMESPACE))
    if uid is not None:
        return OwnPod(Pod(uid, name, namespace), uid_origin)
    if name is not None and namespace is not None:
        return OwnPod(Pod(None, name, namespace), f"{name_origin} and {namespace_origin}")
    raise UsageError(
        f"scope is 'pod', and nothing tells which pod this is: {own_proc}/{_CGROUP} names none; set POD_UID (in the "
        f"manifest: {POD_UID_FIX}), or POD_NAME and POD_NAMESPACE"
    )


def _uid_by_cgroup(own_proc: Path) -> str | None:
    try:
        found = parse_cgroup(read_file(str(own_proc / _CGROUP)).decode("utf-8", "replace"))
    except OSError:
        return None
    return None if found is None else found.pod_uid


def _uid_by_variable(environment: Mapping[str, str]) -> tuple[str | None, str]:
    text, variable = _first(environment, _UID)
    if text is not None and not _UID_TEXT.fullmatch(text):
        raise UsageError(f"{variable} is {text!r}; allowed is a pod's uid: metadata.uid of the downward API")
    return text, variable


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> tuple[str | None, str]:
    """The first variable that says anything, and its name; an empty one counts as unset."""
    found = ((text, name) for name in names if (text := environment.get(name, "").strip()))
    return next(found, (None, names[0]))


# ---------------------------------------------------------------------------- what is told of it


def narrowed(attribution: Report, pod: Pod) -> Report:
    """The answer without everybody who is not in the pod, and without figures of GPUs: those are of all on them."""
    workloads = tuple(workload for workload in attribution.workloads if pod.has(workload.ref, workload.names))
    told = {(workload.ref.key, workload.naming) for workload in workloads}
    processes = tuple(
        process
        for process in attribution.processes
        if (process.workload.key, process.naming) in told or pod.has(process.workload, None)
    )
    places = {(part.gpu_uuid, part.mig_uuid) for workload in workloads for part in workload.gpus}
    places |= {(process.gpu_uuid, process.mig_uuid) for process in processes}
    uuids = {gpu_uuid for gpu_uuid, _ in places}
    return replace(
        attribution,
        gpus=tuple(
            _without_figures(gpu, frozenset(mig_uuid for gpu_uuid, mig_uuid in places if gpu_uuid == gpu.identity.uuid))
            for gpu in attribution.gpus
            if gpu.identity.uuid in uuids
        ),
        workloads=workloads,
        processes=processes,
        pod=pod,
    )


def _without_figures(gpu: GpuReport, used: frozenset[str | None]) -> GpuReport:
    """What names a GPU and its instances that are ``used``."""
    reading = gpu.reading
    instances = None if reading.mig is None else tuple(map(_named, (m for m in reading.mig if m.uuid in used)))
    return GpuReport(
        reading=GpuReading(reading.identity, reading.taken_at_ns, mig=instances),
        memory=None,
        energy=None,
        mig=None if gpu.mig is None else tuple(MigReport(m.uuid, m.profile, None) for m in gpu.mig if m.uuid in used),
        told_counted=gpu.counted,
    )


def _named(mig: MigReading) -> MigReading:
    return replace(mig, sm_count=None, memory=None, processes=None)
