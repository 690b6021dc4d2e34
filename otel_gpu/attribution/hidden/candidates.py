"""Candidates: processes and workloads that may hold memory which the driver's lists do not explain."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from otel_gpu.attribution.keys import DeviceKey, ProcessOnDevice, WorkloadOnDevice
from otel_gpu.model import ProcessKey

MAX_BYTES: Final = 1 << 63
"""No device has more. A larger figure counts as this much in estimates, and in full in sums."""
_MAX_AGE_S: Final = 1e9


class Evidence(IntEnum):
    """Why a candidate may hold memory on the GPU; a greater value is stronger evidence."""

    GRANTED = 1
    DEVICE_OPEN = 2
    NO_FIGURE = 3


CandidateId: TypeAlias = ProcessOnDevice | WorkloadOnDevice
"""A process; or, where a grant is the only evidence, the workload that the GPU was granted to."""


class Candidate(NamedTuple):
    """A process or workload that may hold memory. ``age_s`` is that of the process, or of the granted workload.

    ``mapping_bytes`` is the size of its ``/dev/nvidia-uvm`` mappings, ``None`` where it cannot be read. ``workload`` is
    the workload of the process, ``None`` where it is not known.
    """

    id: CandidateId
    evidence: Evidence
    age_s: float
    mapping_bytes: int | None = None
    workload: WorkloadOnDevice | None = None

    @property
    def owner(self) -> CandidateId:
        """Its workload, or itself where that is not known."""
        return self.workload or self.id


def sort_key(id_: CandidateId) -> tuple[int, int, int, str, str, str, str]:
    """Key for sorting: processes by pid, then workloads."""
    if isinstance(id_, ProcessOnDevice):
        return 0, *id_.process, *id_.device, "", ""
    return 1, 0, 0, *id_.device, id_.kind, id_.id


def distinct(candidates: Iterable[Candidate]) -> dict[CandidateId, Candidate]:
    """Each candidate once, with its strongest evidence and plausible figures, sorted by id."""
    best: dict[CandidateId, Candidate] = {}
    for given in candidates:
        age_s = _MAX_AGE_S if math.isnan(given.age_s) else max(0.0, min(given.age_s, _MAX_AGE_S))
        size = None if given.mapping_bytes is None or given.mapping_bytes < 0 else min(given.mapping_bytes, MAX_BYTES)
        candidate = given._replace(age_s=age_s, mapping_bytes=size)
        known = best.get(given.id)
        if known is None or _rank(candidate) > _rank(known):
            best[given.id] = candidate
    return {id_: best[id_] for id_ in sorted(best, key=sort_key)}


def _rank(candidate: Candidate) -> tuple[int, int, float, bool, tuple[int, int, int, str, str, str, str]]:
    size = candidate.mapping_bytes
    return (
        candidate.evidence,
        -1 if size is None else size,
        candidate.age_s,
        candidate.workload is not None,
        sort_key(candidate.owner),
    )


# -- state ----------------------------------------------------------------------


def id_state(id_: CandidateId) -> list[int | str]:
    """A candidate's id as plain data."""
    return [*id_.process, *id_.device] if isinstance(id_, ProcessOnDevice) else [id_.kind, id_.id, *id_.device]


def id_from(state: list[int | str]) -> CandidateId:
    """Restore what ``id_state`` returned; ValueError for anything else."""
    match state:
        case [int(pid), int(start_ticks), str(gpu_uuid), str(mig_uuid)]:
            return ProcessOnDevice(ProcessKey(pid, start_ticks), DeviceKey(gpu_uuid, mig_uuid))
    return workload_from(state)


def workload_from(state: list[int | str]) -> WorkloadOnDevice:
    """Restore the id of a workload; ValueError for anything else."""
    match state:
        case [str(kind), str(id_), str(gpu_uuid), str(mig_uuid)]:
            return WorkloadOnDevice(kind, id_, DeviceKey(gpu_uuid, mig_uuid))
    raise ValueError(f"hidden memory: not the id of a candidate: {state!r}")
