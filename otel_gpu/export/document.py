"""The report as one JSON object, in bytes, millijoules and seconds. Unknown values are null."""

from __future__ import annotations

import json
from typing import Any

from otel_gpu.model import (
    GpuReport,
    MemorySplit,
    MethodEnergy,
    ProcessReport,
    Report,
    SourceOutcome,
    SourceState,
    WorkloadGpu,
    WorkloadReport,
    pod_uid_of,
)

Object = dict[str, Any]


def to_json(report: Report) -> str:
    """The document as ASCII text, so that it is safe for any terminal and pipe."""
    return json.dumps(document(report), indent=2, allow_nan=False)


def document(report: Report) -> Object:
    """The document as plain data: what is on a GPU, or used energy in this window. Its keys are stable."""
    return {
        "gpus": [_gpu(gpu) for gpu in report.gpus],
        "workloads": [_workload(workload) for workload in report.workloads if workload.reported_gpus],
        "processes": [_process(process) for process in report.processes if process.is_reported],
        "sources": [_source(source) for source in report.sources],
    }


def _gpu(gpu: GpuReport) -> Object:
    energy = gpu.energy
    return {
        "index": gpu.identity.index,
        "uuid": gpu.identity.uuid,
        "name": gpu.identity.name,
        "mig": None
        if gpu.mig is None
        else [{"uuid": mig.uuid, "profile": mig.profile, "memory": _memory(mig.memory)} for mig in gpu.mig],
        "memory": _memory(gpu.memory),
        "energy": {
            "delta_mj": energy.delta_mj if energy is not None else None,
            "attributed_mj": energy.attributed_mj if energy is not None else None,
            "idle_mj": energy.idle_mj if energy is not None else None,
            "unattributed_mj": energy.unattributed_mj if energy is not None else None,
        },
        "power_w": gpu.reading.power_w,
        "utilization": gpu.reading.gpu_ratio,
        "temperature_c": gpu.reading.temperature_c,
    }


def _memory(split: MemorySplit | None) -> Object:
    return {
        "limit": split.limit_bytes if split is not None else None,
        "reserved": split.reserved_bytes if split is not None else None,
        "measured": split.measured_bytes if split is not None else None,
        "inferred": split.inferred_bytes if split is not None else None,
        "unattributed": split.unattributed_bytes if split is not None else None,
        "free": split.free_bytes if split is not None else None,
        "overcount": split.overcount_bytes if split is not None else None,
    }


def _workload(workload: WorkloadReport) -> Object:
    names = workload.names
    return {
        "kind": workload.ref.kind.value,
        "id": workload.ref.id,
        "name": workload.display_name,
        "namespace": names.namespace if names is not None else None,
        "pod": names.pod if names is not None else None,
        "pod_uid": pod_uid_of(workload.ref, names),
        "container": names.container if names is not None else None,
        "image": names.image if names is not None else None,
        "gpus": [_workload_gpu(part) for part in workload.reported_gpus],
    }


def _workload_gpu(part: WorkloadGpu) -> Object:
    return {
        "uuid": part.gpu_uuid,
        "mig": part.mig_uuid,
        "memory": {
            "measured": part.measured_bytes,
            "inferred": part.inferred_bytes,
            "confidence": part.confidence,
        },
        "utilization": part.sm_ratio,
        "energy_mj": _by_method(part.energy),
        "state": part.state.value if part.state is not None else None,
        "idle_seconds": part.idle_s,
    }


def _process(process: ProcessReport) -> Object:
    return {
        "pid": process.key.pid,
        "start_time": process.start_time_s,
        "name": process.name,
        "workload": process.workload.id,
        "gpu": process.gpu_uuid,
        "memory": process.memory_bytes,
        "utilization": process.sm_ratio,
        "energy_mj": process.energy.total_mj,
        "state": process.state.value if process.state is not None else None,
        "idle_seconds": process.idle_s,
    }


def _by_method(energy: MethodEnergy) -> Object:
    return {"measured": energy.measured_mj, "estimated": energy.estimated_mj, "inferred": energy.inferred_mj}


def _source(source: SourceOutcome) -> Object:
    return {
        "name": source.name,
        "ok": source.state is SourceState.OK,
        "reason": source.reason,
        "blind": source.blind,
    }
