"""What everybody has used so far. Totals never fall, and what left is kept where it belongs: with its workload.

Whoever is on a GPU has a line per place (a GPU, or a MIG instance of it), and so has its workload. A process's line
ends when it does, and is forgotten after the retention; its workload's line keeps what it used, and ends when nobody of
it is left. Who comes when the books are full is booked to one line for all such, for life.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Final, NamedTuple

from otel_gpu.attribution.bookings import Booking, Present, Seen
from otel_gpu.attribution.lines import Entry, Lines, Moment
from otel_gpu.attribution.naming import Namings
from otel_gpu.attribution.places import Line, Place, ProcessAt, ProcessLine, WorkloadAt, WorkloadLine, workload_at
from otel_gpu.attribution.presence import Resident
from otel_gpu.model import OVERFLOW_PROCESS, OVERFLOW_WORKLOAD, Grant, WorkloadRef

GRACE_NS: Final = 30_000_000_000
"""A process missing from the driver's lists for this long has left, even if it still runs."""


@dataclass(slots=True)
class DeviceSums:
    """Where a GPU's energy went: the three sum to all it used since the ledger began.

    Beside that what names it, and its MIG instances: who is told of there keeps it while the GPU does not answer.
    """

    name: str = ""
    index: int | None = None
    profiles: dict[str, str] = field(default_factory=dict)
    attributed_mj: int = 0
    idle_mj: int = 0
    unattributed_mj: int = 0


class _Admitted(NamedTuple):
    """Where those on a GPU are booked who are as in the cycle before; nobody of them was renamed up to ``named_at``.

    ``together`` is when all of them were last seen, ``None`` where any of them has been seen apart since.
    """

    present: Present
    residents: Mapping[ProcessAt, Resident]
    bookings: Sequence[Booking]
    named_at: int
    together: Seen | None


class _Still(NamedTuple):
    """Books in which nothing is left to be ended or forgotten while the lines and those who are there are these."""

    changes: tuple[int, int]
    present: list[Present]


class Ledger:
    """Totals per (process, place) and (workload, place), bounded whatever comes and goes."""

    def __init__(
        self, epoch_ns: int, *, retention_ns: int, max_processes: int = 2000, max_workloads: int = 2000
    ) -> None:
        self.epoch_ns = epoch_ns
        self.processes: Lines[ProcessLine] = Lines(max_processes, retention_ns)
        self.workloads: Lines[WorkloadLine] = Lines(max_workloads, retention_ns)
        self.devices: dict[str, DeviceSums] = {}
        self.namings = Namings()
        self.departures = 0
        """How often somebody has left, or a line ended."""
        self._names_kept_at = 0
        self._bookings: dict[str, dict[ProcessAt, Booking]] = {}
        self._present: dict[str, Present] = {}
        self._admitted: dict[str, _Admitted] = {}
        self._swept_at = (0, 0)
        self._anybody_granted = False
        self._still: _Still | None = None
        self._overflowed: set[WorkloadAt] = set()
        self._granted: set[Entry] = set()

    # -- coming ---------------------------------------------------------------------

    def admit(self, resident: Resident, moment: Moment) -> Booking:
        """Where a process is booked, decided when it is new, and marked as seen now."""
        at = resident.at
        uuid = at.place.gpu_uuid
        booking = self.booking(at)
        renamed = booking is not None and self._renamed(booking)
        if renamed:
            self.end(at, moment.now_ns)
        if booking is None or renamed:
            booking = self._open(resident, moment, successor=renamed)
            self._bookings.setdefault(uuid, {})[at] = booking
            self._somebody_else(uuid)
        elif booking.ended_ns is not None:
            self._somebody_else(uuid)
        self.see(uuid, booking, moment.now_ns)
        booking.ended_ns = None
        booking.process_entry.ended_ns = booking.workload_entry.ended_ns = None
        return booking

    def admit_all(self, residents: Mapping[ProcessAt, Resident], gpu_uuid: str, moment: Moment) -> Sequence[Booking]:
        """Where everybody on a GPU is booked, in their order; mostly they are those of the cycle before.

        While they are the same, and booked to the same lines, the answer is the same object. So must ``residents`` be.
        """
        present, admitted = self._present.get(gpu_uuid, ()), self._admitted.get(gpu_uuid)
        if admitted is None or admitted.present is not present:
            admitted = _Admitted(present, {}, [booking for _, booking in present], -1, None)
        if admitted.residents is not residents:
            if len(present) != len(residents) or [at for at, _ in present] != list(residents):
                return [self.admit(resident, moment) for resident in residents.values()]
            admitted = admitted._replace(residents=residents)
        if admitted.named_at != self.namings.changes:
            if any(map(self._renamed, admitted.bookings)):
                return [self.admit(resident, moment) for resident in residents.values()]
            admitted = admitted._replace(named_at=self.namings.changes)
        if admitted.together is not None:  # since then nobody of them has ended: they would not be those present
            admitted.together.at_ns = moment.now_ns
        else:
            together = Seen(moment.now_ns)
            admitted = admitted._replace(together=together)
            for booking in admitted.bookings:
                booking.seen = together
                booking.process_entry.ended_ns = booking.workload_entry.ended_ns = None
        self._admitted[gpu_uuid] = admitted
        return admitted.bookings

    def see(self, gpu_uuid: str, booking: Booking, now_ns: int) -> None:
        """Somebody on a GPU was seen now, whoever else was."""
        booking.seen = Seen(now_ns)
        admitted = self._admitted.get(gpu_uuid)
        if admitted is not None and admitted.together is not None:
            self._admitted[gpu_uuid] = admitted._replace(together=None)

    def grant(self, grant: Grant, moment: Moment) -> WorkloadLine:
        """The line of a workload that was given a place and has nobody there; alive for as long as it is told."""
        start_ns = self.epoch_ns if grant.since_s is None else max(self.epoch_ns, round(grant.since_s * 1e9))
        place = Place(grant.gpu_uuid, grant.mig_uuid)
        line = self._workload_line(grant.workload, place, start_ns, moment, successor=False)
        entry = self.workloads.entries[line]
        entry.ended_ns = None
        self._granted.add(entry)
        return line

    def _renamed(self, booking: Booking) -> bool:
        if booking.workload.naming == self.namings.number(booking.ref):
            return False
        return booking.workload not in self.workloads.overflow

    def _open(self, resident: Resident, moment: Moment, *, successor: bool) -> Booking:
        started_s = resident.start_time_s
        start_ns = self.epoch_ns if started_s is None else max(self.epoch_ns, round(started_s * 1e9))
        workload = self._workload_line(resident.ref, resident.at.place, start_ns, moment, successor=successor)
        workload_entry = self.workloads.entries[workload]
        process = ProcessLine(resident.at, self.namings.number(resident.ref))
        entry = self.processes.entries.get(process)
        if entry is None:
            if self.processes.has_room(moment, successor=successor):
                entry = self.processes.open(process, workload_entry.ref, start_ns, moment)
                entry.name, entry.start_time_s = resident.name, started_s
            else:
                process, entry = self._overflow_process(resident.at.place, moment)
        return Booking(resident.ref, process, workload, entry, workload_entry, Seen(moment.now_ns))

    def _workload_line(
        self, ref: WorkloadRef, place: Place, start_ns: int, moment: Moment, *, successor: bool
    ) -> WorkloadLine:
        line = WorkloadLine(workload_at(ref, place), self.namings.number(ref))
        if line in self.workloads.entries:
            return line
        if line.at not in self._overflowed and self.workloads.has_room(moment, successor=successor):
            self.workloads.open(line, ref, start_ns, moment)
            return line
        self._overflowed.add(line.at)
        overflow, _ = self._overflow_workload(place, moment)
        return overflow

    def _overflow_process(self, place: Place, moment: Moment) -> tuple[ProcessLine, Entry]:
        line = ProcessLine(ProcessAt(OVERFLOW_PROCESS, place))
        return line, self.processes.open_overflow(line, OVERFLOW_WORKLOAD, self.epoch_ns, moment)

    def _overflow_workload(self, place: Place, moment: Moment) -> tuple[WorkloadLine, Entry]:
        line = WorkloadLine(workload_at(OVERFLOW_WORKLOAD, place))
        return line, self.workloads.open_overflow(line, OVERFLOW_WORKLOAD, self.epoch_ns, moment)

    # -- looking up -----------------------------------------------------------------

    def lines(self, at: ProcessAt, moment: Moment) -> tuple[Line, Line]:
        """The lines that a process's use is booked to; overflow for one that is forgotten, so that nothing is lost."""
        booking = self.booking(at)
        if booking is not None:
            return booking.process, booking.workload
        return self._overflow_process(at.place, moment)[0], self._overflow_workload(at.place, moment)[0]

    def entries(self, at: ProcessAt, moment: Moment) -> tuple[Entry, Entry]:
        """The entries of these lines."""
        booking = self.booking(at)
        if booking is not None:
            return booking.process_entry, booking.workload_entry
        return self._overflow_process(at.place, moment)[1], self._overflow_workload(at.place, moment)[1]

    def entry(self, line: Line) -> Entry:
        """The entry of a line."""
        if isinstance(line, ProcessLine):
            return self.processes.entries[line]
        return self.workloads.entries[line]

    def has(self, line: Line) -> bool:
        """Whether there is such a line."""
        return line in self.processes.entries if isinstance(line, ProcessLine) else line in self.workloads.entries

    def booking(self, at: ProcessAt) -> Booking | None:
        """Where a process is booked, if it is known; not if one of its lines had to make room since it left."""
        booking = self._bookings.get(at.place.gpu_uuid, {}).get(at)
        return booking if booking is not None and self._has_lines(booking) else None

    def _has_lines(self, booking: Booking) -> bool:
        """Whether both of its lines are in the books; one that had to make room may have been opened anew since."""
        if booking.process_entry.forgotten or booking.workload_entry.forgotten:
            process = self.processes.entries.get(booking.process)
            workload = self.workloads.entries.get(booking.workload)
            if process is None or workload is None:
                return False
            booking.process_entry, booking.workload_entry = process, workload
        return True

    def bookings(self, gpu_uuid: str) -> Iterator[tuple[ProcessAt, Booking]]:
        """Everybody known on a GPU: who is there, and who left and has a line of its own."""
        return iter(self._bookings.get(gpu_uuid, {}).items())

    def present(self, gpu_uuid: str) -> Present:
        """Everybody who is on a GPU, in order."""
        present = self._present.get(gpu_uuid)
        if present is None:
            here = self._bookings.get(gpu_uuid, {})
            present = tuple((at, here[at]) for at in sorted(here) if here[at].ended_ns is None)
            self._present[gpu_uuid] = present
        return present

    def _somebody_else(self, gpu_uuid: str) -> None:
        """Others are on a GPU than before."""
        self._present.pop(gpu_uuid, None)
        self._admitted.pop(gpu_uuid, None)

    @property
    def gpu_uuids(self) -> Collection[str]:
        """The GPUs that anybody is known on."""
        return self._bookings.keys()

    def device(self, uuid: str) -> DeviceSums:
        """The sums of a GPU."""
        device = self.devices.get(uuid)
        if device is None:
            device = self.devices[uuid] = DeviceSums()
        return device

    def energy_errors_mj(self) -> dict[str, int]:
        """How far what was booked to anybody misses what each GPU's own sum says; anything but 0 is a bug."""
        booked_mj = self.processes.booked_mj(), self.workloads.booked_mj()
        return {
            uuid: max((device.attributed_mj - booked.get(uuid, 0) for booked in booked_mj), key=abs)
            for uuid, device in self.devices.items()
        }

    def energy_error_mj(self, gpu_uuid: str) -> int:
        """The error of one GPU."""
        return self.energy_errors_mj().get(gpu_uuid, 0)

    # -- going ----------------------------------------------------------------------

    def end(self, at: ProcessAt, now_ns: int) -> None:
        """A process has left this place."""
        here = self._bookings.get(at.place.gpu_uuid, {})
        booking = here.get(at)
        if booking is None or booking.ended_ns is not None:
            return
        self._somebody_else(at.place.gpu_uuid)
        self.departures += 1
        if booking.process in self.processes.overflow:
            del here[at]
        else:
            booking.ended_ns = self.processes.entries[booking.process].ended_ns = now_ns

    @property
    def is_still(self) -> bool:
        """Whether to settle and to sweep would change nothing: they were done when the same were there as are now.

        No line had ended then, none was overflow, and nobody was given what it does not use, then or now.
        """
        still = self._still
        if still is None or self._granted or not self.namings.are_settled or self._any_profiles():
            return False
        present = [self.present(uuid) for uuid in self._bookings]
        same_lines = still.changes == self._changes and len(present) == len(still.present)
        return same_lines and all(map(is_, present, still.present))

    @property
    def _changes(self) -> tuple[int, int]:
        return self.processes.changes, self.workloads.changes

    def _any_profiles(self) -> bool:
        return any(device.profiles for device in self.devices.values())

    def _note_still(self) -> None:
        self._still = None
        if self._anybody_granted or self._any_profiles():
            return
        if not any(lines.overflow or lines.anybody_ended for lines in (self.processes, self.workloads)):
            self._still = _Still(self._changes, [self.present(uuid) for uuid in self._bookings])

    def settle(self, now_ns: int) -> None:
        """End the lines that nobody is left of."""
        alive, self._granted = self._granted, set()
        self._anybody_granted = bool(alive)
        for _, booking in self._everybody_here():
            alive.add(booking.process_entry)
            alive.add(booking.workload_entry)
        self._note_overflowed()
        for entry in (*self.processes.entries.values(), *self.workloads.entries.values()):
            if entry.ended_ns is None and entry not in alive:
                entry.ended_ns = now_ns
                self.departures += 1

    def _everybody_here(self) -> Iterator[tuple[ProcessAt, Booking]]:
        return (item for uuid in self._bookings for item in self.present(uuid))

    def _note_overflowed(self) -> None:
        """Whoever of a workload comes later is booked where those of it are that came when the books were full."""
        overflow = self.workloads.overflow
        self._overflowed = {
            workload_at(booking.ref, at.place)
            for at, booking in (self._everybody_here() if overflow else ())
            if booking.workload in overflow
        }

    def sweep(self, moment: Moment, places: Collection[Place]) -> None:
        """Forget what ended longer ago than the retention, and at once those whose pid somebody else has now."""
        ended = sorted(line for line, entry in self.processes.entries.items() if entry.ended_ns is not None)
        taken = {(at.key.pid, at.place): at.key for at, _ in self._everybody_here()} if ended else {}
        for line in ended:
            key, place = line.at
            if taken.get((key.pid, place), key) != key:
                self.processes.forget(line, moment)
        self.processes.sweep(moment, places)
        self.workloads.sweep(moment, places)
        self._drop_bookings()
        if self._any_profiles():
            used = {line.at.place for line in self.workloads.entries}
            for uuid, device in self.devices.items():
                device.profiles = {mig: name for mig, name in device.profiles.items() if Place(uuid, mig) in used}
        if not self.namings.are_settled or self._names_kept_at != self.workloads.changes:
            self._names_kept_at = self.workloads.changes
            self.namings.keep((entry.ref, line.naming) for line, entry in self.workloads.entries.items())
        self._note_still()

    def _drop_bookings(self) -> None:
        """Forget who was booked to lines that are forgotten, and GPUs that nobody is known on."""
        if self._swept_at != self._changes:
            self._swept_at = self._changes
            for uuid, here in self._bookings.items():
                if gone := [at for at, booking in here.items() if not self._has_lines(booking)]:
                    self._somebody_else(uuid)
                    for at in gone:
                        del here[at]
        self._bookings = {uuid: here for uuid, here in self._bookings.items() if here}

    # -- state ----------------------------------------------------------------------

    def restore(
        self,
        *,
        epoch_ns: int,
        devices: dict[str, DeviceSums],
        namings: Namings,
        bookings: dict[ProcessAt, Booking],
    ) -> None:
        """Take up the books of an earlier run, their lines restored before."""
        self.epoch_ns, self.devices, self.namings = epoch_ns, devices, namings
        self._bookings, self._present, self._admitted = {}, {}, {}
        for at, booking in bookings.items():
            self._bookings.setdefault(at.place.gpu_uuid, {})[at] = booking
        self._note_overflowed()
