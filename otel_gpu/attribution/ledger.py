"""The ledger: what every process and workload has used so far. Totals never fall.

Each process on a device (a GPU, or a MIG instance of it) has an account, and so has its workload there. A process's
account ends when the process leaves, and is dropped after the retention. Its workload's account keeps what the process
used, and ends when its last process has left. A process that comes when the ledger is full is assigned to one overflow
account for the rest of its life.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from otel_gpu.attribution.accounts import Account, Accounts, AnyAccount
from otel_gpu.attribution.cycle import LedgerTime
from otel_gpu.attribution.keys import (
    DeviceKey,
    ProcessAccountKey,
    ProcessOnDevice,
    WorkloadAccountKey,
    WorkloadOnDevice,
    workload_on,
)
from otel_gpu.attribution.naming import Namings
from otel_gpu.attribution.residents import Resident
from otel_gpu.model import OVERFLOW_PROCESS, OVERFLOW_WORKLOAD, Grant, WorkloadRef

GRACE_NS: Final = 30_000_000_000
"""A process missing from the driver's lists for this long has left, even if it still runs."""


@dataclass(slots=True)
class GpuAccount:
    """Where a GPU's energy went: the three amounts sum to all it used since the ledger began.

    Name, index and the profiles of MIG instances are as last read, for reports while the GPU does not answer.
    """

    name: str = ""
    index: int | None = None
    profiles: dict[str, str] = field(default_factory=dict)
    attributed_mj: int = 0
    idle_mj: int = 0
    unattributed_mj: int = 0


@dataclass(slots=True, eq=False)
class Assignment:
    """The accounts that a process posts to. ``ref`` is its workload as first seen; the times are monotonic."""

    ref: WorkloadRef
    process: Account[ProcessAccountKey]
    workload: Account[WorkloadAccountKey]
    last_seen_ns: int
    ended_ns: int | None = None

    @property
    def is_dropped(self) -> bool:
        """Whether one of the accounts was dropped, which happens only after the process has left."""
        return self.process.is_dropped or self.workload.is_dropped


_Present: TypeAlias = tuple[ProcessOnDevice, Assignment]


class Ledger:
    """Accounts per (process, device) and (workload, device). Their number has a limit."""

    def __init__(
        self, epoch_ns: int, *, retention_ns: int, max_processes: int = 2000, max_workloads: int = 2000
    ) -> None:
        self.epoch_ns = epoch_ns
        self.processes: Accounts[ProcessAccountKey] = Accounts(max_processes, retention_ns)
        self.workloads: Accounts[WorkloadAccountKey] = Accounts(max_workloads, retention_ns)
        self.gpus: defaultdict[str, GpuAccount] = defaultdict(GpuAccount)
        self.namings = Namings()
        self.assignments: dict[str, dict[ProcessOnDevice, Assignment]] = {}
        """By GPU: processes on it, and processes that left and still have an account."""
        self._overflowed: set[WorkloadOnDevice] = set()
        """Workloads with a process in the overflow account: later processes of theirs join it."""
        self._granted: set[Account[WorkloadAccountKey]] = set()
        """Accounts that a grant keeps open in this cycle."""

    # -- arrivals -------------------------------------------------------------------

    def admit(self, resident: Resident, time: LedgerTime) -> Assignment:
        """The accounts of a process that is on a device now; opened if it is new, or if its workload was renamed."""
        at = resident.at
        assignment = self.assignment(at)
        is_renamed = is_overflow = False
        if assignment is not None:
            key = assignment.workload.key
            is_renamed = key.naming != self.namings.number(assignment.ref) and key not in self.workloads.overflow
            is_overflow = assignment.process.key in self.processes.overflow
        if is_renamed:
            self.end(at, time.now_ns)
        if assignment is None or is_renamed:
            assignment = self._assign(resident, time, successor=is_renamed, overflow=is_renamed and is_overflow)
            self.assignments.setdefault(at.device.gpu_uuid, {})[at] = assignment
        assignment.last_seen_ns, assignment.ended_ns = time.now_ns, None
        assignment.process.ended_ns = assignment.workload.ended_ns = None
        return assignment

    def admit_grant(self, grant: Grant, time: LedgerTime) -> Account[WorkloadAccountKey]:
        """The account of a workload that was granted a device and has no process there; open while granted."""
        device = DeviceKey(grant.gpu_uuid, grant.mig_uuid)
        account = self._workload_account(grant.workload, device, self._start_ns(grant.since_s), time, successor=False)
        account.ended_ns = None
        self._granted.add(account)
        return account

    def _assign(self, resident: Resident, time: LedgerTime, *, successor: bool, overflow: bool) -> Assignment:
        ref, device, start_ns = resident.ref, resident.at.device, self._start_ns(resident.start_time_s)
        workload = self._workload_account(ref, device, start_ns, time, successor=successor)
        key = ProcessAccountKey(resident.at, self.namings.number(ref))
        process = self.processes.by_key.get(key)
        if process is None and not overflow and self.processes.has_room(time, successor=successor):
            process = self.processes.open(key, workload.ref, start_ns, time)
            process.name, process.start_time_s = resident.name, resident.start_time_s
        return Assignment(ref, process or self._overflow_process(device, time), workload, time.now_ns)

    def _workload_account(
        self, ref: WorkloadRef, device: DeviceKey, start_ns: int, time: LedgerTime, *, successor: bool
    ) -> Account[WorkloadAccountKey]:
        key = WorkloadAccountKey(workload_on(ref, device), self.namings.number(ref))
        account = self.workloads.by_key.get(key)
        if account is not None:
            return account
        if key.subject not in self._overflowed and self.workloads.has_room(time, successor=successor):
            return self.workloads.open(key, ref, start_ns, time)
        self._overflowed.add(key.subject)
        return self._overflow_workload(device, time)

    def _start_ns(self, since_s: float | None) -> int:
        return self.epoch_ns if since_s is None else max(self.epoch_ns, round(since_s * 1e9))

    def _overflow_process(self, device: DeviceKey, time: LedgerTime) -> Account[ProcessAccountKey]:
        key = ProcessAccountKey(ProcessOnDevice(OVERFLOW_PROCESS, device))
        return self.processes.open_overflow(key, OVERFLOW_WORKLOAD, self.epoch_ns, time)

    def _overflow_workload(self, device: DeviceKey, time: LedgerTime) -> Account[WorkloadAccountKey]:
        key = WorkloadAccountKey(workload_on(OVERFLOW_WORKLOAD, device))
        return self.workloads.open_overflow(key, OVERFLOW_WORKLOAD, self.epoch_ns, time)

    # -- look-up --------------------------------------------------------------------

    def assignment(self, at: ProcessOnDevice) -> Assignment | None:
        """The accounts of a process; ``None`` if it is unknown, or one of them was dropped since it left."""
        assignment = self.assignments.get(at.device.gpu_uuid, {}).get(at)
        return None if assignment is None or assignment.is_dropped else assignment

    def accounts_of(
        self, at: ProcessOnDevice, time: LedgerTime
    ) -> tuple[Account[ProcessAccountKey], Account[WorkloadAccountKey]]:
        """The accounts to post a process's use to: process and workload. Overflow if it is unknown: nothing is lost."""
        assignment = self.assignment(at)
        if assignment is not None:
            return assignment.process, assignment.workload
        return self._overflow_process(at.device, time), self._overflow_workload(at.device, time)

    def present(self, gpu_uuid: str) -> list[_Present]:
        """Processes on a GPU, in the order of their keys."""
        here = self.assignments.get(gpu_uuid, {})
        return [(at, here[at]) for at in sorted(here) if here[at].ended_ns is None]

    def all_present(self) -> Iterator[_Present]:
        """Processes on any GPU."""
        for here in self.assignments.values():
            for at, assignment in here.items():
                if assignment.ended_ns is None:
                    yield at, assignment

    def energy_errors_mj(self) -> dict[str, int]:
        """Energy attributed on each GPU minus the energy posted to its accounts; anything but 0 is a bug."""
        posted = self.processes.posted_mj(), self.workloads.posted_mj()
        return {
            uuid: max((gpu.attributed_mj - by_gpu.get(uuid, 0) for by_gpu in posted), key=abs)
            for uuid, gpu in self.gpus.items()
        }

    # -- departures -----------------------------------------------------------------

    def end(self, at: ProcessOnDevice, now_ns: int) -> None:
        """A process has left this device."""
        here = self.assignments.get(at.device.gpu_uuid, {})
        assignment = here.get(at)
        if assignment is None or assignment.ended_ns is not None:
            return
        if assignment.process.key in self.processes.overflow:
            del here[at]
        else:
            assignment.ended_ns = assignment.process.ended_ns = now_ns

    def close_cycle(self, time: LedgerTime, devices: Collection[DeviceKey]) -> None:
        """End accounts without a process or grant, and drop those that ended longer ago than the retention.

        ``devices`` are the devices of this cycle. The account of a process whose pid was reused is dropped at once.
        """
        present = list(self.all_present())
        self._end_unused(present, time.now_ns)
        reused = {(at.process.pid, at.device): at.process for at, _ in present}
        for key in sorted(key for key, each in self.processes.by_key.items() if each.ended_ns is not None):
            process, device = key.subject
            if reused.get((process.pid, device), process) != process:
                self.processes.drop(key, time)
        self.processes.sweep(time, devices)
        self.workloads.sweep(time, devices)
        self.assignments = {
            uuid: kept
            for uuid, here in self.assignments.items()
            if (kept := {at: each for at, each in here.items() if not each.is_dropped})
        }
        used = {key.subject.device for key in self.workloads.by_key}
        for uuid, gpu in self.gpus.items():
            gpu.profiles = {mig: name for mig, name in gpu.profiles.items() if DeviceKey(uuid, mig) in used}
        self.namings.keep((account.ref, key.naming) for key, account in self.workloads.by_key.items())

    def _end_unused(self, present: Collection[_Present], now_ns: int) -> None:
        """End accounts without a process or grant; time of theirs that is still undecided is posted as unknown."""
        used: set[AnyAccount] = set(self._granted)
        self._granted = set()
        for _, assignment in present:
            used.add(assignment.process)
            used.add(assignment.workload)
        self._overflowed = self._workloads_in_overflow(present)
        accounts: list[AnyAccount] = [*self.processes.by_key.values(), *self.workloads.by_key.values()]
        for account in accounts:
            if account not in used:
                if account.ended_ns is None:
                    account.ended_ns = now_ns
                account.close_activity()

    def _workloads_in_overflow(self, present: Collection[_Present]) -> set[WorkloadOnDevice]:
        full = self.workloads.overflow
        return {workload_on(assignment.ref, at.device) for at, assignment in present if assignment.workload.key in full}

    # -- checkpoint -----------------------------------------------------------------

    def restore(
        self,
        *,
        epoch_ns: int,
        gpus: dict[str, GpuAccount],
        namings: Namings,
        assignments: dict[ProcessOnDevice, Assignment],
    ) -> None:
        """Take over the ledger of an earlier run, its accounts restored before."""
        self.epoch_ns, self.namings = epoch_ns, namings
        self.gpus = defaultdict(GpuAccount, gpus)
        self.assignments = {}
        for at, assignment in assignments.items():
            self.assignments.setdefault(at.device.gpu_uuid, {})[at] = assignment
        self._overflowed = self._workloads_in_overflow(list(self.all_present()))
