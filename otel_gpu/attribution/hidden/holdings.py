"""Holdings: what each candidate is estimated to hold, and shares among candidates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from otel_gpu.attribution.hidden.candidates import (
    Candidate,
    CandidateId,
    Evidence,
    id_from,
    id_state,
    workload_from,
)
from otel_gpu.attribution.plain import whole

NEVER: Final = -9
_LARGEST: Final = 1e60

Shares: TypeAlias = Mapping[CandidateId, float]


@dataclass(slots=True)
class Holding:
    """Estimate for one candidate; ``candidate`` is as last seen, ``seen_s`` is when it was first seen.

    ``mapped_bytes`` is its mapping when a change was last booked. ``ratio`` is the part of a mapped byte that was
    resident when this mapping alone changed. ``is_fresh`` is true until it first grows. ``grew_at`` is the last cycle
    in which it grew for a reason. ``pace`` (bytes per second) is set while it grows steadily.
    """

    candidate: Candidate
    seen_s: float
    is_fresh: bool
    mapped_bytes: int | None
    held_bytes: float = 0.0
    pace: float = 0.0
    grew_at: int = NEVER
    ratio: float | None = None


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


# -- state ----------------------------------------------------------------------


def holding_state(holding: Holding) -> dict[str, Any]:
    """A holding as plain data."""
    candidate = holding.candidate
    return {
        "id": id_state(candidate.id),
        "workload": None if candidate.workload is None else id_state(candidate.workload),
        "evidence": int(candidate.evidence),
        "age_s": candidate.age_s,
        "mapping_bytes": candidate.mapping_bytes,
        "seen_s": holding.seen_s,
        "fresh": holding.is_fresh,
        "mapped": holding.mapped_bytes,
        "held": holding.held_bytes,
        "pace": holding.pace,
        "grew_at": holding.grew_at,
        "ratio": holding.ratio,
    }


def holding_from(state: Mapping[str, Any]) -> Holding:
    """Restore what ``holding_state`` returned; raises for anything else."""
    mapping_bytes, mapped_bytes = (
        None if state[name] is None else whole(state[name]) for name in ("mapping_bytes", "mapped")
    )
    candidate = Candidate(
        id=id_from(state["id"]),
        evidence=Evidence(state["evidence"]),
        age_s=saved_amount(state["age_s"]),
        mapping_bytes=mapping_bytes,
        workload=None if state["workload"] is None else workload_from(state["workload"]),
    )
    return Holding(
        candidate,
        seen_s=saved_number(state["seen_s"]),
        is_fresh=bool(state["fresh"]),
        mapped_bytes=mapped_bytes,
        held_bytes=saved_amount(state["held"]),
        pace=saved_amount(state["pace"]),
        grew_at=int(state["grew_at"]),
        ratio=None if state["ratio"] is None else saved_amount(state["ratio"]),
    )


def saved_number(value: float) -> float:
    """A number from saved state: finite, and small enough for its sums to be finite."""
    if not abs(value) <= _LARGEST:
        raise ValueError(f"hidden memory: a saved number is out of range: {value}")
    return float(value)


def saved_amount(value: float) -> float:
    """A number from saved state that is not negative."""
    if value < 0:
        raise ValueError(f"hidden memory: a saved amount is negative: {value}")
    return saved_number(value)
