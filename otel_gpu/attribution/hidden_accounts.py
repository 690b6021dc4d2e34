"""Who may hold hidden memory, and what the books say of each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final, TypeAlias

from otel_gpu.attribution.places import Place, ProcessAt, WorkloadAt
from otel_gpu.attribution.plain import whole
from otel_gpu.model import ProcessKey

MAX_BYTES: Final = 1 << 63
"""No device has more: what claims to counts as this much in the estimates, and in full in the sums."""
_OLD_S: Final = 1e9
NEVER: Final = -9
_LARGEST: Final = 1e60
_SIZES: Final = ("mapping_bytes", "mapped")


class Evidence(IntEnum):
    """Why somebody may hold memory here, the stronger the greater."""

    GRANTED = 1
    DEVICE_OPEN = 2
    NO_FIGURE = 3


CandidateId: TypeAlias = ProcessAt | WorkloadAt
"""A process; or, where a grant is all there is, the workload it was given to."""

Shares: TypeAlias = Mapping[CandidateId, float]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One that may hold memory. ``age_s`` is the process's, or the workload's where a grant is all there is.

    ``mapping_bytes`` is the size of its ``/dev/nvidia-uvm`` mappings, ``None`` where that cannot be read.
    ``workload`` is whose process it is; ``None`` stands for one of its own.
    """

    id: CandidateId
    evidence: Evidence
    age_s: float
    mapping_bytes: int | None = None
    workload: WorkloadAt | None = None

    @property
    def owner(self) -> CandidateId:
        """Its workload, as far as known."""
        return self.workload or self.id


@dataclass(frozen=True, slots=True)
class Inferred:
    """Bytes that somebody probably holds, and how sure that is, from 0 to 1."""

    bytes: int
    confidence: float


@dataclass(frozen=True, slots=True)
class HiddenSplit:
    """Unknown bytes = Σ inferred + unattributed. ``workloads`` sums the same bytes by workload.

    A workload's confidence is that of its sum, whichever of its own processes holds them.
    """

    inferred: Mapping[CandidateId, Inferred]
    workloads: Mapping[CandidateId, Inferred]
    unattributed_bytes: int


@dataclass(slots=True)
class Account:
    """What the books say of one candidate; ``candidate`` is how it was last seen.

    ``mapped`` is its mapping when a change was last booked, ``ratio`` how much of a mapped byte was resident when it
    alone changed. ``fresh`` until it first grows; ``grew_at`` is the last cycle in which it grew for a reason, and
    ``pace`` (bytes per second) is set while it does so steadily.
    """

    candidate: Candidate
    seen_s: float
    fresh: bool
    mapped: int | None
    held: float = 0.0
    pace: float = 0.0
    grew_at: int = NEVER
    ratio: float | None = None


def order(id_: CandidateId) -> tuple[int, int, int, str, str, str, str]:
    """A sort key: processes by pid, then workloads."""
    if isinstance(id_, ProcessAt):
        return 0, *id_.key, *id_.place, "", ""
    return 1, 0, 0, *id_.place, id_.kind, id_.id


def normal(weights: Shares) -> dict[CandidateId, float]:
    """Weights scaled to a sum of 1; equal where none is above 0."""
    total = math.fsum(weights.values())
    if not total > 0:
        return dict.fromkeys(weights, 1.0 / max(1, len(weights)))
    return {id_: weight / total for id_, weight in weights.items()}


def equally(accounts: Mapping[CandidateId, Account]) -> dict[CandidateId, float]:
    """Equal shares among workloads, then among each one's processes: forked workers inherit open devices."""
    processes = Counter(account.candidate.owner for account in accounts.values())
    return {id_: 1.0 / (len(processes) * processes[account.candidate.owner]) for id_, account in accounts.items()}


def strongest(accounts: Mapping[CandidateId, Account]) -> dict[CandidateId, Account]:
    """Those seen on the GPU, if any is; else those to whom it was granted.

    A process listed without a figure and one with the device open are equally likely to hold the bytes: the driver
    gives the one no figure and hides the other, and neither says how much.
    """
    seen = {id_: account for id_, account in accounts.items() if account.candidate.evidence > Evidence.GRANTED}
    return seen or dict(accounts)


def distinct(candidates: Iterable[Candidate]) -> dict[CandidateId, Candidate]:
    """Candidates in order, each once (as its strongest evidence says), with figures that can be true."""
    best: dict[CandidateId, Candidate] = {}
    for given in candidates:
        age_s = _OLD_S if math.isnan(given.age_s) else max(0.0, min(given.age_s, _OLD_S))
        size = None if given.mapping_bytes is None or given.mapping_bytes < 0 else min(given.mapping_bytes, MAX_BYTES)
        candidate = replace(given, age_s=age_s, mapping_bytes=size)
        known = best.get(given.id)
        if known is None or _rank(candidate) > _rank(known):
            best[given.id] = candidate
    return {id_: best[id_] for id_ in sorted(best, key=order)}


def _rank(candidate: Candidate) -> tuple[int, int, float, bool, tuple[int, int, int, str, str, str, str]]:
    size = candidate.mapping_bytes
    return (
        candidate.evidence,
        -1 if size is None else size,
        candidate.age_s,
        candidate.workload is not None,
        order(candidate.owner),
    )


def account_state(account: Account) -> dict[str, Any]:
    """An account as plain data."""
    candidate = account.candidate
    return {
        "id": _id_state(candidate.id),
        "workload": None if candidate.workload is None else _id_state(candidate.workload),
        "evidence": int(candidate.evidence),
        "age_s": candidate.age_s,
        "mapping_bytes": candidate.mapping_bytes,
        "seen_s": account.seen_s,
        "fresh": account.fresh,
        "mapped": account.mapped,
        "held": account.held,
        "pace": account.pace,
        "grew_at": account.grew_at,
        "ratio": account.ratio,
    }


def account_from(state: Mapping[str, Any]) -> Account:
    """An account as saved; raises on anything else."""
    mapping_bytes, mapped = (None if state[k] is None else whole(state[k]) for k in _SIZES)
    candidate = Candidate(
        id=_id_from(state["id"]),
        evidence=Evidence(state["evidence"]),
        age_s=saved_amount(state["age_s"]),
        mapping_bytes=mapping_bytes,
        workload=None if state["workload"] is None else _workload_from(state["workload"]),
    )
    return Account(
        candidate,
        seen_s=saved_number(state["seen_s"]),
        fresh=bool(state["fresh"]),
        mapped=mapped,
        held=saved_amount(state["held"]),
        pace=saved_amount(state["pace"]),
        grew_at=int(state["grew_at"]),
        ratio=None if state["ratio"] is None else saved_amount(state["ratio"]),
    )


def _id_state(id_: CandidateId) -> list[int | str]:
    return [*id_.key, *id_.place] if isinstance(id_, ProcessAt) else [id_.kind, id_.id, *id_.place]


def _id_from(state: list[int | str]) -> CandidateId:
    match state:
        case [int(pid), int(start_ticks), str(gpu_uuid), str(mig_uuid)]:
            return ProcessAt(ProcessKey(pid, start_ticks), Place(gpu_uuid, mig_uuid))
    return _workload_from(state)


def _workload_from(state: list[int | str]) -> WorkloadAt:
    match state:
        case [str(kind), str(id_), str(gpu_uuid), str(mig_uuid)]:
            return WorkloadAt(kind, id_, Place(gpu_uuid, mig_uuid))
    raise ValueError(f"nobody's id: {state!r}")


def saved_number(value: float) -> float:
    """A number as saved: finite, and not so large that its sums are not."""
    if not abs(value) <= _LARGEST:
        raise ValueError(f"not a number that was saved: {value}")
    return float(value)


def saved_amount(value: float) -> float:
    """A number as saved that is not below 0."""
    if value < 0:
        raise ValueError(f"below 0: {value}")
    return saved_number(value)
