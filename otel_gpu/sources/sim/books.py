"""The true account of one simulated GPU: every picojoule and microsecond, and whose it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from otel_gpu.model import ProcessKey
from otel_gpu.sources.sim.world import GpuUse, ProcessSpec


@dataclass(frozen=True, slots=True)
class Member:
    """A process with a context on the GPU. ``place`` is its MIG instance's, 0 without MIG.

    ``equal_share`` is its part of what is divided equally among workloads, then among each one's processes.
    """

    key: ProcessKey
    process: ProcessSpec
    use: GpuUse
    start_us: int
    place: int
    equal_share: float


class Moment(NamedTuple):
    """What holds within one step: per member its SM share (of the GPU), its power in µW and its memory.

    ``power_uw`` is all the GPU draws; ``throttle`` is 1 unless the power limit bites.
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
class Account:
    """Sums of one process on one GPU; times in µs, of which shares are fractions."""

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
class Books:
    """Sums of one GPU. µW times µs is pJ: integers, so nothing is lost however long it runs."""

    static_pj: int = 0
    context_pj: int = 0
    dynamic_pj: int = 0
    retired_pj: int = 0
    busy_us: float = 0.0
    occupied_us: int = 0
    accounts: dict[ProcessKey, Account] = field(default_factory=dict)

    @property
    def total_pj(self) -> int:
        """All energy so far."""
        return self.static_pj + self.context_pj + self.dynamic_pj

    def copy(self) -> Books:
        """A copy that can be written to without touching this one."""
        return replace(self, accounts={key: replace(account) for key, account in self.accounts.items()})

    def open(self, key: ProcessKey, process: ProcessSpec, use: GpuUse) -> Account:
        """The process's account, a new one at its first appearance."""
        account = self.accounts.get(key)
        if account is None:
            account = self.accounts[key] = Account(process, use, idle_since_us=max(process.start_us, 0))
        return account

    def post(self, moment: Moment, start_us: int, length_us: int) -> None:
        """Book ``length_us`` of this moment, from ``start_us`` on."""
        self.static_pj += moment.static_uw * length_us
        self.context_pj += moment.context_uw * length_us
        self.busy_us += moment.utilization * length_us
        if moment.members:
            self.occupied_us += length_us
        held_us = length_us / (sum(moment.held_bytes) or 1)
        work_us = length_us / (moment.utilization or 1.0)
        for member, share, power_uw, held in zip(
            moment.members, moment.shares, moment.powers_uw, moment.held_bytes, strict=True
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
        """Forget a process; what it drew stays in the sum."""
        self.retired_pj += self.accounts.pop(key).dynamic_pj
