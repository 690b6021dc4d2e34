"""How far the power limit slows a GPU down, from its SM clock.

At the limit power is constant and does not show which process draws more; the clock does. Dynamic power is f·V², and V
falls with f or stays the same: at a clock lower by some factor, work draws less by at least that factor. So power
divided by the ratio of the clock to the clock under free load is the least that the same work would draw there. Where
power falls faster than the clock, differences between processes come out too small, never too large.

A clock is read at one instant. The clock of an interval is the mean of those at its ends, as a ratio to the highest
clock that was seen under load lately. A clock below 0.3 of that is of a GPU that happened to be idle at that instant.
A clock that never varies at the limit is either not the one that the limit lowers, or not updated by the driver.

Predictions are tested with the clock at the end of an interval alone. The clock at its beginning was learned from
before, and an error in it must not count as a correct prediction.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple, Self

from otel_gpu.attribution.plain import amount, optional, parts
from otel_gpu.attribution.power.baseline import HALF_LIFE_S

LEAST_RATIO: Final = 0.3
"""Of the reference clock: no GPU at work is slowed down further."""

_VARIES: Final = 0.98  # the lowest clock at the limit must be below this part of the reference
_HIGHEST_MHZ: Final = 10_000


class Clocks(NamedTuple):
    """SM clock of an interval, in MHz: its mean, and the clock at its end."""

    mean_mhz: float
    end_mhz: float


class SmClock:
    """SM clock of one GPU: the reference under load, and the clock in each interval."""

    __slots__ = ("_before_mhz", "_highest_mhz", "_lowest_mhz", "_stretch_s")

    def __init__(self) -> None:
        self._before_mhz: float | None = None
        # Of the current stretch of time and the one before: the highest under load, the lowest at the power limit.
        self._highest_mhz = [0.0, 0.0]
        self._lowest_mhz = [math.inf, math.inf]
        self._stretch_s = 0.0

    @property
    def reference_mhz(self) -> float:
        """The highest clock seen under load lately; 0 before the first."""
        return max(self._highest_mhz)

    @property
    def follows_limit(self) -> bool:
        """Whether the power limit was seen to lower the clock."""
        return min(self._lowest_mhz) < _VARIES * self.reference_mhz

    def ratio(self, clock_mhz: float) -> float:
        """Ratio of a clock to the reference, 0.3 to 1."""
        return min(1.0, max(LEAST_RATIO, clock_mhz / self.reference_mhz))

    def observe(self, clock_mhz: int | None, *, capped: bool, dt_s: float) -> Clocks | None:
        """Add the clock at the end of an interval with work; the clocks of the interval, ``None`` where unknown."""
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

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "before_mhz": self._before_mhz,
            "highest_mhz": list(self._highest_mhz),
            "lowest_mhz": [None if math.isinf(lowest) else lowest for lowest in self._lowest_mhz],
            "stretch_s": self._stretch_s,
        }

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Restore what ``to_state`` returned; raises for anything else."""
        restored = cls()
        restored._before_mhz = optional(amount, state["before_mhz"])
        restored._highest_mhz = list(map(amount, parts(state["highest_mhz"], 2)))
        lowest_mhz = [optional(amount, each) for each in parts(state["lowest_mhz"], 2)]
        restored._lowest_mhz = [math.inf if lowest is None else lowest for lowest in lowest_mhz]
        restored._stretch_s = amount(state["stretch_s"])
        return restored
