"""Power of a GPU without work: P0 with no contexts on it, P1 with contexts that only hold memory.

Both are observed in quiet intervals where there are any. On a GPU that is never quiet, P1 is extrapolated: it is where
the line of power over utilisation meets utilisation 0, if utilisation has varied enough for a line. Otherwise it is
assumed. A low quantile of a busy GPU's power is never used: that is the power of its lightest work, not of no work.

Baselines belong to the GPU and its driver, so they do not age while there are no intervals.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any, Final, NamedTuple, Self

from otel_gpu.attribution.saved_values import amount, boolean, optional, parts, restoring

HALF_LIFE_S: Final = 900.0
"""Age at which an interval has half its weight in a fit: power follows the phases of a workload."""
CAPPED_FRACTION: Final = 0.95
"""Fraction of the power limit at or above which the limit determines the power, not the work."""
LONGEST_INTERVAL_S: Final = 30.0
"""Maximum length of an interval. The driver's samples reach back 10 to 17 s and cover only the end of a longer one."""
HIGHEST_UTILIZATION: Final = 1.05
"""Rows that sum to more are not shares of one GPU."""
HIGHEST_POWER_W: Final = 1e5
"""Above the power of any board."""

ASSUMED_FRACTION: Final = 0.2
"""Fraction of the enforced power limit: P0 and P1 where they are neither observed nor extrapolated."""

_MAX_OBSERVED: Final = 60
_MIN_OBSERVED: Final = 3
_QUIET: Final = 0.005  # utilisation below which the GPU does no work
_RIDGE: Final = 0.3
_CONTRAST: Final = 0.6  # maximum of the lowest utilisation, as a fraction of the highest
_MIN_WORK: Final = 0.02
_STRETCH_S: Final = 60.0
_STRETCHES: Final = 15
_MIN_INTERVAL_S: Final = 0.9  # the energy counter moves in steps of up to 100 ms: shorter intervals are inaccurate


class Origin(StrEnum):
    """How a baseline was found."""

    OBSERVED = "observed"
    EXTRAPOLATED = "extrapolated"
    ASSUMED = "assumed"


class BaselineEstimate(NamedTuple):
    """Power without work, in watts: with no contexts (P0), and with contexts (P1 >= P0, which it includes)."""

    idle_power_w: float
    idle_power_origin: Origin
    context_power_w: float
    context_power_origin: Origin


@dataclass(slots=True)
class _Line:
    """Decayed sums for a line of power P over utilisation U."""

    count: float = 0.0
    sum_u: float = 0.0
    sum_p: float = 0.0
    sum_uu: float = 0.0
    sum_up: float = 0.0

    def add(self, utilization: float, power_w: float, dt_s: float) -> None:
        """Add an interval; the older ones decay by its length."""
        kept = 2.0 ** (-dt_s / HALF_LIFE_S)
        self.count = kept * self.count + 1.0
        self.sum_u = kept * self.sum_u + utilization
        self.sum_p = kept * self.sum_p + power_w
        self.sum_uu = kept * self.sum_uu + utilization * utilization
        self.sum_up = kept * self.sum_up + utilization * power_w

    def intercept_w(self, prior_w: float) -> float:
        """Power at utilisation 0. With few or similar intervals it stays near ``prior_w``.

        Ridge regression: a penalty on the slope, larger with fewer intervals, pulls the line towards the one through
        ``prior_w`` at utilisation 0 and the mean of the intervals.
        """
        if self.count <= 0 or self.sum_u <= 0:
            return prior_w
        mean_u, mean_p = self.sum_u / self.count, self.sum_p / self.count
        variance = max(0.0, self.sum_uu / self.count - mean_u * mean_u)
        covariance = self.sum_up / self.count - mean_u * mean_p
        ridge = _RIDGE / self.count
        slope = (covariance + ridge * (mean_p - prior_w) / mean_u) / (variance + ridge)
        return mean_p - slope * mean_u


class Baseline:
    """P0 and P1 of one GPU, estimated from its intervals."""

    __slots__ = (
        "_assumed_fraction",
        "_context_w",
        "_highest_w",
        "_idle_w",
        "_line",
        "_lowest_context_w",
        "_lowest_w",
        "_power_limit_w",
        "_quiet_before",
        "_ranges",
        "_stretch_s",
    )

    def __init__(self, assumed_fraction: float = ASSUMED_FRACTION) -> None:
        self._assumed_fraction = assumed_fraction
        # Power of the newest quiet intervals without and with contexts.
        self._idle_w: deque[float] = deque(maxlen=_MAX_OBSERVED)
        self._context_w: deque[float] = deque(maxlen=_MAX_OBSERVED)
        # If the previous interval was quiet: whether it had contexts.
        self._quiet_before: bool | None = None
        self._line = _Line()
        # Lowest and highest utilisation per stretch of a minute, of the last 15.
        self._ranges: deque[tuple[float, float]] = deque(maxlen=_STRETCHES)
        self._stretch_s = 0.0
        self._lowest_w = self._lowest_context_w = math.inf
        self._highest_w = 0.0
        self._power_limit_w: float | None = None

    def observe(
        self,
        *,
        power_w: float,
        utilization: float | None,
        resident: bool,
        power_limit_w: float | None,
        dt_s: float,
    ) -> None:
        """Add one interval: its mean power, total SM share (0 to 1), and whether any process had a context."""
        if dt_s == 0:
            return
        if not _is_plausible(power_w, utilization, dt_s):
            self._quiet_before = None
            return
        if power_limit_w is not None and 0 < power_limit_w <= HIGHEST_POWER_W:
            self._power_limit_w = power_limit_w
        quiet_before, self._quiet_before = self._quiet_before, None
        if dt_s < _MIN_INTERVAL_S:
            return
        self._highest_w = max(self._highest_w, power_w)
        self._lowest_w = min(self._lowest_w, power_w)
        if resident:
            self._lowest_context_w = min(self._lowest_context_w, power_w)
        if utilization is None or dt_s > LONGEST_INTERVAL_S:
            return
        if utilization < _QUIET:
            self._quiet_before = resident
            # Clocks take seconds to fall after work: the first quiet interval still draws more.
            if quiet_before is resident:
                (self._context_w if resident else self._idle_w).append(power_w)
        if resident and (self._power_limit_w is None or power_w < CAPPED_FRACTION * self._power_limit_w):
            self._line.add(utilization, power_w, dt_s)
            self._extend_range(utilization, dt_s)

    def _extend_range(self, utilization: float, dt_s: float) -> None:
        if not self._ranges or self._stretch_s >= _STRETCH_S:
            self._stretch_s = 0.0
            self._ranges.append((utilization, utilization))
        low, high = self._ranges[-1]
        self._ranges[-1] = min(low, utilization), max(high, utilization)
        self._stretch_s += dt_s

    def estimate(self) -> BaselineEstimate:
        """P0 and P1 as known by now. What was not observed is never above the lowest power of an interval.

        What was observed may be above it: the lowest of many readings is mostly noise of the counter's steps.
        """
        # The limit cannot be below the power drawn, so the highest power replaces a limit that is not known.
        limit_w = self._highest_w if self._power_limit_w is None else self._power_limit_w
        assumed_w = self._assumed_fraction * limit_w
        idle_w, idle_origin = _observed_w(self._idle_w), Origin.OBSERVED
        if idle_w is None:
            idle_w, idle_origin = min(self._lowest_w, assumed_w), Origin.ASSUMED
        context_w, context_origin = _observed_w(self._context_w), Origin.OBSERVED
        if context_w is None:
            context_w, context_origin = self._extrapolated(min(self._lowest_context_w, assumed_w))
        if idle_w > context_w:  # contexts only add power
            if idle_origin is Origin.OBSERVED and context_origin is not Origin.OBSERVED:
                context_w = min(self._lowest_context_w, idle_w)
            idle_w = min(idle_w, context_w)
        return BaselineEstimate(idle_w, idle_origin, context_w, context_origin)

    def _extrapolated(self, assumed_w: float) -> tuple[float, Origin]:
        low = min([low for low, _ in self._ranges], default=0.0)
        high = max([high for _, high in self._ranges], default=0.0)
        if high < _MIN_WORK or low > _CONTRAST * high:
            return assumed_w, Origin.ASSUMED
        intercept_w = min(self._lowest_context_w, self._line.intercept_w(assumed_w))
        return max(0.0, intercept_w), Origin.EXTRAPOLATED

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Everything, as plain data."""
        line = self._line
        return {
            "idle_w": list(self._idle_w),
            "held_w": list(self._context_w),
            "before": self._quiet_before,
            "line": [line.count, line.sum_u, line.sum_p, line.sum_uu, line.sum_up],
            "ranges": [list(pair) for pair in self._ranges],
            "stretch_s": self._stretch_s,
            "lowest_w": _finite(self._lowest_w),
            "lowest_held_w": _finite(self._lowest_context_w),
            "highest_w": self._highest_w,
            "power_limit_w": self._power_limit_w,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], assumed_fraction: float = ASSUMED_FRACTION) -> Self:
        """Restore what ``to_state`` returned; ValueError for anything else."""
        restored = cls(assumed_fraction)
        with restoring("baseline"):
            restored._idle_w.extend(map(amount, state["idle_w"]))
            restored._context_w.extend(map(amount, state["held_w"]))
            restored._line = _Line(*map(amount, parts(state["line"], 5)))
            restored._ranges.extend((amount(low), amount(high)) for low, high in state["ranges"])
            restored._stretch_s, restored._highest_w = amount(state["stretch_s"]), amount(state["highest_w"])
            restored._lowest_w, restored._lowest_context_w = (
                math.inf if state[name] is None else amount(state[name]) for name in ("lowest_w", "lowest_held_w")
            )
            restored._power_limit_w = optional(amount, state["power_limit_w"])
            restored._quiet_before = optional(boolean, state["before"])
        return restored


def _observed_w(powers_w: Collection[float]) -> float | None:
    """Median power of quiet intervals; ``None`` while there are too few."""
    return median(powers_w) if len(powers_w) >= _MIN_OBSERVED else None


def _is_plausible(power_w: float, utilization: float | None, dt_s: float) -> bool:
    """Whether the figures of an interval can be true. NaN fails every comparison; a GPU always draws some power."""
    return (
        0 < power_w <= HIGHEST_POWER_W
        and (utilization is None or 0 <= utilization <= HIGHEST_UTILIZATION)
        and 0 < dt_s < math.inf
    )


def _finite(power_w: float) -> float | None:
    return None if power_w == math.inf else power_w
