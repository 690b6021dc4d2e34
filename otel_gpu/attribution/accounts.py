"""Accounts of processes or of workloads: their totals, bounded in number, and exact whatever is dropped."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar

from otel_gpu.attribution.activity import ActivityTracker, StateTime
from otel_gpu.attribution.cycle import LedgerTime
from otel_gpu.attribution.energy import Method
from otel_gpu.attribution.keys import (
    DeviceKey,
    ProcessAccountKey,
    ProcessOnDevice,
    WorkloadAccountKey,
    WorkloadOnDevice,
)
from otel_gpu.attribution.saved_values import whole
from otel_gpu.model import GpuState, MethodEnergy, Totals, WorkloadRef

FINAL_NS: Final = 30_000_000_000
"""At the cap, an ended account makes room only after this long, so that every exporter has sent its final values."""

_REMEMBERED_DROPPED: Final = 2000
"""How many dropped accounts are remembered, so that a process or workload that returns starts a new account."""

Key = TypeVar("Key", ProcessAccountKey, WorkloadAccountKey)


@dataclass(slots=True)
class RunningTotals:
    """What an account has used so far, in integers that never fall."""

    measured_mj: int = 0
    estimated_mj: int = 0
    inferred_mj: int = 0
    compute_us: int = 0
    busy_us: int = 0
    idle_us: int = 0
    allocated_us: int = 0
    unknown_us: int = 0
    idle_byte_us: int = 0
    busy_mj: int = 0
    idle_mj: int = 0
    unknown_mj: int = 0
    billed_busy_us: int = 0
    billed_idle_us: int = 0
    billed_allocated_us: int = 0
    billed_unknown_us: int = 0

    @property
    def energy_mj(self) -> int:
        """Energy by all methods."""
        return self.measured_mj + self.estimated_mj + self.inferred_mj

    def add_energy(self, method: Method, energy_mj: int) -> None:
        """Post energy that was obtained by a method."""
        match method:
            case Method.MEASURED:
                self.measured_mj += energy_mj
            case Method.ESTIMATED:
                self.estimated_mj += energy_mj
            case Method.INFERRED:
                self.inferred_mj += energy_mj

    def add_time(self, time: StateTime) -> None:
        """Post time in a state, with the energy used and the time billed in it; memory only while idle."""
        match time.state:
            case GpuState.BUSY:
                self.busy_us += time.time_us
                self.busy_mj += time.energy_mj
                self.billed_busy_us += time.billed_us
            case GpuState.IDLE:
                self.idle_us += time.time_us
                self.idle_byte_us += time.byte_us
                self.idle_mj += time.energy_mj
                self.billed_idle_us += time.billed_us
            case GpuState.ALLOCATED:
                self.allocated_us += time.time_us
                self.billed_allocated_us += time.billed_us
            case GpuState.UNKNOWN:
                self.unknown_us += time.time_us
                self.unknown_mj += time.energy_mj
                self.billed_unknown_us += time.billed_us

    def add(self, other: RunningTotals) -> None:
        """Add all totals of another account."""
        for each in fields(RunningTotals):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def frozen(self, since_ns: int) -> Totals:
        """The totals as they are now, counted since ``since_ns`` (Unix time)."""
        energy = MethodEnergy(self.measured_mj, self.estimated_mj, self.inferred_mj)
        return Totals(since_ns, energy, *_COUNTS(self))

    # -- checkpoint -----------------------------------------------------------------

    def to_state(self) -> list[int]:
        """The totals in their order."""
        return list(_IN_ORDER(self))

    @classmethod
    def from_state(cls, data: Any) -> Self:
        """The counterpart of ``to_state``; ValueError for any other data. Totals that a file lacks begin at zero."""
        if not isinstance(data, list) or not _FIRST_TOTALS <= len(data) <= len(fields(RunningTotals)):
            raise ValueError("ledger: not totals")
        return cls(*map(whole, data))


_FIRST_TOTALS: Final = 16
"""The number of totals in the first checkpoints. A new total goes to the end."""

_IN_ORDER: Final = attrgetter(*(each.name for each in fields(RunningTotals)))
_COUNTS: Final = attrgetter(*(name for name in Totals._fields if name not in ("since_ns", "energy")))
"""The fields that both kinds of totals have, in the order of ``Totals``."""


@dataclass(slots=True, eq=False)
class Account(Generic[Key]):
    """The account of one process or workload on one device. ``since_ns`` is Unix time, the other times are monotonic.

    ``ended_ns`` is when its last process left. ``last_energy_ns`` is the cycle in which energy was last posted: such an
    account is part of that cycle's report. ``activity`` is ``None`` while no process of it is on the device. An account
    equals only itself.
    """

    key: Key
    ref: WorkloadRef
    since_ns: int
    name: str | None = None
    start_time_s: float | None = None
    ended_ns: int | None = None
    last_energy_ns: int | None = None
    totals: RunningTotals = field(default_factory=RunningTotals)
    activity: ActivityTracker | None = None
    is_dropped: bool = False

    def close_activity(self) -> None:
        """Post the time that was still undecided: no process is left that could decide it."""
        if self.activity is not None:
            for time in self.activity.close():
                self.totals.add_time(time)
            self.activity = None


AnyAccount: TypeAlias = Account[ProcessAccountKey] | Account[WorkloadAccountKey]


class Accounts(Generic[Key]):
    """All accounts of processes, or all of workloads.

    Ended accounts stay for the retention; at the cap, the oldest of them make room sooner. The totals of a dropped
    account are added to ``retired``, by GPU: accounts and retired totals together are everything that was ever posted.
    """

    def __init__(self, cap: int, retention_ns: int) -> None:
        self.by_key: dict[Key, Account[Key]] = {}
        self.overflow: set[Key] = set()
        self.retired: dict[str, RunningTotals] = {}
        self._cap = cap
        self._retention_ns = retention_ns
        self.dropped: dict[ProcessOnDevice | WorkloadOnDevice, int] = {}
        """When the account of each subject was dropped (Unix time), the oldest first."""
        self.dropped_before_ns = 0
        """Accounts dropped up to this Unix time are not remembered: any subject from before it counts as dropped."""
        self._evictable: list[Key] | None = None
        """Ended accounts that may make room in this cycle, the oldest last; listed once per cycle when first needed."""

    def has_room(self, time: LedgerTime, *, successor: bool = False) -> bool:
        """Whether one more account may be opened; drops an ended one if that makes room.

        The ``successor`` of a renamed account may exceed the cap: its predecessor has just ended.
        """
        if len(self.by_key) - len(self.overflow) < self._cap * (2 if successor else 1):
            return True
        if self._evictable is None:
            self._evictable = sorted(
                (key for key in self.by_key.keys() - self.overflow if self._is_evictable(key, time)),
                key=lambda key: (self.by_key[key].ended_ns or 0, key),
                reverse=True,
            )
        while self._evictable:
            key = self._evictable.pop()
            account = self.by_key.get(key)
            if account is not None and account.ended_ns is not None:  # it may have returned in this cycle
                self.drop(key, time)
                return True
        return False

    def _is_evictable(self, key: Key, time: LedgerTime) -> bool:
        account = self.by_key[key]
        ended_ns = account.ended_ns
        return ended_ns is not None and time.now_ns - ended_ns >= FINAL_NS and account.last_energy_ns != time.now_ns

    def open(self, key: Key, ref: WorkloadRef, since_ns: int, time: LedgerTime) -> Account[Key]:
        """Open an account that counts from ``since_ns`` (Unix time)."""
        account = self.by_key[key] = Account(key, ref, self._since_ns(key, since_ns, time))
        return account

    def open_overflow(self, key: Key, ref: WorkloadRef, epoch_ns: int, time: LedgerTime) -> Account[Key]:
        """Open or return the account that processes and workloads beyond the cap share."""
        account = self.by_key.get(key)
        if account is None:
            account = self.open(key, ref, epoch_ns, time)
            self.overflow.add(key)
        account.ended_ns = None
        return account

    def _since_ns(self, key: Key, since_ns: int, time: LedgerTime) -> int:
        """Never in the future. A subject whose account was dropped starts again now: its totals are retired."""
        since_ns = min(since_ns, time.wall_ns)
        dropped_ns = self.dropped.get(key.subject)
        if dropped_ns is None and since_ns <= self.dropped_before_ns:
            dropped_ns = self.dropped_before_ns
        if dropped_ns is not None:
            since_ns = max(time.window_start_ns, dropped_ns + 1)
        return max(since_ns, time.window_start_ns) if key.naming > 0 else since_ns

    def sweep(self, time: LedgerTime, devices: Collection[DeviceKey]) -> None:
        """Drop accounts that ended longer ago than the retention; overflow accounts only when their device is gone."""
        expired = [
            key
            for key, account in self.by_key.items()
            if account.ended_ns is not None
            and time.now_ns - account.ended_ns > self._retention_ns
            and account.last_energy_ns != time.now_ns
            and (key not in self.overflow or key.subject.device not in devices)
        ]
        for key in sorted(expired):  # in an order that a restart does not change
            self.drop(key, time)
        self._evictable = None

    def drop(self, key: Key, time: LedgerTime) -> None:
        """Drop an account; its totals are retired."""
        account = self.by_key.pop(key)
        account.is_dropped = True
        self.overflow.discard(key)
        self.retired.setdefault(key.subject.device.gpu_uuid, RunningTotals()).add(account.totals)
        self.dropped.pop(key.subject, None)
        self.dropped[key.subject] = time.wall_ns
        while len(self.dropped) > _REMEMBERED_DROPPED:
            oldest = next(iter(self.dropped))
            self.dropped_before_ns = max(self.dropped_before_ns, self.dropped.pop(oldest))

    def posted_mj(self) -> dict[str, int]:
        """All energy ever posted here, by GPU."""
        posted = {uuid: totals.energy_mj for uuid, totals in self.retired.items()}
        for key, account in self.by_key.items():
            uuid = key.subject.device.gpu_uuid
            posted[uuid] = posted.get(uuid, 0) + account.totals.energy_mj
        return posted
