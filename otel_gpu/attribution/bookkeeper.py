"""Books what a cycle showed of each GPU: work, energy, time, and who has left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import is_
from types import MappingProxyType
from typing import Any, Final, Self

from otel_gpu.attribution.bookings import Present
from otel_gpu.attribution.cost import equal_parts, places_us
from otel_gpu.attribution.cycle import Cycle
from otel_gpu.attribution.cycle_shown import GpuCycle
from otel_gpu.attribution.energy import Division
from otel_gpu.attribution.idle import Booked, IdleState, workload_state
from otel_gpu.attribution.ledger import GRACE_NS, Ledger
from otel_gpu.attribution.lines import Entry, Lines, LineT
from otel_gpu.attribution.places import Line, Place, ProcessAt, WorkloadLine
from otel_gpu.attribution.plain import process_line_from, workload_line_from
from otel_gpu.attribution.presence import Resident
from otel_gpu.attribution.short_lived import Life, ShortLived
from otel_gpu.attribution.shown import GpuBooks, Payers, Shown, payers_of, sum_known
from otel_gpu.attribution.work_rows import WorkRows
from otel_gpu.model import START_UNKNOWN, UNIDENTIFIED_WORKLOAD, GpuReading, GpuState, Grant, ProcessKey

_NOBODY: Final[Mapping[ProcessAt, Resident]] = MappingProxyType({})
_NO_INSTANCES: Final[Mapping[str, int]] = MappingProxyType({})


class Bookkeeper:
    """The ledger, and what is needed to keep it from cycle to cycle."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._gpus: dict[str, GpuBooks] = {}
        self._short_lived = ShortLived()
        self._all_used: dict[str, tuple[tuple[Grant, ...], Present]] = {}
        self._present: list[Present] = []
        self._present_pids: frozenset[int] = frozenset()

    @property
    def present_pids(self) -> frozenset[int]:
        """Everybody who is on a GPU as far as the books know."""
        present = [self.ledger.present(uuid) for uuid in self.ledger.gpu_uuids]
        if len(present) != len(self._present) or not all(map(is_, present, self._present)):
            self._present_pids = frozenset([at.key.pid for here in present for at, _ in here])
            self._present = present
        return self._present_pids

    def visitors(self, reading: GpuReading, cycle: Cycle) -> list[Life]:
        """Who came and went since the last cycle, as far as the driver kept their books."""
        uuid = reading.identity.uuid
        here = {at.key.pid for at, _ in self.ledger.present(uuid)}
        epoch_us, now_us = self.ledger.epoch_ns // 1000, cycle.moment.wall_ns // 1000
        return self._short_lived.new(uuid, reading.accounting or (), here, epoch_us=epoch_us, now_us=now_us)

    def unused(self, uuid: str, cycle: Cycle) -> dict[WorkloadLine, Grant]:
        """Lines of workloads that were given this GPU and have nobody there."""
        if not cycle.grants:
            return {}
        there, known = self.ledger.present(uuid), self._all_used.get(uuid)
        if known is not None and known[0] is cycle.grants and known[1] is there:
            return {}
        present = {(b.ref.key, at.place) for at, b in there}
        unused = {
            self.ledger.grant(grant, cycle.moment): grant
            for grant in cycle.granted(uuid)
            if (grant.workload.key, Place(uuid, grant.mig_uuid)) not in present
        }
        if not unused:
            self._all_used[uuid] = cycle.grants, there
        return unused

    def book(
        self, reading: GpuReading, result: GpuCycle, visitors: Sequence[Life], cycle: Cycle
    ) -> tuple[GpuBooks, frozenset[ProcessAt]]:
        """Book what a GPU showed; also who has left it."""
        uuid = reading.identity.uuid
        books = self._of(uuid)
        sm_counts = {mig.uuid: mig.sm_count or 1 for mig in reading.mig} if reading.mig else _NO_INSTANCES
        books.begin()
        self._book_work(uuid, result, cycle)
        self._book_visitors(uuid, visitors, cycle)
        self._book_energy(uuid, books, result, cycle)
        left = self._end_departed(uuid, result, cycle)
        self._book_time(uuid, books, result, sm_counts, cycle)
        return books, left

    def book_silence(self, uuid: str, cycle: Cycle) -> GpuBooks:
        """Book a cycle in which a GPU told nothing: whoever runs is still there for all anybody knows."""
        books = self._of(uuid)
        books.begin()
        self._end_departed(uuid, None, cycle)
        self._book_time(uuid, books, None, _NO_INSTANCES, cycle)
        return books

    def _of(self, uuid: str) -> GpuBooks:
        books = self._gpus.get(uuid)
        if books is None:
            books = self._gpus[uuid] = GpuBooks()
        return books

    def close(self, cycle: Cycle, places: Iterable[Place]) -> None:
        """End the cycle: lines that nobody is left of end, and what ended long ago is forgotten."""
        if self.ledger.is_still:
            return
        self.ledger.settle(cycle.moment.now_ns)
        for entry in (*self.ledger.processes.entries.values(), *self.ledger.workloads.entries.values()):
            if entry.ended_ns is not None and entry.idle is not None:
                _close(entry)
        # Only overflow depends on its place, and mostly there is none.
        overflows = self.ledger.processes.overflow or self.ledger.workloads.overflow
        self.ledger.sweep(cycle.moment, frozenset(places) if overflows else frozenset())

    # -- work and energy ------------------------------------------------------------

    def _book_work(self, uuid: str, result: GpuCycle, cycle: Cycle) -> None:
        if result.compute is None or not result.compute.work:
            return
        at_of = {at.key.pid: at for at in result.residents}
        if not result.compute.work.keys() <= at_of.keys():
            at_of = self._last_known(uuid) | at_of
        for pid, work in result.compute.work.items():
            if pid in at_of:
                for entry in self.ledger.entries(at_of[pid], cycle.moment):
                    entry.sums.compute_us += work.sm_us

    def _last_known(self, uuid: str) -> dict[int, ProcessAt]:
        """Who had a pid that is no longer on this GPU: the driver's rows still tell its last work.

        Not those that /proc never showed: what accounting told of them was their whole life.
        """
        known = sorted(at for at, _ in self.ledger.bookings(uuid) if at.key.start_ticks != START_UNKNOWN)
        return {at.key.pid: at for at in known}

    def _book_visitors(self, uuid: str, visitors: Iterable[Life], cycle: Cycle) -> None:
        """/proc never showed them, so nobody knows whose they were; their work is booked, under that name."""
        for life in visitors:
            at = ProcessAt(ProcessKey(life.pid, START_UNKNOWN), Place(uuid, ""))
            who = Resident(at, UNIDENTIFIED_WORKLOAD, None, life.start_time_us / 1e6, listed=True, memory_bytes=None)
            self.ledger.admit(who, cycle.moment)
            for entry in self.ledger.entries(at, cycle.moment):
                entry.sums.compute_us += life.compute_us
            self._end(at, cycle)

    def _book_energy(self, uuid: str, books: GpuBooks, result: GpuCycle, cycle: Cycle) -> None:
        division = result.division
        if division is None:
            return
        self._book_device(uuid, division)
        now_ns = cycle.moment.now_ns
        if division.method is not None and books.has_seats(self.ledger.present(uuid), division.ats):
            books.draw(division.method, division.parts_mj, now_ns)
            return
        for at, energy_mj in zip(division.ats, division.parts_mj, strict=True):
            method = division.methods[at]
            for entry in self.ledger.entries(at, cycle.moment):
                books.of(entry).draw(method, energy_mj, now_ns)

    def _book_device(self, uuid: str, division: Division) -> None:
        device = self.ledger.device(uuid)
        device.attributed_mj += division.attributed_mj
        device.idle_mj += division.idle_mj
        device.unattributed_mj += division.unattributed_mj

    # -- time -----------------------------------------------------------------------

    def _book_time(
        self, uuid: str, books: GpuBooks, result: GpuCycle | None, sm_counts: Mapping[str, int], cycle: Cycle
    ) -> None:
        """A line works if anybody of it does; a workload's time is its own, not the sum of its processes'.

        Who is missing from the lists, or on a GPU that does not answer, may do anything: that is unknown.
        """
        books.seat(self.ledger.present(uuid), _NOBODY if result is None else result.residents)
        unused = self._unused(books, uuid, cycle)
        # Who pays for a GPU's time together with others whom nobody sees, and how many they are, cannot be told.
        if cycle.infers or not (result is None or result.crowded):
            _bill(books, unused, sm_counts, cycle)
        for shown in unused:
            self._book_allocated(shown, cycle)
        held = books.memory_bytes
        infers = result is not None and result.infers
        if result is not None and infers:
            held = [result.held_bytes(at) for at in books.there]
        rows = WorkRows(result)
        everybody = rows.of_everybody() if books.is_complete else None
        for shown in books.seated:
            entry = shown.entry
            idle, window_us = entry.idle, cycle.window_us
            if idle is None:
                window_us = _window_us(entry, cycle)
                idle = entry.idle = IdleState()
            shown.held_bytes = sum_known([held[number] for number in shown.members]) if infers else shown.memory_bytes
            worked, others_worked = everybody or rows.of(shown)
            shown.state, shown.idle_s, booked = idle.observe(
                window_us=window_us,
                worked=worked,
                others_worked=others_worked,
                held_bytes=shown.held_bytes,
                energy_mj=shown.energy_mj,
                billed_us=shown.billed_us,
            )
            for piece in booked:
                entry.sums.add_time(piece)
        for shown in books.shown.values():
            if not shown.is_seated:  # who left: nobody knows what it did at the end
                shown.entry.sums.unknown_mj += shown.energy_mj
        if result is not None:
            _judge_workloads(books, held)

    def _unused(self, books: GpuBooks, uuid: str, cycle: Cycle) -> list[Shown]:
        """Lines of workloads that were given this GPU and have nobody there, not even in the overflow they share."""
        given = [books.of(self.ledger.workloads.entries[line]) for line in self.unused(uuid, cycle)]
        return [shown for shown in given if not shown.is_seated]

    def _book_allocated(self, shown: Shown, cycle: Cycle) -> None:
        """A workload that was given the GPU and has no process there is neither busy nor idle: it has it allocated."""
        entry = shown.entry
        if entry.idle is not None:
            _close(entry)
        entry.sums.add_time(Booked(GpuState.ALLOCATED, _window_us(entry, cycle), 0, 0, shown.billed_us))
        shown.state, shown.idle_s = GpuState.ALLOCATED, None

    # -- going ----------------------------------------------------------------------

    def _end_departed(self, uuid: str, result: GpuCycle | None, cycle: Cycle) -> frozenset[ProcessAt]:
        """A process missing from one cycle has not ended; one gone from /proc, or missing for longer, has.

        Where the lists were not told, whoever runs is still there for all anybody knows.
        """
        present = self.ledger.present(uuid)
        if result is not None and len(present) == len(result.residents):  # who is in the lists is in the books as well
            return frozenset()
        told = result is not None and result.lists_told
        taken = {(at.key.pid, at.place) for at in result.residents} if result is not None else set()
        left = set()
        for at, booking in present:
            if result is not None and at in result.residents:
                continue
            alive = cycle.alive(at)
            if alive and not told:
                self.ledger.see(uuid, booking, cycle.moment.now_ns)
            gone = (told and not alive) or (at.key.pid, at.place) in taken
            if gone or cycle.moment.now_ns - booking.seen.at_ns > GRACE_NS:
                self._end(at, cycle)
                left.add(at)
        return frozenset(left)

    def _end(self, at: ProcessAt, cycle: Cycle) -> None:
        self.ledger.end(at, cycle.moment.now_ns)
        self._short_lived.ended(at, cycle)

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """What is needed beside the ledger, as plain data."""
        return {
            "processes": _idle_states(self.ledger.processes),
            "workloads": _idle_states(self.ledger.workloads),
            "short_lived": self._short_lived.to_state(),
        }

    @classmethod
    def from_state(cls, ledger: Ledger, data: Any) -> Self:
        """The counterpart of ``to_state``; ValueError if it is not what that gave."""
        restored = cls(ledger)
        try:
            states: list[tuple[Line, IdleState]] = [
                *((process_line_from(line), IdleState.from_state(state)) for line, state in data["processes"]),
                *((workload_line_from(line), IdleState.from_state(state)) for line, state in data["workloads"]),
            ]
            restored._short_lived = ShortLived.from_state(data["short_lived"])
        except (KeyError, TypeError) as error:
            raise ValueError("not a state of the books") from error
        for line, state in states:
            if not ledger.has(line):
                raise ValueError("books: a state without a line")
            ledger.entry(line).idle = state
        return restored


def _idle_states(lines: Lines[LineT]) -> list[list[Any]]:
    return sorted([line, entry.idle.to_state()] for line, entry in lines.entries.items() if entry.idle is not None)


def _window_us(entry: Entry, cycle: Cycle) -> int:
    """The window, or the part of it since a line began that is new in it."""
    if entry.idle is not None or entry.since_ns <= cycle.moment.window_start_ns:
        return cycle.window_us
    return min(cycle.window_us, max(0, cycle.moment.wall_ns - entry.since_ns) // 1000)


def _close(entry: Entry) -> None:
    """Nobody of a line is left: what was undecided of it is booked."""
    if entry.idle is not None:
        for piece in entry.idle.close():
            entry.sums.add_time(piece)
        entry.idle = None


def _bill(books: GpuBooks, unused: Sequence[Shown], sm_counts: Mapping[str, int], cycle: Cycle) -> None:
    payers = payers_of([*books.workloads, *unused]) if unused else books.payers
    lines = payers[0][1] if len(payers) == 1 else [shown for _, group in payers for shown in group]
    for shown, billed_us in zip(lines, _billed_us(payers, sm_counts, cycle.window_us), strict=True):
        shown.billed_us = billed_us


def _billed_us(payers: Payers, sm_counts: Mapping[str, int], window_us: int) -> list[int]:
    """What each of them is to pay for, in their order."""
    if len(payers) == 1 and not sm_counts:  # mostly a GPU is one place, and all of it is paid for
        return equal_parts(window_us, len(payers[0][1]))
    parts_us = places_us(window_us, [place for place, _ in payers], sm_counts)
    shares = (equal_parts(part_us, len(lines)) for (_, lines), part_us in zip(payers, parts_us, strict=True))
    return [billed_us for share in shares for billed_us in share]


def _judge_workloads(books: GpuBooks, held: Sequence[int | None]) -> None:
    """A workload is busy if any of its processes is, idle if all that hold memory are."""
    for shown in books.workloads:
        states = [
            process.state
            for process, number in shown.staff
            if process.state is not None and (number is None or held[number] != 0)
        ]
        if not states or shown.state is None:
            continue
        state = states[0] if len(states) == 1 else workload_state(states)
        if state is not shown.state:
            shown.state = state
            shown.idle_s = 0.0 if state is GpuState.BUSY else None
