"""The rules together: feed it a Snapshot a cycle, it says who used what, and keeps the books."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import Any, NamedTuple, Self, TypeAlias

from otel_gpu.attribution.bookings import Booking
from otel_gpu.attribution.bookkeeper import Bookkeeper
from otel_gpu.attribution.compose import Composer, GpuView
from otel_gpu.attribution.cycle import Cycle
from otel_gpu.attribution.ledger import Ledger
from otel_gpu.attribution.ledger_state import ledger_state, restore_ledger
from otel_gpu.attribution.lines import Moment
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.attribution.places import Place, ProcessAt, WorkloadAt
from otel_gpu.attribution.plain import whole
from otel_gpu.attribution.presence import Openers, Resident
from otel_gpu.attribution.shown import GpuBooks
from otel_gpu.attribution.tracker import NO_GRANTS, GpuTracker
from otel_gpu.model import GpuIdentity, GpuReading, Report, Snapshot, WorkloadRef

_Here: TypeAlias = Mapping[ProcessAt, Resident]
_Owners: TypeAlias = Mapping[ProcessAt, WorkloadAt]


class _Placed(NamedTuple):
    """Who is on a GPU and how they are booked; what follows is who they are to the rules, and who owns whose memory."""

    now: _Here
    bookings: Sequence[Booking]
    placed: _Here
    owners: _Owners


class Attributor:
    """Turns snapshots, one after the other, into attributions. Pure: what it knows of time is in the snapshots."""

    def __init__(self, options: AttributionOptions | None = None) -> None:
        self._options = options or AttributionOptions()
        self._books: Bookkeeper | None = None
        self._composer: Composer | None = None
        self._trackers: dict[str, GpuTracker] = {}
        self._host = Openers({})
        self._placed_before: dict[str, _Placed] = {}
        self._named: list[object] = []
        self._previous_ns: int | None = None
        self._wall_ns = 0
        self._anomalies = 0

    @property
    def watched_pids(self) -> frozenset[int]:
        """Processes that were on a GPU and may have ended: /proc has to say."""
        return frozenset() if self._books is None else self._books.present_pids

    @property
    def held_workloads(self) -> frozenset[WorkloadRef]:
        """Workloads that are held back until their names are known, those that have left meanwhile included."""
        if self._books is None or not self._books.ledger.namings.anybody_waits:
            return frozenset()
        ledger = self._books.ledger
        return frozenset(e.ref for e in ledger.workloads.entries.values() if ledger.namings.waiting(e.ref))

    @property
    def known_gpus(self) -> tuple[GpuIdentity, ...]:
        """Every GPU in the books, by what names it there."""
        devices = {} if self._books is None else self._books.ledger.devices
        return tuple(
            GpuIdentity(device.index, uuid, device.name) for uuid, device in devices.items() if device.index is not None
        )

    def observe(self, snapshot: Snapshot) -> Report:
        """Take in a cycle."""
        books = self._books
        if books is None:
            books = self._books = Bookkeeper(new_ledger(self._options, snapshot.wall_ns))
        if self._composer is None:
            self._composer = Composer(books.ledger, self._options)
        cycle = self._cycle(snapshot)
        host = self._host = self._host.after(snapshot.processes)
        here = {
            reading.identity.uuid: self._tracker(reading.identity.uuid).presence.observe(reading, host)
            for reading in snapshot.gpus
            if reading.answered
        }
        self._name(books.ledger, here, snapshot)
        views = tuple(self._gpu(books, reading, here.get(reading.identity.uuid), cycle) for reading in snapshot.gpus)
        missing = {*self._trackers, *books.ledger.gpu_uuids} - {gpu.identity.uuid for gpu in snapshot.gpus}
        for uuid in sorted(missing):
            self._silence(books, uuid, cycle)
        books.close(cycle, (place for reading in snapshot.gpus for place in _places(reading)))
        window_s = cycle.window_us / 1e6 if cycle.window_us else None
        return self._composer.compose(snapshot, views, window_s=window_s, anomalies=self._anomalies)

    def _name(self, ledger: Ledger, here: Mapping[str, _Here], snapshot: Snapshot) -> None:
        """Take up the names this cycle tells, before anybody is booked under them: nothing where all is as it was."""
        present = [ledger.present(uuid) for uuid in ledger.gpu_uuids]
        grounds: list[object] = [snapshot.names, snapshot.grants, *present, *here.values()]
        before = self._named
        if ledger.namings.are_settled and len(grounds) == len(before) and all(map(is_, grounds, before)):
            return
        ledger.namings.observe(_refs(ledger, here, snapshot), snapshot.names, pending=snapshot.names_pending)
        self._named = grounds

    def _cycle(self, snapshot: Snapshot) -> Cycle:
        before_ns = self._previous_ns
        now_ns = snapshot.monotonic_ns if before_ns is None else max(before_ns, snapshot.monotonic_ns)
        wall_ns = max(self._wall_ns, snapshot.wall_ns)
        moment = Moment(now_ns, self._wall_ns or wall_ns, wall_ns)
        self._previous_ns, self._wall_ns = now_ns, wall_ns
        return Cycle(
            wall_s=snapshot.wall_ns / 1e9,
            now_s=snapshot.monotonic_ns / 1e9,
            window_us=0 if before_ns is None else (now_ns - before_ns) // 1000,
            complete=snapshot.pids_complete,
            moment=moment,
            processes=snapshot.processes,
            grants=snapshot.grants,
            infers=snapshot.infers,
        )

    def _gpu(self, books: Bookkeeper, reading: GpuReading, now: _Here | None, cycle: Cycle) -> GpuView:
        uuid = reading.identity.uuid
        tracker = self._tracker(uuid)
        device = books.ledger.device(uuid)
        device.name, device.index = reading.identity.name, reading.identity.index
        if reading.mig:
            device.profiles |= {mig.uuid: mig.profile for mig in reading.mig if mig.profile is not None}
        if now is None:
            return GpuView(reading, None, self._silence(books, uuid, cycle), tracker.meter.source)
        now, owners = self._placed(uuid, now, books.ledger.admit_all(now, uuid, cycle.moment))
        visitors = books.visitors(reading, cycle) if reading.accounting else ()
        granted = NO_GRANTS
        if cycle.grants:
            granted = {line.at: cycle.age_s(grant.since_s) for line, grant in books.unused(uuid, cycle).items()}
        result = tracker.observe(reading, now, owners, cycle, granted=granted, visited=bool(visitors))
        self._anomalies += result.anomalies
        told, left = books.book(reading, result, visitors, cycle)
        if left:
            tracker.forget(left)
        return GpuView(reading, result, told, tracker.meter.source)

    def _placed(self, uuid: str, now: _Here, bookings: Sequence[Booking]) -> tuple[_Here, _Owners]:
        """Everybody with the workload that it is booked to, and those of who has no figure of memory.

        The workload is whose it was when the process was first seen, for every rule alike. While the same are booked
        to the same, the answer is the same object.
        """
        known = self._placed_before.get(uuid)
        if known is not None and known.now is now and known.bookings is bookings:
            return known.placed, known.owners
        owners, moved = {}, {}
        for (at, resident), booking in zip(now.items(), bookings, strict=True):
            if resident.memory_bytes is None:
                owners[at] = booking.workload.at
            if booking.ref is not resident.ref and booking.ref != resident.ref:
                moved[at] = replace(resident, ref=booking.ref)
        placed = {at: moved.get(at, resident) for at, resident in now.items()} if moved else now
        self._placed_before[uuid] = _Placed(now, bookings, placed, owners)
        return placed, owners

    def _tracker(self, uuid: str) -> GpuTracker:
        tracker = self._trackers.get(uuid)
        if tracker is None:
            tracker = self._trackers[uuid] = GpuTracker(self._options)
        return tracker

    def _silence(self, books: Bookkeeper, uuid: str, cycle: Cycle) -> GpuBooks:
        """A GPU that did not answer, or was not there to be asked."""
        if uuid in self._trackers:
            self._trackers[uuid].gap(cycle.window_us, gone=lambda at: books.ledger.booking(at) is None)
        return books.book_silence(uuid, cycle)

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Everything remembered, as plain data; empty before the first cycle."""
        if self._books is None:
            return {}
        return {
            "ledger": ledger_state(self._books.ledger, now_ns=self._previous_ns or 0),
            "books": self._books.to_state(),
            "gpus": {uuid: tracker.to_state() for uuid, tracker in sorted(self._trackers.items())},
            "anomalies": self._anomalies,
            "wall_ns": self._wall_ns,
            "at_ns": self._previous_ns,
        }

    @classmethod
    def from_state(cls, options: AttributionOptions, data: Any, *, now_ns: int, same_boot: bool) -> Self:
        """Go on where an earlier run ended; ValueError if this is not what ``to_state`` gave.

        ``now_ns`` is monotonic. After a reboot (``same_boot`` false) counters have started anew and everybody has left.
        """
        restored = cls(options)
        if data == {}:
            return restored
        try:
            ledger = new_ledger(options, 0)
            restore_ledger(ledger, data["ledger"], now_ns=now_ns)
            books = Bookkeeper.from_state(ledger, data["books"])
            restored._trackers = {
                str(uuid): GpuTracker.from_state(options, state, same_boot=same_boot)
                for uuid, state in data["gpus"].items()
            }
            restored._anomalies, restored._wall_ns = whole(data["anomalies"]), whole(data["wall_ns"])
            away_us = (now_ns - whole(data["at_ns"])) // 1000 if same_boot else 0
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError("this is no saved state") from error
        if away_us > 0:
            for tracker in restored._trackers.values():
                tracker.be_away(away_us)
        restored._books = books
        restored._previous_ns = now_ns
        return restored


def new_ledger(options: AttributionOptions, epoch_ns: int) -> Ledger:
    """Empty books."""
    return Ledger(
        epoch_ns,
        retention_ns=round(options.retention_s * 1e9),
        max_processes=options.max_processes,
        max_workloads=options.max_workloads,
    )


def _refs(ledger: Ledger, here: Mapping[str, _Here], snapshot: Snapshot) -> list[WorkloadRef]:
    """Every workload that is on a GPU, by the books or by what is told now, or was given one."""
    refs = [grant.workload for grant in snapshot.grants if not grant.possible]
    refs += [booking.ref for uuid in ledger.gpu_uuids for _, booking in ledger.present(uuid)]
    for uuid, residents_of in here.items():
        if [at for at, _ in ledger.present(uuid)] != list(residents_of):  # somebody is new, or missing
            for at, resident in residents_of.items():
                booking = ledger.booking(at)
                refs.append(resident.ref if booking is None else booking.ref)
    return refs


def _places(reading: GpuReading) -> set[Place]:
    uuid = reading.identity.uuid
    return {Place(uuid, ""), *(Place(uuid, mig.uuid) for mig in reading.mig or ())}
