"""What everybody has used so far. Totals never fall, and what left is kept where it belongs: with its workload.

Whoever is on a GPU has an entry per place (a GPU, or a MIG instance of it). A process's entry ends when it does, and is
forgotten after the retention; its workload's entry keeps what it used, and is forgotten when nobody of it is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Final

from otel_gpu.attribution.energy import Method
from otel_gpu.attribution.places import Place, ProcessAt, WorkloadAt, workload_at
from otel_gpu.model import GpuState, MethodEnergy, ProcessKey, Totals, WorkloadKind, WorkloadRef

GRACE_NS: Final = 30_000_000_000
"""A process missing from the driver's lists for this long has left, even if it still runs."""

OVERFLOW_WORKLOAD: Final = WorkloadRef(WorkloadKind.HOST, "overflow")
OVERFLOW_PROCESS: Final = ProcessKey(0, 0)


@dataclass(slots=True)
class Sums:
    """Running totals of one entry, in integers."""

    measured_mj: int = 0
    estimated_mj: int = 0
    inferred_mj: int = 0
    compute_us: int = 0
    busy_us: int = 0
    idle_us: int = 0
    allocated_us: int = 0
    unknown_us: int = 0
    idle_byte_us: int = 0
    idle_mj: int = 0

    def add_energy(self, method: Method, energy_mj: int) -> None:
        """Book energy found by this method."""
        match method:
            case Method.MEASURED:
                self.measured_mj += energy_mj
            case Method.ESTIMATED:
                self.estimated_mj += energy_mj
            case Method.INFERRED:
                self.inferred_mj += energy_mj

    def add_time(self, state: GpuState, time_us: int, byte_us: int, energy_mj: int) -> None:
        """Book time spent in a state; memory held and energy drawn count only while idle."""
        match state:
            case GpuState.BUSY:
                self.busy_us += time_us
            case GpuState.ALLOCATED:
                self.allocated_us += time_us
            case GpuState.UNKNOWN:
                self.unknown_us += time_us
            case GpuState.IDLE:
                self.idle_us += time_us
                self.idle_byte_us += byte_us
                self.idle_mj += energy_mj

    def add(self, other: Sums) -> None:
        """Take over all of another's."""
        for each in fields(Sums):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def frozen(self, since_ns: int) -> Totals:
        """The totals as they are now."""
        return Totals(
            since_ns=since_ns,
            energy=MethodEnergy(self.measured_mj, self.estimated_mj, self.inferred_mj),
            compute_us=self.compute_us,
            busy_us=self.busy_us,
            idle_us=self.idle_us,
            allocated_us=self.allocated_us,
            unknown_us=self.unknown_us,
            idle_byte_us=self.idle_byte_us,
            idle_mj=self.idle_mj,
        )


@dataclass(slots=True)
class Entry:
    """One process or workload at one place. Times: ``since_ns`` Unix, the others monotonic."""

    ref: WorkloadRef
    since_ns: int
    seen_ns: int
    name: str | None = None
    start_time_s: float | None = None
    ended_ns: int | None = None
    sums: Sums = field(default_factory=Sums)


@dataclass(slots=True)
class DeviceSums:
    """Where a GPU's energy went: the three sum to all it used since the ledger began."""

    attributed_mj: int = 0
    idle_mj: int = 0
    unattributed_mj: int = 0

    @property
    def total_mj(self) -> int:
        """All energy of the GPU in this ledger."""
        return self.attributed_mj + self.idle_mj + self.unattributed_mj


class Ledger:
    """Totals per (process, place) and (workload, place), bounded whatever comes and goes.

    Beyond the caps newcomers share one overflow entry per place, so that sums of energy and compute time stay exact.
    """

    def __init__(
        self, epoch_ns: int, *, retention_ns: int, max_processes: int = 2000, max_workloads: int = 2000
    ) -> None:
        self.epoch_ns = epoch_ns
        self.processes: dict[ProcessAt, Entry] = {}
        self.workloads: dict[WorkloadAt, Entry] = {}
        self.devices: dict[str, DeviceSums] = {}
        self._retention_ns = retention_ns
        self._max_processes = max_processes
        self._max_workloads = max_workloads
        self._overflowed: dict[ProcessAt, int] = {}

    # -- coming ---------------------------------------------------------------------

    def admit(
        self, at: ProcessAt, ref: WorkloadRef, *, now_ns: int, name: str | None, start_time_s: float | None
    ) -> tuple[Entry, Entry]:
        """The entries of a process and of its workload, made if they are new and marked as seen now."""
        start_ns = self.epoch_ns if start_time_s is None else max(self.epoch_ns, round(start_time_s * 1e9))
        process = self.processes.get(at)
        if process is None and (at in self._overflowed or len(self.processes) >= self._max_processes):
            self._overflowed[at] = now_ns
            at, ref, name, start_time_s = ProcessAt(OVERFLOW_PROCESS, at.place), OVERFLOW_WORKLOAD, None, None
            start_ns, process = self.epoch_ns, self.processes.get(at)
        if process is None:
            process = self.processes[at] = Entry(ref, start_ns, now_ns, name, start_time_s)
        process.seen_ns, process.ended_ns = now_ns, None
        return process, self.admit_workload(process.ref, at.place, now_ns=now_ns, since_ns=start_ns)

    def admit_workload(self, ref: WorkloadRef, place: Place, *, now_ns: int, since_ns: int) -> Entry:
        """The entry of a workload, made if it is new and marked as seen now."""
        at = workload_at(ref, place)
        if at not in self.workloads and len(self.workloads) >= self._max_workloads:
            ref, since_ns = OVERFLOW_WORKLOAD, self.epoch_ns
            at = workload_at(ref, place)
        entry = self.workloads.get(at)
        if entry is None:
            entry = self.workloads[at] = Entry(ref, since_ns, now_ns)
        entry.seen_ns, entry.ended_ns = now_ns, None
        return entry

    def entries(self, at: ProcessAt) -> tuple[Entry, Entry] | None:
        """The entries that a process's use is booked to, if it is known."""
        if at in self._overflowed:
            at = ProcessAt(OVERFLOW_PROCESS, at.place)
        process = self.processes.get(at)
        if process is None:
            return None
        workload = self.workloads.get(workload_at(process.ref, at.place)) or self.workloads.get(
            workload_at(OVERFLOW_WORKLOAD, at.place)
        )
        return None if workload is None else (process, workload)

    def device(self, uuid: str) -> DeviceSums:
        """The sums of a GPU."""
        return self.devices.setdefault(uuid, DeviceSums())

    # -- going ----------------------------------------------------------------------

    def end(self, at: ProcessAt, now_ns: int) -> None:
        """A process has left this place."""
        self._overflowed.pop(at, None)
        entry = self.processes.get(at)
        if entry is not None and entry.ended_ns is None:
            entry.ended_ns = now_ns

    def overdue(self, now_ns: int) -> Iterator[ProcessAt]:
        """Processes nobody has seen for longer than the grace, in order."""
        late = [
            at for at, entry in self.processes.items() if entry.ended_ns is None and now_ns - entry.seen_ns > GRACE_NS
        ]
        late += [at for at, seen_ns in self._overflowed.items() if now_ns - seen_ns > GRACE_NS]
        return iter(sorted(late))

    def sweep(self, now_ns: int) -> None:
        """End workloads that nobody is left of, and forget what ended longer ago than the retention."""
        alive = {workload_at(entry.ref, at.place) for at, entry in self.processes.items() if entry.ended_ns is None}
        for at, entry in self.workloads.items():
            if at not in alive and entry.seen_ns < now_ns and entry.ended_ns is None:
                entry.ended_ns = now_ns
        self.processes = self._kept(self.processes, now_ns)
        self.workloads = self._kept(self.workloads, now_ns)

    def _kept(self, entries: dict[Any, Entry], now_ns: int) -> dict[Any, Entry]:
        return {
            at: entry
            for at, entry in entries.items()
            if entry.ended_ns is None or now_ns - entry.ended_ns <= self._retention_ns
        }

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "epoch_ns": self.epoch_ns,
            "processes": [[*at.key, *at.place, _entry_state(entry)] for at, entry in sorted(self.processes.items())],
            "workloads": [[*at.place, _entry_state(entry)] for at, entry in sorted(self.workloads.items())],
            "devices": {
                uuid: [sums.attributed_mj, sums.idle_mj, sums.unattributed_mj]
                for uuid, sums in sorted(self.devices.items())
            },
        }

    def restore(self, state: dict[str, Any], *, now_ns: int) -> None:
        """Take up the totals of an earlier run. Its monotonic times mean nothing now: everybody counts as just seen."""
        processes: Iterable[Any] = state["processes"]
        self.epoch_ns = int(state["epoch_ns"])
        self.processes = {
            ProcessAt(ProcessKey(pid, start), Place(gpu, mig)): _entry_from(entry, now_ns)
            for pid, start, gpu, mig, entry in processes
        }
        restored = [(Place(gpu, mig), _entry_from(entry, now_ns)) for gpu, mig, entry in state["workloads"]]
        self.workloads = {workload_at(entry.ref, place): entry for place, entry in restored}
        self.devices = {str(uuid): DeviceSums(*map(int, sums)) for uuid, sums in state["devices"].items()}


def _entry_state(entry: Entry) -> dict[str, Any]:
    ref = entry.ref
    return {
        "ref": [ref.kind.value, ref.id, ref.runtime, ref.pod_uid, ref.slurm_step, ref.outer_container_id],
        "since_ns": entry.since_ns,
        "name": entry.name,
        "start_time_s": entry.start_time_s,
        "ended": entry.ended_ns is not None,
        "sums": [getattr(entry.sums, each.name) for each in fields(Sums)],
    }


def _entry_from(state: dict[str, Any], now_ns: int) -> Entry:
    kind, *rest = state["ref"]
    sums = Sums(*map(int, state["sums"]))
    return Entry(
        ref=WorkloadRef(WorkloadKind(kind), *rest),
        since_ns=int(state["since_ns"]),
        seen_ns=now_ns,
        name=state["name"],
        start_time_s=state["start_time_s"],
        ended_ns=now_ns if state["ended"] else None,
        sums=sums,
    )
