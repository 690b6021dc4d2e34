"""The rules together: feed it a Snapshot a cycle, it says who used what, and keeps the books."""

from __future__ import annotations

from collections.abc import Iterable

from otel_gpu.attribution.compose import GpuView, compose
from otel_gpu.attribution.idle import Booked, IdleState, IdleStep
from otel_gpu.attribution.ledger import Entry, Ledger
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.attribution.places import Place, ProcessAt, WorkloadAt, workload_at
from otel_gpu.attribution.presence import Resident
from otel_gpu.attribution.tracker import Cycle, GpuCycle, GpuTracker
from otel_gpu.model import (
    START_UNKNOWN,
    UNIDENTIFIED_WORKLOAD,
    AccountingRecord,
    Attribution,
    GpuHealth,
    GpuReading,
    ProcessKey,
    Snapshot,
    WorkloadNames,
)


class Attributor:
    """Turns snapshots, one after the other, into attributions. Pure: what it knows of time is in the snapshots."""

    def __init__(self, options: AttributionOptions | None = None) -> None:
        self._options = options or AttributionOptions()
        self._ledger: Ledger | None = None
        self._trackers: dict[str, GpuTracker] = {}
        self._idle: dict[ProcessAt, IdleState] = {}
        self._workload_idle: dict[WorkloadAt, IdleState] = {}
        self._names: dict[str, WorkloadNames] = {}
        self._previous_ns: int | None = None
        self._anomalies = 0

    @property
    def watched_pids(self) -> frozenset[int]:
        """Processes that were on a GPU and may have ended: /proc has to say."""
        if self._ledger is None:
            return frozenset()
        return frozenset(at.key.pid for at, entry in self._ledger.processes.items() if entry.ended_ns is None)

    def observe(self, snapshot: Snapshot) -> Attribution:
        """Take in a cycle."""
        if self._ledger is None:
            self._ledger = Ledger(
                snapshot.wall_ns,
                retention_ns=round(self._options.retention_s * 1e9),
                max_processes=self._options.max_processes,
                max_workloads=self._options.max_workloads,
            )
        before_ns = self._previous_ns
        window_us = 0 if before_ns is None else max(0, snapshot.monotonic_ns - before_ns) // 1000
        self._previous_ns = snapshot.monotonic_ns if before_ns is None else max(before_ns, snapshot.monotonic_ns)
        cycle = Cycle(snapshot.wall_ns / 1e9, snapshot.monotonic_ns / 1e9, window_us, snapshot.pids_complete)
        views = tuple(self._gpu(self._ledger, reading, snapshot, cycle) for reading in snapshot.gpus)
        self._end_departed(self._ledger, snapshot, views)
        self._ledger.sweep(snapshot.monotonic_ns)
        self._idle = {at: state for at, state in self._idle.items() if at in self._ledger.processes}
        self._workload_idle = {at: state for at, state in self._workload_idle.items() if at in self._ledger.workloads}
        self._keep_names(self._ledger, snapshot)
        window_s = window_us / 1e6 if window_us else None
        return compose(
            snapshot, views, self._ledger, self._options, self._names, window_s=window_s, anomalies=self._anomalies
        )

    def _keep_names(self, ledger: Ledger, snapshot: Snapshot) -> None:
        """What ended keeps its name for as long as it is shown: whoever ran it no longer tells."""
        shown = {at.id for at in ledger.workloads}
        known = {**self._names, **snapshot.names}
        self._names = {workload_id: names for workload_id, names in known.items() if workload_id in shown}

    # -- one GPU --------------------------------------------------------------------

    def _gpu(self, ledger: Ledger, reading: GpuReading, snapshot: Snapshot, cycle: Cycle) -> GpuView:
        tracker = self._trackers.setdefault(reading.identity.uuid, GpuTracker(self._options))
        if reading.health is GpuHealth.FAILED:
            tracker.gap(cycle)
            return GpuView(reading, None, {}, {}, tracker.meter.source)
        result = tracker.observe(reading, snapshot.processes, cycle)
        self._anomalies += result.anomalies
        now_ns = snapshot.monotonic_ns
        for resident in result.residents.values():
            ledger.admit(
                resident.at, resident.ref, now_ns=now_ns, name=resident.name, start_time_s=resident.start_time_s
            )
        self._book_work(ledger, reading.identity.uuid, result)
        self._book_short_lived(ledger, reading, now_ns)
        self._book_energy(ledger, reading.identity.uuid, result)
        steps = self._book_time(ledger, result, cycle)
        workload_steps = self._book_workload_time(ledger, result, cycle)
        return GpuView(reading, result, steps, workload_steps, tracker.meter.source)

    def _book_work(self, ledger: Ledger, uuid: str, result: GpuCycle) -> None:
        if result.compute is None:
            return
        at_of = {at.key.pid: at for at in result.residents}
        for pid, work in result.compute.work.items():
            at = at_of.get(pid) or _last_known(ledger, pid, uuid)
            for entry in (ledger.entries(at) if at is not None else None) or ():
                entry.sums.compute_us += work.sm_us

    def _book_short_lived(self, ledger: Ledger, reading: GpuReading, now_ns: int) -> None:
        """Processes that came and went between two cycles, as far as the driver kept their books.

        /proc never showed them, so nobody knows whose they were; their work is booked, under that name.
        """
        place = Place(reading.identity.uuid, "")
        known = {at.key.pid for at in ledger.processes if at.place.gpu_uuid == place.gpu_uuid}
        for record in reading.accounting or ():
            if record.pid in known:
                continue
            at = ProcessAt(ProcessKey(record.pid, START_UNKNOWN), place)
            started_s = record.start_time_us / 1e6
            entries = ledger.admit(at, UNIDENTIFIED_WORKLOAD, now_ns=now_ns, name=None, start_time_s=started_s)
            for entry in entries:
                entry.sums.compute_us += _accounted_us(record)
            ledger.end(at, now_ns)

    def _book_energy(self, ledger: Ledger, uuid: str, result: GpuCycle) -> None:
        division = result.division
        if division is None:
            return
        device = ledger.device(uuid)
        device.idle_mj += division.idle_mj
        device.unattributed_mj += division.unattributed_mj
        for at, energy_mj in division.parts.items():
            entries = ledger.entries(at)
            if entries is None:
                device.unattributed_mj += energy_mj
                continue
            device.attributed_mj += energy_mj
            for entry in entries:
                entry.sums.add_energy(division.methods[at], energy_mj)

    # -- time -----------------------------------------------------------------------

    def _book_time(self, ledger: Ledger, result: GpuCycle, cycle: Cycle) -> dict[ProcessAt, IdleStep]:
        steps = {}
        for at, resident in result.residents.items():
            entries = ledger.entries(at)
            if entries is None:
                continue
            steps[at] = self._idle.setdefault(at, IdleState()).observe(
                window_us=cycle.window_us,
                worked=_worked([at], result),
                others_worked=_others_worked([at], result),
                held_bytes=_held(resident, result),
                energy_mj=_energy_of([at], result),
            )
            _book(entries[0], steps[at].booked)
        return steps

    def _book_workload_time(self, ledger: Ledger, result: GpuCycle, cycle: Cycle) -> dict[WorkloadAt, IdleStep]:
        """A workload works if any of its processes does; its time is its own, not the sum of theirs."""
        members: dict[WorkloadAt, list[ProcessAt]] = {}
        entry_of: dict[WorkloadAt, Entry] = {}
        for at in result.residents:
            entries = ledger.entries(at)
            if entries is not None:
                workload = workload_at(entries[1].ref, at.place)
                members.setdefault(workload, []).append(at)
                entry_of[workload] = entries[1]
        steps = {}
        for workload, ats in sorted(members.items()):
            held = [_held(result.residents[at], result) for at in ats]
            steps[workload] = self._workload_idle.setdefault(workload, IdleState()).observe(
                window_us=cycle.window_us,
                worked=_worked(ats, result),
                others_worked=_others_worked(ats, result),
                held_bytes=None if all(part is None for part in held) else sum(part or 0 for part in held),
                energy_mj=_energy_of(ats, result),
            )
            _book(entry_of[workload], steps[workload].booked)
        return steps

    # -- going ----------------------------------------------------------------------

    def _end_departed(self, ledger: Ledger, snapshot: Snapshot, views: Iterable[GpuView]) -> None:
        """A process missing from one cycle has not ended; one gone from /proc, or missing for longer, has."""
        here: set[ProcessAt] = set()
        looked_at: set[str] = set()
        for view in views:
            if view.cycle is not None:
                looked_at.add(view.reading.identity.uuid)
                here.update(view.cycle.residents)
        now_ns = snapshot.monotonic_ns
        gone = {
            at
            for at, entry in ledger.processes.items()
            if entry.ended_ns is None and at not in here and not _alive(at, snapshot) and at.place.gpu_uuid in looked_at
        }
        for at in sorted(gone | set(ledger.overdue(now_ns))):
            entries = ledger.entries(at)
            state = self._idle.pop(at, None)
            if entries is not None and state is not None:
                _book(entries[0], state.close())
            ledger.end(at, now_ns)
            if at.place.gpu_uuid in self._trackers:
                self._trackers[at.place.gpu_uuid].forget(frozenset({at}))
        self._close_workloads(ledger)

    def _close_workloads(self, ledger: Ledger) -> None:
        alive = {workload_at(e.ref, at.place) for at, e in ledger.processes.items() if e.ended_ns is None}
        for at in [at for at in self._workload_idle if at not in alive]:
            state = self._workload_idle.pop(at)
            if at in ledger.workloads:
                _book(ledger.workloads[at], state.close())


def _book(entry: Entry, booked: Iterable[Booked]) -> None:
    for piece in booked:
        entry.sums.add_time(piece.state, piece.time_us, piece.byte_us, piece.energy_mj)


def _worked(ats: Iterable[ProcessAt], result: GpuCycle) -> bool | None:
    """Whether any of these showed work; ``None`` where the driver does not tell."""
    if result.compute is None:
        return None
    seen = [result.compute.worked(at.key.pid) for at in ats]
    return None if any(each is None for each in seen) else any(seen)


def _others_worked(ats: Iterable[ProcessAt], result: GpuCycle) -> bool:
    own = {at.key.pid for at in ats}
    return result.compute is not None and any(pid not in own for pid in result.compute.work)


def _held(resident: Resident, result: GpuCycle) -> int | None:
    """Memory by the driver's figure, or else as inferred; ``None`` where neither tells."""
    if resident.memory_bytes is not None:
        return resident.memory_bytes
    for parts in result.hidden.values():
        if resident.at in parts.inferred:
            return parts.inferred[resident.at].bytes
    return None


def _energy_of(ats: Iterable[ProcessAt], result: GpuCycle) -> int:
    return 0 if result.division is None else sum(result.division.parts.get(at, 0) for at in ats)


def _last_known(ledger: Ledger, pid: int, uuid: str) -> ProcessAt | None:
    """The entry of a pid that is no longer on this GPU, whose last work the driver's rows still tell."""
    known = [at for at in ledger.processes if at.key.pid == pid and at.place.gpu_uuid == uuid]
    return max(known, key=lambda at: at.key.start_ticks, default=None)


def _alive(at: ProcessAt, snapshot: Snapshot) -> bool:
    facts = snapshot.processes.get(at.key.pid)
    return facts is not None and facts.alive and facts.key == at.key


def _accounted_us(record: AccountingRecord) -> int:
    return max(0, record.time_ms) * 10 * min(100, max(0, record.gpu_percent or 0))
