"""Divide the energy of an interval: every millijoule goes to a process, to idle, or to unattributed.

An interval is the time between two readings of a GPU's energy. It is divided once, in whole millijoules; the energy of
a workload is the sum of its processes' and never a second division.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from otel_gpu.attribution.apportion import SCALE, apportion, whole_weights
from otel_gpu.attribution.keys import DeviceKey, ProcessOnDevice
from otel_gpu.attribution.options import EnergyPolicy
from otel_gpu.attribution.saved_values import integer, process_on_device_from, restoring
from otel_gpu.model import ProcessKey, WorkloadKey, WorkloadRef


class Method(StrEnum):
    """How a consumer's energy was obtained."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    INFERRED = "inferred"


class Consumer(NamedTuple):
    """A process that was on the GPU during the interval.

    ``presence`` is the fraction of the interval it was there, 0 to 1. ``sm_us`` is its work in GPU-microseconds,
    ``None`` where the driver reports none. ``hidden`` is a process in none of the driver's lists. ``sm_count`` is the
    size of its MIG instance.
    """

    at: ProcessOnDevice
    workload: WorkloadRef
    presence: float
    memory_bytes: int | None
    sm_us: int | None
    hidden: bool = False
    sm_count: int | None = None


class Interval(NamedTuple):
    """Energy to divide, and what is known of the time in which it was used. Consumers are in the order of their keys.

    ``unidentified_sm_us`` is work of pids that no process is known for. ``is_exclusive``: the one listed process was
    the only one at both ends and in between. ``has_unexplained_memory``: memory is in use that no list and no evidence
    explains, so further processes exist. ``lists_complete`` is false where lists could not be read or may lack
    processes. ``context_power_w`` is the GPU's power with contexts and no work. ``may_have_unseen_users``: of other
    users nothing is known but that they may exist, so consumers get only what those certainly did not use.
    ``agent_was_away``: the agent did not run for part of the interval, so only an exclusive consumer gets anything.
    """

    delta_mj: int
    duration_s: float
    consumers: Sequence[Consumer]
    unidentified_sm_us: int = 0
    is_exclusive: bool = False
    has_unexplained_memory: bool = False
    context_power_w: float = 0.0
    anomalous: bool = False
    lists_complete: bool = True
    may_have_unseen_users: bool = False
    agent_was_away: bool = False


class Division(NamedTuple):
    """Millijoules of an interval: parts, idle and unattributed sum to the whole. Keys are in order."""

    parts_mj: Mapping[ProcessOnDevice, int]
    methods: Mapping[ProcessOnDevice, Method]
    idle_mj: int
    unattributed_mj: int

    @property
    def attributed_mj(self) -> int:
        """The sum of the parts."""
        return sum(self.parts_mj.values())


_Place: TypeAlias = int
"""A claimant of energy: a consumer by its place in the interval, idle, or unattributed. Ties go to the smaller one."""

_IDLE: Final[_Place] = 1 << 30
_UNATTRIBUTED: Final[_Place] = _IDLE + 1

_Claims: TypeAlias = dict[_Place, float]
"""What each claims of the energy, in millijoules or any common unit."""

_Methods: TypeAlias = dict[_Place, Method]
"""The method by which the part of each consumer is obtained; empty if no consumer has a part."""

_Claimant: TypeAlias = tuple[int, ProcessOnDevice]
"""The owner of a residue, whatever its place in the next interval: a process (rank 0), idle (1), unattributed (2)."""

_NO_PROCESS: Final = ProcessOnDevice(ProcessKey(0, 0), DeviceKey("", ""))
_NO_CONSUMER: Final[Mapping[_Place, _Claimant]] = MappingProxyType(
    {_IDLE: (1, _NO_PROCESS), _UNATTRIBUTED: (2, _NO_PROCESS)}
)

_MAX_RESIDUE: Final = SCALE << 16
"""More than all roundings of one division, however many processes share a GPU."""


class EnergyDivider:
    """Divides the intervals of one GPU one after the other; carries the residues of rounding."""

    __slots__ = ("_policy", "_residues")

    def __init__(self, policy: EnergyPolicy) -> None:
        self._policy = policy
        self._residues: dict[_Claimant, int] = {}

    def divide(self, interval: Interval, factors: Mapping[ProcessOnDevice, float] | None = None) -> Division:
        """Divide an interval. ``factors`` weigh a process's work by the power it was seen to draw (default 1)."""
        claims, methods = _claims(interval, self._policy, factors or {})
        claimants = {**{place: (0, consumer.at) for place, consumer in enumerate(interval.consumers)}, **_NO_CONSUMER}
        residues = {place: self._residues.get(claimants[place], 0) for place in claims}
        parts_mj, residues = apportion(interval.delta_mj, whole_weights(claims), residues)
        self._residues = {claimants[place]: owed for place, owed in residues.items()}
        consumers = interval.consumers
        return Division(
            {consumers[place].at: parts_mj.get(place, 0) for place in methods},
            {consumers[place].at: method for place, method in methods.items()},
            parts_mj.get(_IDLE, 0),
            parts_mj.get(_UNATTRIBUTED, 0),
        )

    # -- checkpoint -----------------------------------------------------------------

    def to_state(self) -> list[list[Any]]:
        """The residues, as plain data."""
        return [[rank, *at.process, *at.device, owed] for (rank, at), owed in sorted(self._residues.items())]

    def restore(self, state: Any) -> None:
        """Take over residues; ValueError if they are not what ``to_state`` gave."""
        residues: dict[_Claimant, int] = {}
        with restoring("residues of rounding"):
            for rank, *at, owed in state:
                residues[integer(rank), process_on_device_from([at[:2], at[2:]])] = integer(owed)
        if any(abs(owed) > _MAX_RESIDUE for owed in residues.values()):
            raise ValueError("more than rounding can leave")
        self._residues = residues


# ---------------------------------------------------------------------------- claims


def _claims(
    interval: Interval, policy: EnergyPolicy, factors: Mapping[ProcessOnDevice, float]
) -> tuple[_Claims, _Methods]:
    """What each claims of the interval's energy, and the method by which its part is obtained."""
    consumers = interval.consumers
    if interval.anomalous:
        return {_UNATTRIBUTED: 1.0}, {}
    if interval.agent_was_away:
        return _claims_of_absence(interval)
    if all(consumer.hidden for consumer in consumers):
        return _claims_of_unlisted(interval)
    if len(consumers) == 1 and interval.is_exclusive and not interval.unidentified_sm_us:
        return _all_to_the_only(Method.MEASURED)
    methods = {place: Method.INFERRED if each.hidden else Method.ESTIMATED for place, each in enumerate(consumers)}
    return _estimated_claims(interval, policy, factors), methods


def _claims_of_absence(interval: Interval) -> tuple[_Claims, _Methods]:
    """The agent was away: a consumer that was alone before and after is taken to have been alone throughout."""
    consumers = interval.consumers
    is_alone = len(consumers) == 1 and interval.is_exclusive and not interval.unidentified_sm_us
    if is_alone and not interval.may_have_unseen_users:
        return _all_to_the_only(Method.INFERRED if consumers[0].hidden else Method.ESTIMATED)
    return {_UNATTRIBUTED: 1.0}, {}


def _claims_of_unlisted(interval: Interval) -> tuple[_Claims, _Methods]:
    """No process is listed: a single hidden one gets all; several, or signs of others, and it is unattributed."""
    consumers = interval.consumers
    if len(consumers) == 1 and not interval.unidentified_sm_us and not interval.may_have_unseen_users:
        return _all_to_the_only(Method.INFERRED)
    if consumers or interval.unidentified_sm_us or interval.has_unexplained_memory or not interval.lists_complete:
        return {_UNATTRIBUTED: 1.0}, {}
    return {_IDLE: 1.0}, {}


def _all_to_the_only(method: Method) -> tuple[_Claims, _Methods]:
    return {0: 1.0}, {0: method}


def _estimated_claims(interval: Interval, policy: EnergyPolicy, factors: Mapping[ProcessOnDevice, float]) -> _Claims:
    """Static and context energy by policy, the rest by work; without work figures, all by what each could use."""
    consumers = interval.consumers
    total_mj = float(max(0, interval.delta_mj))
    if all(consumer.sm_us is None for consumer in consumers):
        if interval.may_have_unseen_users:
            return {_UNATTRIBUTED: 1.0}
        return _add({}, _by_capacity(consumers), total_mj)
    work: _Claims = {place: max(0, each.sm_us or 0) * factors.get(each.at, 1.0) for place, each in enumerate(consumers)}
    work[_UNATTRIBUTED] = float(max(0, interval.unidentified_sm_us))
    worked = sum(work.values())
    static_mj = total_mj
    if worked > 0:
        static_mj = min(total_mj, max(0.0, interval.context_power_w) * interval.duration_s * 1000)
    claims = _add({}, _static_weights(interval, policy, work), static_mj)
    return _add(claims, work, total_mj - static_mj) if worked > 0 else claims


def _static_weights(interval: Interval, policy: EnergyPolicy, work: _Claims) -> _Claims:
    """The weights by which static and context energy is divided."""
    consumers = interval.consumers
    if policy is EnergyPolicy.NONE:
        return {_IDLE: 1.0}
    if policy is EnergyPolicy.SM and sum(work.values()) > 0:
        return work
    if interval.may_have_unseen_users:  # it is unknown among how many it divides
        return {_UNATTRIBUTED: 1.0}
    if policy is EnergyPolicy.MEMORY and any(consumer.memory_bytes for consumer in consumers):
        return {place: (each.memory_bytes or 0) * each.presence for place, each in enumerate(consumers)}
    return _by_workload(consumers)


def _by_workload(consumers: Sequence[Consumer]) -> _Claims:
    """Equal among workloads by the time they were present, then among the processes of each in the same way.

    If processes paid equally, a pod with eight workers would pay eight times as much as a pod with one worker.
    """
    presence: dict[WorkloadKey, list[float]] = {}
    for consumer in consumers:
        presence.setdefault(consumer.workload.key, []).append(max(0.0, consumer.presence))
    longest_and_sum = {key: (max(of_workload), sum(of_workload) or 1.0) for key, of_workload in presence.items()}
    claims: _Claims = {}
    for place, consumer in enumerate(consumers):
        longest, whole = longest_and_sum[consumer.workload.key]
        claims[place] = max(0.0, consumer.presence) * longest / whole
    return claims


def _by_capacity(consumers: Sequence[Consumer]) -> _Claims:
    """By the SMs of the MIG instance, then by memory held there; by memory alone without MIG."""
    by_device: dict[DeviceKey, list[_Place]] = {}
    for place, consumer in enumerate(consumers):
        by_device.setdefault(consumer.at.device, []).append(place)
    claims: _Claims = {}
    for _, places in sorted(by_device.items()):
        members = [consumers[place] for place in places]
        size = float(members[0].sm_count or 1)
        shares = [(each.memory_bytes or 0) * each.presence for each in members]
        if not sum(shares) > 0:
            shares = [each.presence for each in members]
        whole = sum(shares) or 1.0
        for place, share in zip(places, shares, strict=True):
            claims[place] = size * share / whole
    return claims


def _add(claims: _Claims, weights: _Claims, amount_mj: float) -> _Claims:
    """Divide an amount by weights and add it to the claims; equally if all weights are 0."""
    whole = sum(weights.values())
    for claimant, weight in weights.items():
        share = weight / whole if whole > 0 else 1 / len(weights)
        claims[claimant] = claims.get(claimant, 0.0) + amount_mj * share
    return claims
