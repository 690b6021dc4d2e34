"""What a cycle shows of the lines of one GPU: who of each is there, what it drew, and what it does.

Who is there is mostly who was there in the cycle before. Who belongs to which line is then not found out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, TypeAlias

from otel_gpu.attribution.bookings import Present
from otel_gpu.attribution.energy import Method
from otel_gpu.attribution.lines import Entry
from otel_gpu.attribution.places import Place, ProcessAt
from otel_gpu.attribution.presence import Resident
from otel_gpu.model import GpuState, MethodEnergy
from otel_gpu.model.report import NO_ENERGY

_tuple: Final = tuple.__new__


@dataclass(slots=True, eq=False)
class Shown:
    """One line in one cycle. ``energy`` is what it drew in the window; nothing where it had no part in a division.

    ``members`` are those of it who are in the lists, by their number in ``GpuBooks.there``, and ``pids`` theirs.
    ``is_missing`` says that somebody of it is in none. ``staff`` are a workload's processes, each with its number;
    ``None`` for those who are missing.
    """

    entry: Entry
    members: list[int] = field(default_factory=list)
    pids: frozenset[int] = frozenset()
    is_seated: bool = False
    is_missing: bool = False
    staff: list[tuple[Shown, int | None]] = field(default_factory=list)
    energy: MethodEnergy = NO_ENERGY
    energy_mj: int = 0
    billed_us: int = 0
    memory_bytes: int | None = None
    """By the driver's figures; ``None`` where it has none of anybody."""
    held_bytes: int | None = None
    """The same, or else as inferred; ``None`` where neither tells of anybody."""
    state: GpuState | None = None
    idle_s: float | None = None

    def draw(self, method: Method, energy_mj: int, now_ns: int) -> None:
        """Book energy of this window, beside what others of the line drew."""
        measured_mj, estimated_mj, inferred_mj = energy_by(method, energy_mj)
        if self.energy is not NO_ENERGY:
            before = self.energy
            measured_mj += before.measured_mj or 0
            estimated_mj += before.estimated_mj or 0
            inferred_mj += before.inferred_mj or 0
        self.energy = _tuple(MethodEnergy, (measured_mj, estimated_mj, inferred_mj))
        self.energy_mj += energy_mj
        self.entry.sums.add_energy(method, energy_mj)
        self.entry.drew_ns = now_ns


Payers: TypeAlias = list[tuple[Place, list[Shown]]]
"""Workloads by the place that they pay for, in order."""


class GpuBooks:
    """What a cycle means for the lines of one GPU."""

    __slots__ = (
        "_present",
        "memory_bytes",
        "payers",
        "pids",
        "residents",
        "seated",
        "shown",
        "there",
        "workloads",
    )

    def __init__(self) -> None:
        self.shown: dict[Entry, Shown] = {}
        self.seated: list[Shown] = []
        """Lines that somebody is there of, whether in the lists or missing from them."""
        self.there: tuple[ProcessAt, ...] = ()
        """Who is in the lists, what their pids are, what each holds by the driver's figures."""
        self.pids: list[int] = []
        self.memory_bytes: list[int | None] = []
        self.workloads: list[Shown] = []
        """Those of them that are a workload's."""
        self.payers: Payers = []
        self.residents: Mapping[ProcessAt, Resident] = {}
        """Whom the memory was taken from; the same object for as long as the same is told of the same."""
        self._present: Present | None = None

    @property
    def is_complete(self) -> bool:
        """Whether everybody who is there by the books is in the lists."""
        return self._present is not None

    def begin(self) -> None:
        """A new cycle: who is there is taken over, what was shown of them is not."""
        if self._present is None:
            self.shown = {}
            return
        if len(self.shown) > len(self.seated):
            self.shown = {shown.entry: shown for shown in self.seated}
        for shown in self.seated:
            shown.energy = NO_ENERGY
            shown.energy_mj = shown.billed_us = 0

    def draw(self, method: Method, parts_mj: Sequence[int], now_ns: int) -> None:
        """Book energy of this window to everybody there, in their order: what each one's lines draw, at once."""
        for shown in self.seated:
            members, entry = shown.members, shown.entry
            energy_mj = parts_mj[members[0]] if len(members) == 1 else sum([parts_mj[number] for number in members])
            shown.energy_mj = energy_mj
            shown.energy = _tuple(MethodEnergy, energy_by(method, energy_mj))
            entry.sums.add_energy(method, energy_mj)
            entry.drew_ns = now_ns

    def of(self, entry: Entry) -> Shown:
        """What is shown of a line."""
        shown = self.shown.get(entry)
        if shown is None:
            shown = self.shown[entry] = Shown(entry)
        return shown

    def has_seats(self, present: Present, ats: tuple[ProcessAt, ...]) -> bool:
        """Whether these are those who were there in the cycle before."""
        return present is self._present and ats == self.there

    def seat(self, present: Present, residents: Mapping[ProcessAt, Resident]) -> None:
        """Take in who is there by the books; who of them is not among ``residents`` is missing from the lists.

        Both are in order, and every resident is there by the books.
        """
        if present is self._present and len(present) == len(residents):
            if residents is not self.residents:
                self._take_memory(residents)
            return
        for shown in self.shown.values():
            shown.members, shown.staff, shown.is_seated, shown.is_missing = [], [], False, False
        there: list[ProcessAt] = []
        for at, booking in present:
            number = None
            if at in residents:
                number = len(there)
                there.append(at)
            process, workload = self.of(booking.process_entry), self.of(booking.workload_entry)
            workload.staff.append((process, number))
            for shown in (process, workload):
                shown.is_seated = True
                if number is None:
                    shown.is_missing = True
                else:
                    shown.members.append(number)
        self.seated = [shown for shown in self.shown.values() if shown.is_seated]
        self.there = tuple(there)
        self.pids = [at.key.pid for at in there]
        for shown in self.seated:
            shown.pids = frozenset([self.pids[number] for number in shown.members])
        self.workloads = [shown for shown in self.seated if shown.staff]
        self.payers = payers_of(self.workloads)
        self._present = present if len(present) == len(residents) else None
        self._take_memory(residents)

    def _take_memory(self, residents: Mapping[ProcessAt, Resident]) -> None:
        """Take in what everybody there holds by the driver's figures; they are in the same order."""
        self.memory_bytes = figures = [resident.memory_bytes for resident in residents.values()]
        for shown in self.seated:
            members = shown.members
            shown.memory_bytes = figures[members[0]] if len(members) == 1 else sum_known([figures[n] for n in members])
        self.residents = residents


def sum_known(figures: Sequence[int | None]) -> int | None:
    """``None`` where nothing tells of anybody."""
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known else None


def payers_of(workloads: Iterable[Shown]) -> Payers:
    """Workloads by place, in order."""
    ordered = sorted(workloads, key=lambda shown: (shown.entry.line.at.place, shown.entry.line))
    return [(place, list(shown)) for place, shown in groupby(ordered, key=lambda shown: shown.entry.line.at.place)]


def energy_by(method: Method, energy_mj: int) -> tuple[int, int, int]:
    """The fields of a ``MethodEnergy`` whose energy was found by one method."""
    if method is Method.ESTIMATED:
        return 0, energy_mj, 0
    return (energy_mj, 0, 0) if method is Method.MEASURED else (0, 0, energy_mj)
