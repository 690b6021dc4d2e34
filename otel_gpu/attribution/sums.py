"""Running totals of one line of the books, in integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final, Self

from otel_gpu.attribution.energy import Method
from otel_gpu.attribution.idle import Booked
from otel_gpu.attribution.plain import whole
from otel_gpu.model import GpuState, MethodEnergy, Totals

_tuple: Final = tuple.__new__
_MEASURED: Final = Method.MEASURED
_ESTIMATED: Final = Method.ESTIMATED
_BUSY: Final = GpuState.BUSY
_IDLE: Final = GpuState.IDLE
_ALLOCATED: Final = GpuState.ALLOCATED
"""A member of an enumeration is looked up anew each time that it is named."""


@dataclass(slots=True)
class Sums:
    """What somebody used so far. None of it ever falls."""

    measured_mj: int = 0
    estimated_mj: int = 0
    inferred_mj: int = 0
    compute_us: int = 0
    busy_us: int = 0
    idle_us: int = 0
    allocated_us: int = 0
    unknown_us: int = 0
    idle_byte_us: int = 0
    busy_mj: int = 0
    idle_mj: int = 0
    unknown_mj: int = 0
    billed_busy_us: int = 0
    billed_idle_us: int = 0
    billed_allocated_us: int = 0
    billed_unknown_us: int = 0

    @property
    def energy_mj(self) -> int:
        """Energy by all methods."""
        return self.measured_mj + self.estimated_mj + self.inferred_mj

    def add_energy(self, method: Method, energy_mj: int) -> None:
        """Book energy found by this method."""
        if method is _ESTIMATED:
            self.estimated_mj += energy_mj
        elif method is _MEASURED:
            self.measured_mj += energy_mj
        else:
            self.inferred_mj += energy_mj

    def add_time(self, piece: Booked) -> None:
        """Book time spent in a state, and what was drawn and is to be paid for in it; memory held only while idle."""
        state, time_us, byte_us, energy_mj, billed_us = piece
        if state is _BUSY:
            self.busy_us += time_us
            self.busy_mj += energy_mj
            self.billed_busy_us += billed_us
        elif state is _IDLE:
            self.idle_us += time_us
            self.idle_byte_us += byte_us
            self.idle_mj += energy_mj
            self.billed_idle_us += billed_us
        elif state is _ALLOCATED:
            self.allocated_us += time_us
            self.billed_allocated_us += billed_us
        else:
            self.unknown_us += time_us
            self.unknown_mj += energy_mj
            self.billed_unknown_us += billed_us

    def add(self, other: Sums) -> None:
        """Take over all of another's."""
        for each in fields(Sums):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def frozen(self, since_ns: int) -> Totals:
        """The totals as they are now."""
        # Hundreds of both are made in every cycle: at once, without the __new__ that takes their fields one by one.
        energy = _tuple(MethodEnergy, (self.measured_mj, self.estimated_mj, self.inferred_mj))
        return _tuple(
            Totals,
            (
                since_ns,
                energy,
                self.compute_us,
                self.busy_us,
                self.idle_us,
                self.allocated_us,
                self.unknown_us,
                self.idle_byte_us,
                self.idle_mj,
                self.busy_mj,
                self.unknown_mj,
                self.billed_busy_us,
                self.billed_idle_us,
                self.billed_allocated_us,
                self.billed_unknown_us,
            ),
        )

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> list[int]:
        """The totals in their order."""
        return list(_IN_ORDER(self))

    @classmethod
    def from_state(cls, data: Any) -> Self:
        """The counterpart of ``to_state``; ValueError if it is not what that gave."""
        if not isinstance(data, list) or len(data) != len(fields(Sums)):
            raise ValueError("books: totals that are none")
        return cls(*map(whole, data))


_IN_ORDER: Final[Callable[[Sums], tuple[int, ...]]] = attrgetter(*(each.name for each in fields(Sums)))
