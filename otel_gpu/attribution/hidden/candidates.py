"""Candidates: processes and workloads that may hold memory which the driver's lists do not explain; what each holds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple, Self, TypeAlias

from otel_gpu.attribution.keys import DeviceKey, ProcessOnDevice, WorkloadOnDevice
from otel_gpu.attribution.saved_values import amount, boolean, integer, number, optional, whole
from otel_gpu.model import ProcessKey

MAX_BYTES: Final = 1 << 63
"""No device has more. A larger figure counts as this much in estimates, and in full in sums."""
_MAX_AGE_S: Final = 1e9

NEVER: Final = -9
"""No cycle in which a candidate grew."""


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


def _id_state(id_: CandidateId) -> list[int | str]:
    """A candidate's id as plain data."""
    return [*id_.process, *id_.device] if isinstance(id_, ProcessOnDevice) else [id_.kind, id_.id, *id_.device]


def _id_from(state: list[int | str]) -> CandidateId:
    """Restore what ``_id_state`` returned; ValueError for anything else."""
    match state:
        case [int(pid), int(start_ticks), str(gpu_uuid), str(mig_uuid)]:
            return ProcessOnDevice(ProcessKey(pid, start_ticks), DeviceKey(gpu_uuid, mig_uuid))
    return _workload_from(state)


def _workload_from(state: list[int | str]) -> WorkloadOnDevice:
    """Restore the id of a workload; ValueError for anything else."""
    match state:
        case [str(kind), str(id_), str(gpu_uuid), str(mig_uuid)]:
            return WorkloadOnDevice(kind, id_, DeviceKey(gpu_uuid, mig_uuid))
    raise ValueError(f"hidden memory: not the id of a candidate: {state!r}")


# ---------------------------------------------------------------------------- holdings


Shares: TypeAlias = Mapping[CandidateId, float]


@dataclass(slots=True)
class Holding:
    """Estimate for one candidate; ``candidate`` is as last seen, ``seen_s`` is when it was first seen.

    ``mapped_bytes`` is its mapping at the last change that was assigned. ``ratio`` is the part of a mapped byte that
    was resident when this mapping alone changed. ``is_fresh`` is true until it first grows. ``grew_at`` is the last
    cycle in which it grew for a reason. ``pace`` (bytes per second) is set while it grows steadily.
    """

    candidate: Candidate
    seen_s: float
    is_fresh: bool
    mapped_bytes: int | None
    held_bytes: float = 0.0
    pace: float = 0.0
    grew_at: int = NEVER
    ratio: float | None = None

    # -- checkpoint -----------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """The holding as plain data."""
        candidate = self.candidate
        return {
            "id": _id_state(candidate.id),
            "workload": None if candidate.workload is None else _id_state(candidate.workload),
            "evidence": int(candidate.evidence),
            "age_s": candidate.age_s,
            "mapping_bytes": candidate.mapping_bytes,
            "seen_s": self.seen_s,
            "fresh": self.is_fresh,
            "mapped": self.mapped_bytes,
            "held": self.held_bytes,
            "pace": self.pace,
            "grew_at": self.grew_at,
            "ratio": self.ratio,
        }

    @classmethod
    def from_state(cls, data: Any) -> Self:
        """The counterpart of ``to_state``; raises for any other data."""
        candidate = Candidate(
            id=_id_from(data["id"]),
            evidence=Evidence(data["evidence"]),
            age_s=amount(data["age_s"]),
            mapping_bytes=optional(whole, data["mapping_bytes"]),
            workload=optional(_workload_from, data["workload"]),
        )
        return cls(
            candidate,
            seen_s=number(data["seen_s"]),
            is_fresh=boolean(data["fresh"]),
            mapped_bytes=optional(whole, data["mapped"]),
            held_bytes=amount(data["held"]),
            pace=amount(data["pace"]),
            grew_at=integer(data["grew_at"]),
            ratio=optional(amount, data["ratio"]),
        )


Holdings: TypeAlias = Mapping[CandidateId, Holding]


def normalized(weights: Shares) -> dict[CandidateId, float]:
    """Weights scaled to a sum of 1; equal where none is above 0."""
    total = math.fsum(weights.values())
    if not total > 0:
        return dict.fromkeys(weights, 1.0 / max(1, len(weights)))
    return {id_: weight / total for id_, weight in weights.items()}


def equal_shares(holdings: Holdings) -> dict[CandidateId, float]:
    """Equal shares among workloads, then among the processes of each: forked workers inherit open devices."""
    processes = Counter(holding.candidate.owner for holding in holdings.values())
    return {id_: 1.0 / (len(processes) * processes[holding.candidate.owner]) for id_, holding in holdings.items()}


def with_strongest_evidence(holdings: Holdings) -> dict[CandidateId, Holding]:
    """The candidates seen on the GPU; without any, those that were granted it.

    A process listed without a figure and one with the device open are equally likely to hold the bytes: the driver
    gives no figure for the one and hides the other, and neither says how much.
    """
    seen = {id_: holding for id_, holding in holdings.items() if holding.candidate.evidence > Evidence.GRANTED}
    return seen or dict(holdings)
