"""What a cycle shows of the lines of one GPU: who of each is there, what it drew, and what it does.

Who is there is mostly who was there in the cycle before. Who belongs to which line is then not found out again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, TypeAlias

from otel_gpu.attribution.energy import Method
from otel_gpu.attribution.idle import IdleStep
from otel_gpu.attribution.ledger import Present
from otel_gpu.attribution.lines import Entry
from otel_gpu.attribution.places import Place, ProcessAt
from otel_gpu.attribution.presence import Resident
from otel_gpu.model import MethodEnergy
from otel_gpu.model.result import NO_ENERGY

_tuple: Final = tuple.__new__
_MEASURED: Final = Method.MEASURED
_ESTIMATED: Final = Method.ESTIMATED


@dataclass(slots=True, eq=False)
class Shown:
    """One line in one cycle. ``has_part`` says that it had a part in the division of the window's energy, if of 0 mJ.

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
    has_part: bool = False
    measured_mj: int = 0
    estimated_mj: int = 0
    inferred_mj: int = 0
    billed_us: int = 0
    held_bytes: int | None = None
    """By the driver's figures, or else as inferred; ``None`` where neither tells of anybody."""
    step: IdleStep | None = None

    def draw(self, method: Method, energy_mj: int, now_ns: int) -> None:
        """Book energy of this window."""
        self.has_part = True
        if method is _ESTIMATED:
            self.estimated_mj += energy_mj
        elif method is _MEASURED:
            self.measured_mj += energy_mj
        else:
            self.inferred_mj += energy_mj
        self.entry.sums.add_energy(method, energy_mj)
        self.entry.drew_ns = now_ns

    @property
    def energy(self) -> MethodEnergy:
        """Energy of this window by how it was found; nothing is known where there was nothing to divide."""
        if not self.has_part:
            return NO_ENERGY
        return _tuple(MethodEnergy, (self.measured_mj, self.estimated_mj, self.inferred_mj))


Payers: TypeAlias = list[tuple[Place, list[Shown]]]
"""Workloads by the place that they pay for, in order."""


class GpuBooks:
    """What a cycle means for the lines of one GPU."""

    def __init__(self) -> None:
        self.shown: dict[Entry, Shown] = {}
        self.seated: list[Shown] = []
        """Lines that somebody is there of, whether in the lists or missing from them."""
        self.there: list[ProcessAt] = []
        """Who is in the lists, what their pids are, what each holds by the driver's figures."""
        self.pids: list[int] = []
        self.memory_bytes: list[int | None] = []
        self.workloads: list[Shown] = []
        """Those of them that are a workload's."""
        self.payers: Payers = []
        self._present: Present | None = None
        self._seats: list[tuple[Shown, Shown]] = []

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
            shown.has_part = False
            shown.measured_mj = shown.estimated_mj = shown.inferred_mj = shown.billed_us = 0

    def of(self, entry: Entry) -> Shown:
        """What is shown of a line."""
        shown = self.shown.get(entry)
        if shown is None:
            shown = self.shown[entry] = Shown(entry)
        return shown

    def seats(self, present: Present, ats: Collection[ProcessAt]) -> list[tuple[Shown, Shown]] | None:
        """What is shown of the lines of these, if they are those who were there in the cycle before."""
        return self._seats if present is self._present and list(ats) == self.there else None

    def seat(self, present: Present, residents: Mapping[ProcessAt, Resident]) -> None:
        """Take in who is there by the books; who of them is not among ``residents`` is missing from the lists.

        Both are in order, and every resident is there by the books.
        """
        if present is self._present and len(present) == len(residents):
            self.memory_bytes = [resident.memory_bytes for resident in residents.values()]  # in the same order
            return
        for shown in self.shown.values():
            shown.members, shown.staff, shown.is_seated, shown.is_missing = [], [], False, False
        self.there, self._seats = [], []
        for at, booking in present:
            number = None
            if at in residents:
                number = len(self.there)
                self.there.append(at)
            process, workload = self.of(booking.process_entry), self.of(booking.workload_entry)
            self._seats.append((process, workload))
            workload.staff.append((process, number))
            for shown in (process, workload):
                shown.is_seated = True
                if number is None:
                    shown.is_missing = True
                else:
                    shown.members.append(number)
        self.seated = [shown for shown in self.shown.values() if shown.is_seated]
        self.pids = [at.key.pid for at in self.there]
        self.memory_bytes = [residents[at].memory_bytes for at in self.there]
        for shown in self.seated:
            shown.pids = frozenset([self.pids[number] for number in shown.members])
        self.workloads = [shown for shown in self.seated if shown.staff]
        self.payers = payers_of(self.workloads)
        self._present = present if len(present) == len(residents) else None


def payers_of(workloads: Iterable[Shown]) -> Payers:
    """Workloads by place, in order."""
    ordered = sorted(workloads, key=lambda shown: (shown.entry.line.at.place, shown.entry.line))
    return [(place, list(shown)) for place, shown in groupby(ordered, key=lambda shown: shown.entry.line.at.place)]
