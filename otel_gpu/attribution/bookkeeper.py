"""Books what a cycle showed of each GPU: work, energy, time, and who has left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from otel_gpu.attribution.cost import billed_us
from otel_gpu.attribution.cycle import Cycle
from otel_gpu.attribution.idle import Booked, IdleState, IdleStep, workload_state
from otel_gpu.attribution.ledger import GRACE_NS, Ledger
from otel_gpu.attribution.places import Line, Place, ProcessAt, ProcessLine, WorkloadLine
from otel_gpu.attribution.plain import process_line_from, workload_line_from
from otel_gpu.attribution.presence import Resident
from otel_gpu.attribution.short_lived import Life, ShortLived
from otel_gpu.attribution.sums import Sums
from otel_gpu.attribution.tracker import GpuCycle
from otel_gpu.model import START_UNKNOWN, UNIDENTIFIED_WORKLOAD, GpuReading, GpuState, Grant, ProcessKey


@dataclass(slots=True)
class GpuBooks:
    """What a cycle means for the lines of one GPU: who of them is there, their state, their energy of the window."""

    present: dict[Line, list[ProcessAt]] = field(default_factory=dict)
    steps: dict[Line, IdleStep] = field(default_factory=dict)
    energy: dict[Line, Sums] = field(default_factory=dict)


class Bookkeeper:
    """The ledger, and what is needed to keep it from cycle to cycle."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._idle: dict[Line, IdleState] = {}
        self._short_lived = ShortLived()

    @property
    def present_pids(self) -> frozenset[int]:
        """Everybody who is on a GPU as far as the books know."""
        return frozenset(at.key.pid for uuid in self.ledger.gpu_uuids for at, _ in self.ledger.present(uuid))

    def visitors(self, reading: GpuReading, cycle: Cycle) -> list[Life]:
        """Who came and went since the last cycle, as far as the driver kept their books."""
        if not reading.accounting:
            return []
        uuid = reading.identity.uuid
        here = {at.key.pid for at, _ in self.ledger.present(uuid)}
        epoch_us, now_us = self.ledger.epoch_ns // 1000, cycle.moment.wall_ns // 1000
        return self._short_lived.new(uuid, reading.accounting, here, epoch_us=epoch_us, now_us=now_us)

    def unused(self, uuid: str, cycle: Cycle) -> dict[WorkloadLine, Grant]:
        """Lines of workloads that were given this GPU and have nobody there."""
        granted = cycle.granted(uuid)
        if not granted:
            return {}
        present = {(b.ref.key, at.place) for at, b in self.ledger.present(uuid)}
        return {
            self.ledger.grant(grant, cycle.moment): grant
            for grant in granted
            if (grant.workload.key, Place(uuid, grant.mig_uuid)) not in present
        }

    def book(
        self, reading: GpuReading, result: GpuCycle, visitors: Iterable[Life], cycle: Cycle
    ) -> tuple[GpuBooks, frozenset[ProcessAt]]:
        """Book what a GPU showed; also who has left it."""
        uuid = reading.identity.uuid
        self._book_work(uuid, result, cycle)
        self._book_visitors(uuid, visitors, cycle)
        books = GpuBooks(energy=self._book_energy(uuid, result, cycle))
        left = self._end_departed(uuid, result, cycle)
        sm_counts = {mig.uuid: mig.sm_count or 1 for mig in reading.mig or ()}
        self._book_time(uuid, books, result, sm_counts, cycle)
        return books, left

    def book_silence(self, uuid: str, cycle: Cycle) -> GpuBooks:
        """Book a cycle in which a GPU told nothing: whoever runs is still there for all anybody knows."""
        books = GpuBooks()
        self._end_departed(uuid, None, cycle)
        self._book_time(uuid, books, None, {}, cycle)
        return books

    def close(self, cycle: Cycle, places: Iterable[Place]) -> None:
        """End the cycle: lines that nobody is left of end, and what ended long ago is forgotten."""
        self.ledger.settle(cycle.moment.now_ns)
        for line in [line for line in self._idle if self.ledger.entry(line).ended_ns is not None]:
            self._add_time(line, self._idle.pop(line).close())
        self.ledger.sweep(cycle.moment, frozenset(places))

    # -- work and energy ------------------------------------------------------------

    def _book_work(self, uuid: str, result: GpuCycle, cycle: Cycle) -> None:
        if result.compute is None:
            return
        at_of = {at.key.pid: at for at in result.residents}
        if not result.compute.work.keys() <= at_of.keys():
            at_of = self._last_known(uuid) | at_of
        for pid, work in result.compute.work.items():
            if pid in at_of:
                for line in self.ledger.lines(at_of[pid], cycle.moment):
                    self.ledger.entry(line).sums.compute_us += work.sm_us

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
            for line in self.ledger.lines(at, cycle.moment):
                self.ledger.entry(line).sums.compute_us += life.compute_us
            self._end(at, cycle)

    def _book_energy(self, uuid: str, result: GpuCycle, cycle: Cycle) -> dict[Line, Sums]:
        """Energy of this window by line."""
        booked: dict[Line, Sums] = {}
        division = result.division
        if division is None:
            return booked
        device = self.ledger.device(uuid)
        device.idle_mj += division.idle_mj
        device.unattributed_mj += division.unattributed_mj
        for at, energy_mj in sorted(division.parts.items()):
            device.attributed_mj += energy_mj
            for line in self.ledger.lines(at, cycle.moment):
                entry = self.ledger.entry(line)
                entry.sums.add_energy(division.methods[at], energy_mj)
                entry.drew_ns = cycle.moment.now_ns
                booked.setdefault(line, Sums()).add_energy(division.methods[at], energy_mj)
        return booked

    # -- time -----------------------------------------------------------------------

    def _book_time(
        self, uuid: str, books: GpuBooks, result: GpuCycle | None, sm_counts: Mapping[str, int], cycle: Cycle
    ) -> None:
        """A line works if anybody of it does; a workload's time is its own, not the sum of its processes'.

        Who is missing from the lists, or on a GPU that does not answer, may do anything: that is unknown.
        """
        missing: set[Line] = set()
        for at, booking in self.ledger.present(uuid):
            for line in booking.lines:
                members = books.present.setdefault(line, [])
                if result is not None and at in result.residents:
                    members.append(at)
                else:
                    missing.add(line)
        unused = [line for line in self.unused(uuid, cycle) if line not in books.present]
        # Who pays for a GPU's time together with others whom nobody sees, and how many they are, cannot be told.
        shared = not cycle.infers and (result is None or result.crowded)
        billed = {} if shared else self._billed_us(books, unused, sm_counts, cycle)
        self._book_allocated(books, unused, billed, cycle)
        windows_us = {line: self._window_us(line, cycle) for line in books.present}
        for line, ats in books.present.items():
            worked = _worked(ats, result) if result is not None and ats else None
            step = self._idle.setdefault(line, IdleState()).observe(
                window_us=windows_us[line],
                worked=worked or (None if line in missing else worked),
                others_worked=result is not None and (result.crowded or _others_worked(ats, result)),
                held_bytes=_held(ats, result) if result is not None else None,
                energy_mj=books.energy[line].energy_mj if line in books.energy else 0,
                billed_us=billed.get(line, 0),
            )
            self._add_time(line, step.booked)
            books.steps[line] = step
        for line in books.energy.keys() - books.present.keys():  # who left: nobody knows what it did at the end
            self.ledger.entry(line).sums.unknown_mj += books.energy[line].energy_mj
        if result is not None:
            self._judge_workloads(uuid, books, result)

    def _book_allocated(
        self, books: GpuBooks, unused: Iterable[WorkloadLine], billed: Mapping[Line, int], cycle: Cycle
    ) -> None:
        """A workload that was given the GPU and has no process there is neither busy nor idle: it has it allocated."""
        for line in unused:
            if line in self._idle:
                self._add_time(line, self._idle.pop(line).close())
            time_us = self._window_us(line, cycle)
            self._add_time(line, [Booked(GpuState.ALLOCATED, time_us, 0, 0, billed.get(line, 0))])
            books.steps[line] = IdleStep(GpuState.ALLOCATED, None, ())

    def _billed_us(
        self, books: GpuBooks, unused: Iterable[WorkloadLine], sm_counts: Mapping[str, int], cycle: Cycle
    ) -> dict[Line, int]:
        payers: dict[Place, list[WorkloadLine]] = {}
        for line in (*books.present, *unused):
            if isinstance(line, WorkloadLine):
                payers.setdefault(line.at.place, []).append(line)
        return dict(billed_us(cycle.window_us, payers, sm_counts).items())

    def _window_us(self, line: Line, cycle: Cycle) -> int:
        """The window, or the part of it since a line began that is new in it."""
        since_ns = self.ledger.entry(line).since_ns
        if line in self._idle or since_ns <= cycle.moment.window_start_ns:
            return cycle.window_us
        return min(cycle.window_us, max(0, cycle.moment.wall_ns - since_ns) // 1000)

    def _judge_workloads(self, uuid: str, books: GpuBooks, result: GpuCycle) -> None:
        """A workload is busy if any of its processes is, idle if all that hold memory are."""
        states: dict[WorkloadLine, list[GpuState]] = {}
        for at, booking in self.ledger.present(uuid):
            if result.held_bytes(at) != 0:
                states.setdefault(booking.workload, []).append(books.steps[booking.process].state)
        for line, found in states.items():
            step, state = books.steps[line], workload_state(found)
            if state is not step.state:
                idle_s = 0.0 if state is GpuState.BUSY else None
                books.steps[line] = step._replace(state=state, idle_s=idle_s)

    def _add_time(self, line: Line, booked: Iterable[Booked]) -> None:
        sums = self.ledger.entry(line).sums
        for piece in booked:
            sums.add_time(piece)

    # -- going ----------------------------------------------------------------------

    def _end_departed(self, uuid: str, result: GpuCycle | None, cycle: Cycle) -> frozenset[ProcessAt]:
        """A process missing from one cycle has not ended; one gone from /proc, or missing for longer, has.

        Where the lists were not told, whoever runs is still there for all anybody knows.
        """
        told = result is not None and result.lists_told
        taken = {(at.key.pid, at.place) for at in result.residents} if result is not None else set()
        left = set()
        for at, booking in self.ledger.present(uuid):
            if result is not None and at in result.residents:
                continue
            alive = cycle.alive(at)
            if alive and not told:
                booking.seen_ns = cycle.moment.now_ns
            gone = (told and not alive) or (at.key.pid, at.place) in taken
            if gone or cycle.moment.now_ns - booking.seen_ns > GRACE_NS:
                self._end(at, cycle)
                left.add(at)
        return frozenset(left)

    def _end(self, at: ProcessAt, cycle: Cycle) -> None:
        self.ledger.end(at, cycle.moment.now_ns)
        self._short_lived.ended(at, cycle)

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """What is needed beside the ledger, as plain data."""
        states = [(line, state.to_state()) for line, state in self._idle.items()]
        return {
            "processes": sorted([line, state] for line, state in states if isinstance(line, ProcessLine)),
            "workloads": sorted([line, state] for line, state in states if isinstance(line, WorkloadLine)),
            "short_lived": self._short_lived.to_state(),
        }

    @classmethod
    def from_state(cls, ledger: Ledger, data: Any) -> Self:
        """The counterpart of ``to_state``; ValueError if it is not what that gave."""
        restored = cls(ledger)
        try:
            for line, state in data["processes"]:
                restored._idle[process_line_from(line)] = IdleState.from_state(state)
            for line, state in data["workloads"]:
                restored._idle[workload_line_from(line)] = IdleState.from_state(state)
            restored._short_lived = ShortLived.from_state(data["short_lived"])
        except (KeyError, TypeError) as error:
            raise ValueError("not a state of the books") from error
        if not all(ledger.has(line) for line in restored._idle):
            raise ValueError("books: a state without a line")
        return restored


def _worked(ats: Iterable[ProcessAt], result: GpuCycle) -> bool | None:
    """Whether any of these showed work; ``None`` where the driver does not tell."""
    if result.compute is None:
        return None
    seen = [result.compute.worked(at.key.pid) for at in ats]
    return True if any(seen) else None if None in seen else False


def _others_worked(ats: Iterable[ProcessAt], result: GpuCycle) -> bool:
    own = {at.key.pid for at in ats}
    return result.compute is not None and any(pid not in own for pid in result.compute.pids)


def _held(ats: Sequence[ProcessAt], result: GpuCycle) -> int | None:
    """Memory by the driver's figures, or else as inferred; ``None`` where neither tells of anybody."""
    held = [result.held_bytes(at) for at in ats]
    known = [bytes_ for bytes_ in held if bytes_ is not None]
    return sum(known) if known else None
