"""Truth of a simulated host, which no driver reports and which attribution is scored against.

Energy is in integer picojoules, so that parts equal the whole exactly: a GPU's total is static + context + dynamic, and
its dynamic part is the sum over its processes and ``retired``, the processes that were dropped.

How static and context energy divide among processes is a policy and not a truth. For each policy there is a time, to be
multiplied by ``static_w`` and ``context_w``: ``equal_share_s`` (equal among resident workloads, then among each
workload's processes), ``memory_share_s`` (by memory held), ``work_share_s`` (by SM share, while any process works).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from otel_gpu.model import ProcessKey, WorkloadRef
from otel_gpu.sources.sim.world import GpuUse, ProcessSpec

PJ_PER_MJ: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ProcessTruth:
    """One process on one GPU since it started (or since world time 0).

    ``busy_s`` is ∫ SM share dt of the whole GPU. ``idle_since_s`` is the world time since which it is idle, ``None``
    while it works or once it has ended. ``resident_bytes`` includes hidden memory.
    """

    key: ProcessKey
    workload: WorkloadRef
    gpu_uuid: str
    mig_uuid: str | None
    hidden: bool
    ended: bool
    resident_bytes: int
    dynamic_pj: int
    busy_s: float
    resident_s: float
    equal_share_s: float
    memory_share_s: float
    work_share_s: float
    idle_since_s: float | None

    @property
    def dynamic_mj(self) -> float:
        """Energy of its own work in millijoules."""
        return self.dynamic_pj / PJ_PER_MJ


@dataclass(frozen=True, slots=True)
class GpuTruth:
    """One GPU since world time 0. ``occupied_s`` is the time with at least one resident process."""

    uuid: str
    static_w: float
    context_w: float
    static_pj: int
    context_pj: int
    dynamic_pj: int
    retired_pj: int
    busy_s: float
    occupied_s: float
    used_bytes: int
    hidden_bytes: int
    processes: tuple[ProcessTruth, ...]

    @property
    def total_pj(self) -> int:
        """Total energy in picojoules."""
        return self.static_pj + self.context_pj + self.dynamic_pj

    @property
    def total_mj(self) -> float:
        """Total energy in millijoules."""
        return self.total_pj / PJ_PER_MJ


@dataclass(frozen=True, slots=True)
class Truth:
    """The truth of a world at one time, in world seconds."""

    at_s: float
    gpus: tuple[GpuTruth, ...]


# ---------------------------------------------------------------------------- totals while the simulation runs


@dataclass(frozen=True, slots=True)
class Member:
    """A process with a context on the GPU. ``partition`` is the index of its MIG instance, 0 without MIG.

    ``equal_share`` is its part if the GPU is divided equally among workloads, then among each workload's processes.
    """

    key: ProcessKey
    process: ProcessSpec
    use: GpuUse
    start_us: int
    partition: int
    equal_share: float


class StepState(NamedTuple):
    """The state of a GPU within one step: SM share (of the GPU), power in µW and memory of each member.

    ``power_uw`` is the power of the GPU; ``throttle`` is below 1 while the power limit applies.
    """

    members: Sequence[Member]
    shares: Sequence[float]
    powers_uw: Sequence[int]
    held_bytes: Sequence[int]
    utilization: float
    static_uw: int
    context_uw: int
    power_uw: int
    throttle: float


@dataclass(slots=True)
class TrueAccount:
    """Totals of one process on one GPU. Times are in µs; those weighted by a share are fractional."""

    process: ProcessSpec
    use: GpuUse
    idle_since_us: int | None
    dynamic_pj: int = 0
    busy_us: float = 0.0
    resident_us: int = 0
    equal_us: float = 0.0
    memory_us: float = 0.0
    work_us: float = 0.0


@dataclass(slots=True)
class TrueLedger:
    """Totals of one GPU. µW times µs is pJ: integers, so that sums stay exact over any time."""

    static_pj: int = 0
    context_pj: int = 0
    dynamic_pj: int = 0
    retired_pj: int = 0
    busy_us: float = 0.0
    occupied_us: int = 0
    accounts: dict[ProcessKey, TrueAccount] = field(default_factory=dict)

    @property
    def total_pj(self) -> int:
        """Total energy so far."""
        return self.static_pj + self.context_pj + self.dynamic_pj

    def copy(self) -> TrueLedger:
        """An independent copy."""
        return replace(self, accounts={key: replace(account) for key, account in self.accounts.items()})

    def open(self, key: ProcessKey, process: ProcessSpec, use: GpuUse) -> TrueAccount:
        """The process's account, created if it has none."""
        account = self.accounts.get(key)
        if account is None:
            account = self.accounts[key] = TrueAccount(process, use, idle_since_us=max(process.start_us, 0))
        return account

    def post(self, state: StepState, start_us: int, length_us: int) -> None:
        """Post ``length_us`` of this state, starting at ``start_us``."""
        self.static_pj += state.static_uw * length_us
        self.context_pj += state.context_uw * length_us
        self.busy_us += state.utilization * length_us
        if state.members:
            self.occupied_us += length_us
        held_us = length_us / (sum(state.held_bytes) or 1)
        work_us = length_us / (state.utilization or 1.0)
        for member, share, power_uw, held in zip(
            state.members, state.shares, state.powers_uw, state.held_bytes, strict=True
        ):
            account = self.accounts.get(member.key) or self.open(member.key, member.process, member.use)
            account.resident_us += length_us
            account.equal_us += member.equal_share * length_us
            account.memory_us += held * held_us
            if share > 0:
                energy_pj = power_uw * length_us
                account.dynamic_pj += energy_pj
                self.dynamic_pj += energy_pj
                account.busy_us += share * length_us
                account.work_us += share * work_us
                account.idle_since_us = None
            elif account.idle_since_us is None:
                account.idle_since_us = start_us

    def retire(self, key: ProcessKey) -> None:
        """Drop a process; its energy stays in the total."""
        self.retired_pj += self.accounts.pop(key).dynamic_pj
