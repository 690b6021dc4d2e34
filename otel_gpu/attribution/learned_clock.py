"""How far the power limit holds a GPU back, as its SM clock tells.

At the limit power is a constant and says nothing of who is hungry; the clock does. Dynamic power is f·V², and V falls
with f or stays: at a clock that is lower by a factor, work draws less by at least that factor. So power over the
clock's ratio to what it is under free load is the least that the same work would draw there. Where power falls faster
than the clock, differences come out smaller than they are, but not the other way round.

A clock is read at one instant, and an interval's is taken as the mean of those at its ends. It is held against the
highest seen under load lately. One below 0.3 of that is of a GPU that happened to be idle at that instant. A clock that
never varies at the limit is not the one that the limit holds back, or not one that is kept up to date.

What is known is put to the test by the clock at an interval's end alone: the one at its beginning was learned from
before, and what was misread in it must not be taken for something that was foretold.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple, Self

from otel_gpu.attribution.baseline import HALF_LIFE_S, figures

LEAST_RATIO: Final = 0.3
"""Of the reference: no GPU at work is held back further."""

_VARIES: Final = 0.98  # the lowest clock at the limit must be below this part of the reference
_HIGHEST_MHZ: Final = 10_000


class Clocks(NamedTuple):
    """Of an interval, in MHz: over all of it, and at its end."""

    mean_mhz: float
    end_mhz: float


class SmClock:
    """The SM clock of one GPU: what it is under load, and in an interval."""

    __slots__ = ("_before_mhz", "_highest_mhz", "_lowest_mhz", "_stretch_s")

    def __init__(self) -> None:
        self._before_mhz: float | None = None
        # Of this stretch of time and the one before: the highest under load, and the lowest at the power limit.
        self._highest_mhz = [0.0, 0.0]
        self._lowest_mhz = [math.inf, math.inf]
        self._stretch_s = 0.0

    @property
    def reference_mhz(self) -> float:
        """The highest clock seen under load lately; 0 before any was."""
        return max(self._highest_mhz)

    @property
    def tells(self) -> bool:
        """Whether the power limit was seen to lower it."""
        return min(self._lowest_mhz) < _VARIES * self.reference_mhz

    def ratio(self, clock_mhz: float) -> float:
        """What a clock is of the reference, within what can be."""
        return min(1.0, max(LEAST_RATIO, clock_mhz / self.reference_mhz))

    def observe(self, clock_mhz: int | None, *, capped: bool, dt_s: float) -> Clocks | None:
        """Take in the clock at the end of an interval with work; the interval's clocks, ``None`` where unknown."""
        before_mhz, self._before_mhz = self._before_mhz, None
        if clock_mhz is None or not 0 < clock_mhz <= _HIGHEST_MHZ:
            return None
        end_mhz = float(clock_mhz)
        self._stretch_s += dt_s
        if self._stretch_s > HALF_LIFE_S:
            self._stretch_s = 0.0
            self._highest_mhz, self._lowest_mhz = [0.0, self._highest_mhz[0]], [math.inf, self._lowest_mhz[0]]
        self._highest_mhz[0] = max(self._highest_mhz[0], end_mhz)
        if end_mhz < LEAST_RATIO * self.reference_mhz:
            return None
        self._before_mhz = end_mhz
        if capped:
            self._lowest_mhz[0] = min(self._lowest_mhz[0], end_mhz)
        return Clocks(end_mhz if before_mhz is None else (before_mhz + end_mhz) / 2.0, end_mhz)

    def to_state(self) -> dict[str, Any]:
        """What is remembered, as plain data."""
        return {
            "before_mhz": self._before_mhz,
            "highest_mhz": list(self._highest_mhz),
            "lowest_mhz": [None if math.isinf(lowest) else lowest for lowest in self._lowest_mhz],
            "stretch_s": self._stretch_s,
        }

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """The counterpart of ``to_state``; raises on anything else."""
        new = cls()
        (new._before_mhz,) = _figures_or_none([state["before_mhz"]])
        new._highest_mhz = figures(state["highest_mhz"])
        new._lowest_mhz = [math.inf if lowest is None else lowest for lowest in _figures_or_none(state["lowest_mhz"])]
        (new._stretch_s,) = figures([state["stretch_s"]])
        if len(new._highest_mhz) != 2 or len(new._lowest_mhz) != 2:
            raise ValueError("not two stretches of a clock")
        return new


def _figures_or_none(values: Any) -> list[float | None]:
    return [None if value is None else figures([value])[0] for value in values]
