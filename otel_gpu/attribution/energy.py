"""Who gets the joules of an interval. Every millijoule goes to a process, to idle, or to unattributed.

An interval is what happened on one GPU between two readings of its energy counter. It is divided once, in whole
millijoules; a workload is the sum of its processes and never a second division.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from otel_gpu.attribution.apportion import SCALE, apportion, whole_weights
from otel_gpu.attribution.places import Place, ProcessAt
from otel_gpu.model import ProcessKey, WorkloadRef


class EnergyPolicy(StrEnum):
    """Who pays for power that nobody's work explains: a GPU that is on, and contexts that are only held."""

    RESIDENT = "resident"
    SM = "sm"
    MEMORY = "memory"
    NONE = "none"


class Method(StrEnum):
    """How a process's part was found."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    INFERRED = "inferred"


@dataclass(frozen=True, slots=True)
class Party:
    """A process that was on the GPU in the interval.

    ``presence`` is the part of the interval it was there, 0 to 1. ``sm_us`` is its work in GPU-microseconds, ``None``
    where the driver does not tell. ``hidden`` is a process that the driver does not list. ``sm_count`` is the size of
    its MIG instance.
    """

    at: ProcessAt
    workload: WorkloadRef
    presence: float
    memory_bytes: int | None
    sm_us: int | None
    hidden: bool = False
    sm_count: int | None = None


@dataclass(frozen=True, slots=True)
class Interval:
    """What is to be divided. ``foreign_sm_us`` is work of pids that nobody can identify.

    ``alone`` says that the one listed process was so at both ends, and nobody left in between. ``strangers`` says
    that somebody must be on the GPU whom nothing shows: memory in use that no list and no evidence explains.
    ``known`` is false where the lists could not be read, or need not be complete: nobody listed is not nobody there.
    ``held_w`` is the GPU's power with contexts and no work. ``crowded`` says that of others on the GPU nothing is known
    but that they may be there: what they do not use for certain is all that the parties can be given. ``away`` says
    that the agent did not run for a part of it: who was alone before and after is taken to have been so all the time,
    and nobody else is given anything.
    """

    delta_mj: int
    duration_s: float
    parties: tuple[Party, ...]
    foreign_sm_us: int = 0
    alone: bool = False
    strangers: bool = False
    held_w: float = 0.0
    anomalous: bool = False
    known: bool = True
    crowded: bool = False
    away: bool = False


@dataclass(frozen=True, slots=True)
class Division:
    """Millijoules of an interval: the parts, idle and unattributed sum to the whole."""

    parts: Mapping[ProcessAt, int]
    methods: Mapping[ProcessAt, Method]
    idle_mj: int
    unattributed_mj: int


_Claim = tuple[int, ProcessAt]
"""Who may be given energy, in the order in which ties are broken: processes, then idle, then unattributed."""

_NOBODY: Final = ProcessAt(ProcessKey(0, 0), Place("", ""))
_IDLE: Final[_Claim] = (1, _NOBODY)
_UNATTRIBUTED: Final[_Claim] = (2, _NOBODY)


_MOST_OWED: Final = SCALE << 16
"""More than all roundings of a division together, however many share a GPU."""


class EnergyDivider:
    """Divides the intervals of one GPU one after the other; carries what rounding owes to whom."""

    def __init__(self, policy: EnergyPolicy) -> None:
        self._policy = policy
        self._residues: dict[_Claim, int] = {}

    def divide(self, interval: Interval, factors: Mapping[ProcessAt, float] | None = None) -> Division:
        """Divide an interval. ``factors`` weigh a process's work by what it was seen to draw (1 where not given)."""
        parties = tuple(sorted(interval.parties, key=lambda party: party.at))
        claims, methods = self._claims(interval, parties, factors or {})
        parts, residues = apportion(interval.delta_mj, whole_weights(claims), self._residues)
        self._residues = residues
        return Division(
            parts={at: parts.get((0, at), 0) for at in methods},
            methods=methods,
            idle_mj=parts.get(_IDLE, 0),
            unattributed_mj=parts.get(_UNATTRIBUTED, 0),
        )

    def _claims(
        self, interval: Interval, parties: tuple[Party, ...], factors: Mapping[ProcessAt, float]
    ) -> tuple[dict[_Claim, float], dict[ProcessAt, Method]]:
        listed = [party for party in parties if not party.hidden]
        if interval.anomalous:
            return {_UNATTRIBUTED: 1.0}, {}
        if interval.away:
            return _nobody_looked(interval, parties)
        if not listed:
            return _nobody_listed(interval, parties)
        if len(parties) == 1 and interval.alone and not interval.foreign_sm_us:
            return {(0, parties[0].at): 1.0}, {parties[0].at: Method.MEASURED}
        methods = {party.at: Method.INFERRED if party.hidden else Method.ESTIMATED for party in parties}
        return self._estimate(interval, parties, factors), methods

    def _estimate(
        self, interval: Interval, parties: tuple[Party, ...], factors: Mapping[ProcessAt, float]
    ) -> dict[_Claim, float]:
        """Static and context by policy, the rest by work; without figures of work, all by what each could use."""
        total = float(max(0, interval.delta_mj))
        work = _work(parties, factors)
        if work is None:
            return {_UNATTRIBUTED: 1.0} if interval.crowded else _add({}, _by_capacity(parties), total)
        foreign = float(max(0, interval.foreign_sm_us))
        worked = sum(work.values()) + foreign
        standing = min(total, max(0.0, interval.held_w) * interval.duration_s * 1000) if worked > 0 else total
        claims: dict[_Claim, float] = {}
        _add(claims, self._standing(parties, work, foreign, crowded=interval.crowded), standing)
        if worked > 0:
            _add(claims, {**{(0, key): share for key, share in work.items()}, _UNATTRIBUTED: foreign}, total - standing)
        return claims

    def _standing(
        self, parties: Sequence[Party], work: Mapping[ProcessAt, float], foreign: float, *, crowded: bool
    ) -> dict[_Claim, float]:
        if self._policy is EnergyPolicy.NONE:
            return {_IDLE: 1.0}
        if self._policy is EnergyPolicy.SM and sum(work.values()) + foreign > 0:
            return {**{(0, at): share for at, share in work.items()}, _UNATTRIBUTED: foreign}
        if crowded:  # among how many it divides is not known
            return {_UNATTRIBUTED: 1.0}
        if self._policy is EnergyPolicy.MEMORY and any(party.memory_bytes for party in parties):
            return {(0, party.at): (party.memory_bytes or 0) * party.presence for party in parties}
        return _by_workload(parties)

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> list[list[Any]]:
        """What is carried, as plain data."""
        return [[rank, *at.key, *at.place, owed] for (rank, at), owed in sorted(self._residues.items())]

    def restore(self, state: Any) -> None:
        """Take up what was carried; ValueError if it is not what ``to_state`` gave."""
        residues: dict[_Claim, int] = {}
        try:
            for rank, pid, start, gpu, mig, owed in state:
                numbers, names = (rank, pid, start, owed), (gpu, mig)
                if {type(each) for each in numbers} != {int} or {type(each) for each in names} != {str}:
                    raise ValueError("not what rounding owes")
                if abs(owed) > _MOST_OWED:
                    raise ValueError("more than rounding can owe")
                residues[rank, ProcessAt(ProcessKey(pid, start), Place(gpu, mig))] = owed
        except TypeError as error:
            raise ValueError("not what rounding owes") from error
        self._residues = residues


def _nobody_listed(
    interval: Interval, parties: tuple[Party, ...]
) -> tuple[dict[_Claim, float], dict[ProcessAt, Method]]:
    if len(parties) == 1 and not interval.foreign_sm_us and not interval.crowded:
        return {(0, parties[0].at): 1.0}, {parties[0].at: Method.INFERRED}
    if parties or interval.foreign_sm_us or interval.strangers or not interval.known:
        return {_UNATTRIBUTED: 1.0}, {}
    return {_IDLE: 1.0}, {}


def _nobody_looked(
    interval: Interval, parties: tuple[Party, ...]
) -> tuple[dict[_Claim, float], dict[ProcessAt, Method]]:
    if len(parties) == 1 and interval.alone and not interval.foreign_sm_us and not interval.crowded:
        method = Method.INFERRED if parties[0].hidden else Method.ESTIMATED
        return {(0, parties[0].at): 1.0}, {parties[0].at: method}
    return {_UNATTRIBUTED: 1.0}, {}


def _work(parties: Sequence[Party], factors: Mapping[ProcessAt, float]) -> dict[ProcessAt, float] | None:
    """Weighted work; ``None`` where the driver tells nobody's. A factor does not count for hidden parties."""
    if all(party.sm_us is None for party in parties):
        return None
    return {party.at: max(0, party.sm_us or 0) * factors.get(party.at, 1.0) for party in parties}


def _by_workload(parties: Sequence[Party]) -> dict[_Claim, float]:
    """Equal among workloads by the time they were there, then among each one's processes likewise.

    Among processes at once, a pod with eight workers would pay eight times what a pod with one pays.
    """
    presence: dict[tuple[str, str], list[float]] = {}
    for party in parties:
        presence.setdefault(party.workload.key, []).append(max(0.0, party.presence))
    return {
        (0, party.at): max(0.0, party.presence)
        * max(presence[party.workload.key])
        / (sum(presence[party.workload.key]) or 1.0)
        for party in parties
    }


def _by_capacity(parties: Sequence[Party]) -> dict[_Claim, float]:
    """By the SMs of the MIG instance, then by memory held there; by memory alone without MIG."""
    places: dict[Place, list[Party]] = {}
    for party in parties:
        places.setdefault(party.at.place, []).append(party)
    claims: dict[_Claim, float] = {}
    for _, members in sorted(places.items()):
        size = float(members[0].sm_count or 1)
        held = [(party.memory_bytes or 0) * party.presence for party in members]
        shares = held if sum(held) > 0 else [party.presence for party in members]
        whole = sum(shares) or 1.0
        for party, share in zip(members, shares, strict=True):
            claims[0, party.at] = size * share / whole
    return claims


def _add(claims: dict[_Claim, float], weights: Mapping[_Claim, float], amount_mj: float) -> dict[_Claim, float]:
    """Divide an amount by weights and add it to the claims; equally if all weights are 0."""
    whole = sum(weights.values())
    for claim, weight in weights.items():
        share = weight / whole if whole > 0 else 1 / len(weights)
        claims[claim] = claims.get(claim, 0.0) + amount_mj * share
    return claims
