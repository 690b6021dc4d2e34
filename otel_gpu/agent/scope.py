"""What the agent reports on: the whole node, or its own pod only.

A sidecar reports what its pod uses and nothing else. If every pod on a GPU, and the node's agent, reported figures of
the whole GPU, a sum over a fleet would count them several times. A Report is narrowed once, before it is published.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from otel_gpu.errors import UsageError
from otel_gpu.model import GpuReading, GpuReport, MigReading, MigReport, Pod, Report
from otel_gpu.sources.proc.cgroup import parse_cgroup
from otel_gpu.sources.proc.files import read_file

_UID: Final = ("POD_UID", "K8S_POD_UID")
_NAME: Final = ("POD_NAME", "K8S_POD_NAME")
_NAMESPACE: Final = ("POD_NAMESPACE", "K8S_NAMESPACE_NAME")
_UID_TEXT: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
"""A UUID; for a static pod, a hash of its manifest. Both as they appear in cgroups."""

_CGROUP: Final = "self/cgroup"
POD_UID_FIX: Final = "env: [{name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}]"


@dataclass(frozen=True, slots=True)
class OwnPod:
    """The agent's own pod, and where its identity was found: a file or environment variables."""

    pod: Pod
    origin: str


# ---------------------------------------------------------------------------- the agent's own pod


def find_own_pod(environment: Mapping[str, str], own_proc: Path = Path("/proc")) -> OwnPod:
    """The pod that this process runs in. UsageError if neither its cgroup nor the environment identifies it."""
    uid, uid_origin = _uid_from_cgroup(own_proc), f"{own_proc}/{_CGROUP}"
    if uid is None:
        uid, uid_origin = _uid_from_environment(environment)
    (name, name_origin), (namespace, namespace_origin) = (_first(environment, names) for names in (_NAME, _NAMESPACE))
    if uid is not None:
        return OwnPod(Pod(uid, name, namespace), uid_origin)
    if name is not None and namespace is not None:
        return OwnPod(Pod(None, name, namespace), f"{name_origin} and {namespace_origin}")
    raise UsageError(
        f"scope is 'pod', but the agent's own pod is unknown: {own_proc}/{_CGROUP} names none; set POD_UID (in the "
        f"manifest: {POD_UID_FIX}), or POD_NAME and POD_NAMESPACE"
    )


def _uid_from_cgroup(own_proc: Path) -> str | None:
    try:
        found = parse_cgroup(read_file(str(own_proc / _CGROUP)).decode("utf-8", "replace"))
    except OSError:
        return None
    return None if found is None else found.pod_uid


def _uid_from_environment(environment: Mapping[str, str]) -> tuple[str | None, str]:
    text, variable = _first(environment, _UID)
    if text is not None and not _UID_TEXT.fullmatch(text):
        raise UsageError(f"{variable}: {text!r} is not a pod uid; use metadata.uid of the downward API")
    return text, variable


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> tuple[str | None, str]:
    """The first variable that is set and not empty, and its name."""
    found = ((text, name) for name in names if (text := environment.get(name, "").strip()))
    return next(found, (None, names[0]))


# ---------------------------------------------------------------------------- narrowing a Report


def narrowed(report: Report, pod: Pod) -> Report:
    """The Report of the pod's workloads and processes only, without figures of whole GPUs, which others share."""
    workloads = tuple(workload for workload in report.workloads if pod.has(workload.ref, workload.names))
    kept = {(workload.ref.key, workload.naming) for workload in workloads}
    processes = tuple(
        process
        for process in report.processes
        if (process.workload.key, process.naming) in kept or pod.has(process.workload, None)
    )
    devices = {(part.gpu_uuid, part.mig_uuid) for workload in workloads for part in workload.gpus}
    devices |= {(process.gpu_uuid, process.mig_uuid) for process in processes}
    uuids = {gpu_uuid for gpu_uuid, _ in devices}
    return replace(
        report,
        gpus=tuple(
            _without_figures(
                gpu, frozenset(mig_uuid for gpu_uuid, mig_uuid in devices if gpu_uuid == gpu.identity.uuid)
            )
            for gpu in report.gpus
            if gpu.identity.uuid in uuids
        ),
        workloads=workloads,
        processes=processes,
        pod=pod,
    )


def _without_figures(gpu: GpuReport, used: frozenset[str | None]) -> GpuReport:
    """The identity and health of a GPU and the identity of its instances in ``used``, without their figures."""
    reading = gpu.reading
    instances = None if reading.mig is None else tuple(map(_identity, (m for m in reading.mig if m.uuid in used)))
    return GpuReport(
        reading=GpuReading(reading.identity, reading.taken_at_ns, reading.health, reading.reason, mig=instances),
        memory=None,
        energy=None,
        mig=None if gpu.mig is None else tuple(MigReport(m.uuid, m.profile, None) for m in gpu.mig if m.uuid in used),
        has_energy=gpu.has_energy,
        has_utilization=gpu.has_utilization,
    )


def _identity(mig: MigReading) -> MigReading:
    return replace(mig, sm_count=None, memory=None, processes=None)
