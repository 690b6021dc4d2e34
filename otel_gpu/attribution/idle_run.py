"""Idle time and energy of one GPU's lines while nothing else happens to them, booked when somebody opens the books.

A cycle of that takes in a few figures of the GPU: what each line comes to follows from them, whenever it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from otel_gpu.attribution.energy import Method
from otel_gpu.attribution.idle import IdleState
from otel_gpu.attribution.sums import Sums
from otel_gpu.model import MethodEnergy

if TYPE_CHECKING:
    from otel_gpu.attribution.shown import Shown

_tuple: Final = tuple.__new__
_MEASURED: Final = Method.MEASURED
_ESTIMATED: Final = Method.ESTIMATED

Idler: TypeAlias = "tuple[Shown, Sums, IdleState, int, list[int] | None, int]"
"""A line that goes on being idle: its sums and state, who of it is there, the one or several, and what they hold."""


class Idlers(NamedTuple):
    """Everybody on a GPU, and the sums of those of them who pay for it, in the order in which they do."""

    lines: Sequence[Idler]
    payers: Sequence[Sums]


class GoneOn(NamedTuple):
    """What went on in some cycles. Nothing of it changes later: answers are made of it while the next cycle goes on.

    ``last_mj`` is what everybody in the lists drew in the last of them, in their order, ``drawn_mj`` in all of them;
    ``billed_us`` is what the payers are to pay for.
    """

    time_us: int
    last_mj: Sequence[int]
    drawn_mj: Sequence[int]
    billed_us: Sequence[int]


class IdleRun:
    """Cycles in which everybody on a GPU goes on being idle, after one that is in the books.

    It has the sums and states of the lines until it is settled: whoever reads them settles it (see ``Entry``).
    """

    __slots__ = ("_idlers", "gone_on", "is_settled", "method")

    def __init__(self, idlers: Idlers, method: Method | None, last_mj: Sequence[int]) -> None:
        self._idlers = idlers
        self.method = method
        self.gone_on = GoneOn(0, last_mj, [0] * len(last_mj), [0] * len(idlers.payers))
        self.is_settled = False
        for shown, *_ in idlers.lines:
            shown.entry.lend(self)

    def go_on(self, parts_mj: Sequence[int], billed_us: Sequence[int], window_us: int) -> None:
        """One more cycle, its energy found by the same method."""
        time_us, _, drawn_mj, billed_before_us = self.gone_on
        self.gone_on = GoneOn(
            time_us + window_us,
            parts_mj,
            list(map(add, drawn_mj, parts_mj)),
            list(map(add, billed_before_us, billed_us)),
        )

    def settle(self) -> None:
        """Put all of it into the books, which then have it alone. Of a GPU that nobody is on nothing is put there."""
        if self.is_settled or not self._idlers.lines:
            return
        self.is_settled = True
        for shown, *_ in self._idlers.lines:
            shown.entry.take_back()
        if self.method is not None:
            book_idle(self._idlers, self.method, self.gone_on)


def book_idle(idlers: Idlers, method: Method, gone_on: GoneOn) -> None:
    """Book what went on to every line.

    Nobody ends in such a cycle, so that nobody asks who drew energy in it.
    """
    time_us, last_mj, drawn_mj, billed_us = gone_on
    estimated, only_last = method is _ESTIMATED, drawn_mj is last_mj
    for shown, sums, idle, first, members, held_bytes in idlers.lines:
        last = last_mj[first] if members is None else sum([last_mj[number] for number in members])
        energy_mj = last
        if not only_last:
            energy_mj = drawn_mj[first] if members is None else sum([drawn_mj[number] for number in members])
        shown.energy = _tuple(MethodEnergy, (0, last, 0) if estimated else energy_by(method, last))
        if estimated:
            sums.estimated_mj += energy_mj
        else:
            sums.add_energy(method, energy_mj)
        sums.idle_us += time_us
        sums.idle_byte_us += time_us * held_bytes
        sums.idle_mj += energy_mj
        shown.idle_s = idle.go_on(time_us)
    for sums, payed_us in zip(idlers.payers, billed_us, strict=True):
        sums.billed_idle_us += payed_us


def energy_by(method: Method, energy_mj: int) -> tuple[int, int, int]:
    """Energy that was found by one method, as ``MethodEnergy`` has it."""
    if method is _ESTIMATED:
        return 0, energy_mj, 0
    return (energy_mj, 0, 0) if method is _MEASURED else (0, 0, energy_mj)
