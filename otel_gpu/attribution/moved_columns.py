"""What is new of lines that only went on being idle, in columns: what they had come to, and what went on since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import add, attrgetter, mul
from typing import Final, NamedTuple

from otel_gpu.attribution.energy import Method
from otel_gpu.attribution.idle_run import GoneOn, energy_by
from otel_gpu.attribution.lines import Entry
from otel_gpu.model import MethodEnergy, Moved, ProcessAttribution, WorkloadGpu

_tuple: Final = tuple.__new__
_MEASURED: Final = Method.MEASURED
_ESTIMATED: Final = Method.ESTIMATED
_INFERRED: Final = Method.INFERRED
"""A member of an enumeration is looked up anew each time that it is named."""
_LAST_MJ: Final = attrgetter("last_mj")
_DRAWN_MJ: Final = attrgetter("drawn_mj")
_BILLED_US: Final = attrgetter("billed_us")
_NOTHING: Final = -1
"""The number of the last in a list of figures, which is 0."""


class Seat(NamedTuple):
    """Where a line finds its part in what went on: of which GPU the time, whose energy, and as which payer.

    The last two are numbers in the lists of all GPUs, one after the other.
    """

    gpu: int
    members: Sequence[int]
    payer: int
    held_bytes: int
    method: Method | None


_ENDED: Final = Seat(_NOTHING, (), _NOTHING, 0, None)
"""Of who has ended nothing is new."""


def seat(gpu: int, members: Sequence[int], payer: int | None, held_bytes: int, method: Method | None) -> Seat:
    """That of somebody who is there."""
    return Seat(gpu, members, _NOTHING if payer is None else payer, held_bytes, method)


class MovedColumns:
    """The lines of one kind in the order of an answer. Nothing of it changes: answers are made of it when asked for."""

    def __init__(
        self,
        entries: Sequence[Entry],
        told: Sequence[ProcessAttribution | WorkloadGpu],
        seats: Mapping[Entry, Seat],
    ) -> None:
        found, sums = [seats.get(entry, _ENDED) for entry in entries], [entry.sums for entry in entries]
        self._before = Moved(
            [was.energy for was in told],
            [was.idle_s for was in told],
            [each.measured_mj for each in sums],
            [each.estimated_mj for each in sums],
            [each.inferred_mj for each in sums],
            [each.idle_us for each in sums],
            [each.idle_byte_us for each in sums],
            [each.idle_mj for each in sums],
            [each.billed_idle_us for each in sums],
        )
        self._idle_us = [entry.idle.idle_us if entry in seats and entry.idle is not None else None for entry in entries]
        self._methods = [each.method for each in found]
        self._all_methods = set(self._methods)
        self._gpus, self._payers = [each.gpu for each in found], [each.payer for each in found]
        self._held_bytes = [each.held_bytes for each in found]
        self._members = [each.members[0] if each.members else _NOTHING for each in found]
        self._several = [(place, each.members) for place, each in enumerate(found) if len(each.members) > 1]

    def after(self, gone_on: Sequence[GoneOn]) -> Moved:
        """What these lines come to after this has gone on on each GPU."""
        before = self._before
        drawn_mj = self._of_members([*chain.from_iterable(map(_DRAWN_MJ, gone_on)), 0])
        last_mj = self._of_members([*chain.from_iterable(map(_LAST_MJ, gone_on)), 0])
        times_us = [*[gpu.time_us for gpu in gone_on], 0]
        time_us = list(map(times_us.__getitem__, self._gpus))
        billed_us = [*chain.from_iterable(map(_BILLED_US, gone_on)), 0]
        return Moved(
            self._energy(last_mj),
            [
                was if idle_us is None else (idle_us + more_us) / 1e6
                for was, idle_us, more_us in zip(before.idle_s, self._idle_us, time_us, strict=True)
            ],
            self._by(_MEASURED, before.measured_mj, drawn_mj),
            self._by(_ESTIMATED, before.estimated_mj, drawn_mj),
            self._by(_INFERRED, before.inferred_mj, drawn_mj),
            list(map(add, before.idle_us, time_us)),
            list(map(add, before.idle_byte_us, map(mul, time_us, self._held_bytes))),
            list(map(add, before.idle_mj, drawn_mj)),
            list(map(add, before.billed_idle_us, map(billed_us.__getitem__, self._payers))),
        )

    def _of_members(self, figures: Sequence[int]) -> list[int]:
        """Figures of everybody in the lists of the GPUs, as those of the lines that they belong to."""
        of_lines = list(map(figures.__getitem__, self._members))
        for place, members in self._several:
            of_lines[place] = sum(map(figures.__getitem__, members))
        return of_lines

    def _energy(self, last_mj: Sequence[int]) -> list[MethodEnergy]:
        """What was drawn last, by how it was found: mostly all of it is estimated."""
        if self._all_methods == {_ESTIMATED}:
            return [_tuple(MethodEnergy, (0, energy_mj, 0)) for energy_mj in last_mj]
        return [
            was if method is None else _tuple(MethodEnergy, energy_by(method, energy_mj))
            for was, method, energy_mj in zip(self._before.energy, self._methods, last_mj, strict=True)
        ]

    def _by(self, method: Method, before_mj: Sequence[int], drawn_mj: Sequence[int]) -> Sequence[int]:
        """Energy by one method: it moves where that is how it was found."""
        if method not in self._all_methods:
            return before_mj
        if self._all_methods == {method}:
            return list(map(add, before_mj, drawn_mj))
        more_mj = [mj if found is method else 0 for mj, found in zip(drawn_mj, self._methods, strict=True)]
        return list(map(add, before_mj, more_mj))
