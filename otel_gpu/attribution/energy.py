"""Who gets the joules of an interval. Every millijoule goes to a process, to idle, or to unattributed.

An interval is what happened on one GPU between two readings of its energy counter. It is divided once, in whole
millijoules; a workload is the sum of its processes and never a second division.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final, NamedTuple

from otel_gpu.attribution.apportion import SCALE, Weights, apportion, whole_weights
from otel_gpu.attribution.places import Place, ProcessAt
from otel_gpu.model import ProcessKey, WorkloadKey, WorkloadRef
from otel_gpu.model.made import quickly_made


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


_MEASURED: Final = Method.MEASURED
_ESTIMATED: Final = Method.ESTIMATED
_INFERRED: Final = Method.INFERRED
"""A member of an enumeration is looked up anew each time that it is named."""


@quickly_made
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


@quickly_made
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


class Division(NamedTuple):
    """Millijoules of an interval: the parts, idle and unattributed sum to the whole.

    ``parts_mj`` are those of ``ats``, who are in order. ``method`` is how all of them were found, ``None`` where that
    is not the same for all, or nobody has a part.
    """

    ats: tuple[ProcessAt, ...]
    parts_mj: Sequence[int]
    methods: Mapping[ProcessAt, Method]
    method: Method | None
    idle_mj: int
    unattributed_mj: int

    @property
    def attributed_mj(self) -> int:
        """What the parts come to."""
        return sum(self.parts_mj)

    @property
    def parts(self) -> Mapping[ProcessAt, int]:
        """Everybody's part."""
        return dict(zip(self.ats, self.parts_mj, strict=True))


_tuple: Final = tuple.__new__

_Claims = dict[int, float]
"""What each claims of the energy, by number: the parties' are their places, and after them are idle and unattributed.

That is the order in which ties are broken."""

_IDLE: Final = 1
_UNATTRIBUTED: Final = 2
"""Beside the parties, who are 0: the rank of what is saved."""

_NOBODY: Final = ProcessAt(ProcessKey(0, 0), Place("", ""))
_MOST_OWED: Final = SCALE << 16
"""More than all roundings of a division together, however many share a GPU."""


class EnergyDivider:
    """Divides the intervals of one GPU one after the other; carries what rounding owes to whom."""

    __slots__ = (
        "_ats",
        "_by_workload",
        "_given",
        "_method",
        "_methods",
        "_owed_by_number",
        "_owed_in_order",
        "_parties",
        "_policy",
        "_stands",
        "_weights",
        "_who",
    )

    def __init__(self, policy: EnergyPolicy) -> None:
        self._policy = policy
        # The parties of the last division: as given, in order, who they are, and what depends on nothing else.
        self._given: tuple[Party, ...] | None = None
        self._parties: list[Party] = []
        self._who: list[tuple[ProcessAt, WorkloadRef, float, bool]] = []
        self._methods: Mapping[ProcessAt, Method] = {}
        self._method: Method | None = None
        self._by_workload: _Claims | None = None
        self._weights: Weights | None = None
        self._stands: bool | None = None
        # What is owed to them, by number as in claims.
        self._ats: tuple[ProcessAt, ...] = ()
        self._owed_by_number: dict[int, int] = {}
        self._owed_in_order: list[int] | None = None  # to all parties and nobody else, since they only stood there

    @property
    def _owed(self) -> dict[int, int]:
        if self._owed_in_order is not None:
            self._owed_by_number, self._owed_in_order = dict(enumerate(self._owed_in_order)), None
        return self._owed_by_number

    @_owed.setter
    def _owed(self, owed: dict[int, int]) -> None:
        self._owed_by_number, self._owed_in_order = owed, None

    def divide(self, interval: Interval, factors: Mapping[ProcessAt, float] | None = None) -> Division:
        """Divide an interval. ``factors`` weigh a process's work by what it was seen to draw (1 where not given).

        Its parts are in the order of their keys.
        """
        if interval.parties is not self._given:
            self._take_in(interval.parties)
        parties = self._parties
        if self._is_standing(interval):
            return self._divide_standing(interval.delta_mj)
        claims, methods = self._claims(interval, parties, factors or {})
        parts, self._owed = apportion(interval.delta_mj, whole_weights(claims), self._owed)
        method = self._method if methods is self._methods else None
        return Division(
            self._ats if methods else (),  # parts of all parties, or of none
            [parts.get(number, 0) for number in range(len(methods))],
            methods,
            next(iter(methods.values())) if len(methods) == 1 else method,
            parts.get(_idle(parties), 0),
            parts.get(_unattributed(parties), 0),
        )

    def _is_standing(self, interval: Interval) -> bool:
        """Whether all of it divides by who was there: several were, or one not alone, and nobody worked."""
        if interval.foreign_sm_us or interval.anomalous or interval.away or interval.crowded:
            return False
        if self._stands is None:
            self._stands = self._nobody_works()
        return self._stands and not (interval.alone and len(self._parties) == 1)

    def _nobody_works(self) -> bool:
        """Whether it is told that none of the parties worked, all were there all the time, and policy looks no further.

        Among those who came or left, parts of the interval are weighed as what they come to in millijoules.
        """
        parties = self._parties
        if self._policy not in (EnergyPolicy.RESIDENT, EnergyPolicy.SM) or all(party.hidden for party in parties):
            return False
        if any(party.sm_us or party.presence != 1.0 for party in parties):
            return False
        return any(party.sm_us is not None for party in parties)

    def _divide_standing(self, delta_mj: int) -> Division:
        """By workload. The weights are the parties' alone: they last for as long as those do."""
        if self._weights is None:
            if self._by_workload is None:
                self._by_workload = _by_workload(self._parties)
            self._weights = Weights.of(list(whole_weights(self._by_workload).values()))
        owed = self._owed_in_order
        if owed is None:
            owed = [self._owed_by_number.get(number, 0) for number in range(len(self._parties))]
        parts_mj, self._owed_in_order = self._weights.divide(delta_mj, owed)
        return _tuple(Division, (self._ats, parts_mj, self._methods, self._method, 0, 0))

    def _take_in(self, given: tuple[Party, ...]) -> None:
        """Put the parties in order; if they are others than those before, find out what depends on them."""
        parties = sorted(given, key=attrgetter("at"))
        who = [(party.at, party.workload, party.presence, party.hidden) for party in parties]
        if self._given is None or who != self._who:
            self._who, self._by_workload, self._weights = who, None, None
            self._methods = {party.at: _INFERRED if party.hidden else _ESTIMATED for party in parties}
            hidden = {party.hidden for party in parties}
            self._method = None if len(hidden) != 1 else _INFERRED if parties[0].hidden else _ESTIMATED
            self._hand_on(tuple([party.at for party in parties]))
        self._given, self._parties, self._stands = given, parties, None

    def _hand_on(self, ats: tuple[ProcessAt, ...]) -> None:
        """Have what is owed by the numbers that these have now."""
        if ats != self._ats:
            before, self._ats = self._by_rank(), ats
            ranked = _ranked(ats)
            self._owed = {number: before[claim] for number, claim in enumerate(ranked) if claim in before}

    def _by_rank(self) -> dict[tuple[int, ProcessAt], int]:
        """What is owed to whom: a party of rank 0, or to nobody, of the rank of idle or of unattributed."""
        return {claim: self._owed[number] for number, claim in enumerate(_ranked(self._ats)) if number in self._owed}

    def _claims(
        self, interval: Interval, parties: Sequence[Party], factors: Mapping[ProcessAt, float]
    ) -> tuple[_Claims, Mapping[ProcessAt, Method]]:
        if interval.anomalous:
            return {_unattributed(parties): 1.0}, {}
        if interval.away:
            return _nobody_looked(interval, parties)
        if not [party for party in parties if not party.hidden]:
            return _nobody_listed(interval, parties)
        if len(parties) == 1 and interval.alone and not interval.foreign_sm_us:
            return {0: 1.0}, {parties[0].at: _MEASURED}
        return self._estimate(interval, parties, factors), self._methods

    def _estimate(self, interval: Interval, parties: Sequence[Party], factors: Mapping[ProcessAt, float]) -> _Claims:
        """Static and context by policy, the rest by work; without figures of work, all by what each could use."""
        total = float(max(0, interval.delta_mj))
        work = _work(parties, factors)
        if work is None:
            return {_unattributed(parties): 1.0} if interval.crowded else _add({}, _by_capacity(parties), total)
        foreign = float(max(0, interval.foreign_sm_us))
        worked = sum(work) + foreign
        standing = min(total, max(0.0, interval.held_w) * interval.duration_s * 1000) if worked > 0 else total
        claims = _add({}, self._standing(parties, work, foreign, crowded=interval.crowded), standing)
        if worked > 0:
            _add(claims, {**dict(enumerate(work)), _unattributed(parties): foreign}, total - standing)
        return claims

    def _standing(self, parties: Sequence[Party], work: Sequence[float], foreign: float, *, crowded: bool) -> _Claims:
        if self._policy is EnergyPolicy.NONE:
            return {_idle(parties): 1.0}
        if self._policy is EnergyPolicy.SM and sum(work) + foreign > 0:
            return {**dict(enumerate(work)), _unattributed(parties): foreign}
        if crowded:  # among how many it divides is not known
            return {_unattributed(parties): 1.0}
        if self._policy is EnergyPolicy.MEMORY and any(party.memory_bytes for party in parties):
            return {number: (party.memory_bytes or 0) * party.presence for number, party in enumerate(parties)}
        if self._by_workload is None:
            self._by_workload = _by_workload(parties)
        return self._by_workload

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> list[list[Any]]:
        """What is carried, as plain data."""
        return [[rank, *at.key, *at.place, owed] for (rank, at), owed in sorted(self._by_rank().items())]

    def restore(self, state: Any) -> None:
        """Take up what was carried; ValueError if it is not what ``to_state`` gave."""
        owed_to: dict[tuple[int, ProcessAt], int] = {}
        try:
            for rank, pid, start, gpu, mig, owed in state:
                numbers, names = (rank, pid, start, owed), (gpu, mig)
                if {type(each) for each in numbers} != {int} or {type(each) for each in names} != {str}:
                    raise ValueError("not what rounding owes")
                if abs(owed) > _MOST_OWED:
                    raise ValueError("more than rounding can owe")
                owed_to[rank, ProcessAt(ProcessKey(pid, start), Place(gpu, mig))] = owed
        except TypeError as error:
            raise ValueError("not what rounding owes") from error
        self._given = None
        self._ats = tuple(sorted(at for rank, at in owed_to if rank == 0))
        self._owed = {number: owed_to[claim] for number, claim in enumerate(_ranked(self._ats)) if claim in owed_to}


def _ranked(ats: tuple[ProcessAt, ...]) -> list[tuple[int, ProcessAt]]:
    """Whom the numbers of claims mean, in their order."""
    return [*((0, at) for at in ats), (_IDLE, _NOBODY), (_UNATTRIBUTED, _NOBODY)]


def _idle(parties: Sequence[Party]) -> int:
    return len(parties) - 1 + _IDLE


def _unattributed(parties: Sequence[Party]) -> int:
    return len(parties) - 1 + _UNATTRIBUTED


def _nobody_listed(interval: Interval, parties: Sequence[Party]) -> tuple[_Claims, Mapping[ProcessAt, Method]]:
    if len(parties) == 1 and not interval.foreign_sm_us and not interval.crowded:
        return {0: 1.0}, {parties[0].at: _INFERRED}
    if parties or interval.foreign_sm_us or interval.strangers or not interval.known:
        return {_unattributed(parties): 1.0}, {}
    return {_idle(parties): 1.0}, {}


def _nobody_looked(interval: Interval, parties: Sequence[Party]) -> tuple[_Claims, Mapping[ProcessAt, Method]]:
    if len(parties) == 1 and interval.alone and not interval.foreign_sm_us and not interval.crowded:
        return {0: 1.0}, {parties[0].at: _INFERRED if parties[0].hidden else _ESTIMATED}
    return {_unattributed(parties): 1.0}, {}


def _work(parties: Sequence[Party], factors: Mapping[ProcessAt, float]) -> list[float] | None:
    """Weighted work; ``None`` where the driver tells nobody's. A factor does not count for hidden parties."""
    told_us = [party.sm_us for party in parties]
    if told_us.count(None) == len(told_us):
        return None
    if not factors:
        return [sm_us * 1.0 if sm_us is not None and sm_us > 0 else 0.0 for sm_us in told_us]
    return [max(0, party.sm_us or 0) * factors.get(party.at, 1.0) for party in parties]


def _by_workload(parties: Sequence[Party]) -> _Claims:
    """Equal among workloads by the time they were there, then among each one's processes likewise.

    Among processes at once, a pod with eight workers would pay eight times what a pod with one pays.
    """
    by_workload: dict[WorkloadKey, list[float]] = {}
    for party in parties:
        by_workload.setdefault(party.workload.key, []).append(max(0.0, party.presence))
    wholes = {key: (max(there), sum(there) or 1.0) for key, there in by_workload.items()}
    weights: _Claims = {}
    for number, party in enumerate(parties):
        longest, together = wholes[party.workload.key]
        weights[number] = max(0.0, party.presence) * longest / together
    return weights


def _by_capacity(parties: Sequence[Party]) -> _Claims:
    """By the SMs of the MIG instance, then by memory held there; by memory alone without MIG."""
    places: dict[Place, list[tuple[int, Party]]] = {}
    for number, party in enumerate(parties):
        places.setdefault(party.at.place, []).append((number, party))
    claims: _Claims = {}
    for _, members in sorted(places.items(), key=lambda item: item[0]):
        size = float(members[0][1].sm_count or 1)
        held = [(party.memory_bytes or 0) * party.presence for _, party in members]
        shares = held if sum(held) > 0 else [party.presence for _, party in members]
        whole = sum(shares) or 1.0
        for (number, _), share in zip(members, shares, strict=True):
            claims[number] = size * share / whole
    return claims


def _add(claims: _Claims, weights: _Claims, amount_mj: float) -> _Claims:
    """Divide an amount by weights and add it to the claims; equally if all weights are 0."""
    whole = sum(weights.values())
    for number, weight in weights.items():
        share = weight / whole if whole > 0 else 1 / len(weights)
        claims[number] = claims.get(number, 0.0) + amount_mj * share
    return claims
