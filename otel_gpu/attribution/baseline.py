"""What a GPU draws when nobody works: P0 with no contexts on it, P1 with contexts that only hold memory.

Best is to have seen it. On a GPU that is never idle, P1 is where the line of power over utilisation meets zero
utilisation, if utilisation has varied enough to draw one; otherwise it is assumed. It is never a low quantile of a
busy GPU's power: that is what its lightest work draws, not what it draws without work.

Baselines belong to the GPU and its driver, not to the hour: they do not age while nothing is seen.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

from otel_gpu.model.made import maker

ASSUMED_FRACTION: Final = 0.2
"""Of the enforced power limit: P0 and P1 where nothing was seen that tells."""
HALF_LIFE_S: Final = 900.0
"""Age at which an interval counts half for what is fitted: watts follow the phases of a workload."""
CAPPED: Final = 0.95
"""Of the power limit: from here on the limit sets the power, not the work."""
LONGEST_INTERVAL_S: Final = 30.0
"""The driver's samples reach back 10 to 17 s: the utilisation of a longer interval is that of its end only."""
HIGHEST_UTILIZATION: Final = 1.05
"""Rows that sum to more are not shares of one GPU."""
HIGHEST_POWER_W: Final = 1e5
"""Beyond any board."""

_MAX_OBSERVED: Final = 60
_MIN_OBSERVED: Final = 3
_QUIET: Final = 0.005  # utilisation below this is no work
_RIDGE: Final = 0.3
_CONTRAST: Final = 0.6  # the lowest utilisation must be at most this part of the highest
_MIN_WORK: Final = 0.02
_STRETCH_S: Final = 60.0
_STRETCHES: Final = 15
_MIN_INTERVAL_S: Final = 0.9  # the energy counter moves in steps of up to 100 ms: over less it tells little
_LARGEST_FIGURE: Final = 1e60  # no sum comes near it, and products of what is below stay finite


class Origin(StrEnum):
    """How a baseline was found."""

    OBSERVED = "observed"
    EXTRAPOLATED = "extrapolated"
    ASSUMED = "assumed"


_OBSERVED: Final = Origin.OBSERVED
_ASSUMED: Final = Origin.ASSUMED
"""A member of an enumeration is looked up anew each time that it is named."""


@dataclass(frozen=True, slots=True)
class BaselineEstimate:
    """Watts without work: ``idle_w`` with no contexts (P0), ``held_w`` with contexts, idle included (P1 >= P0)."""

    idle_w: float
    idle_origin: Origin
    held_w: float
    held_origin: Origin


_estimate: Final = maker(BaselineEstimate)
_NOTHING_SEEN: Final = BaselineEstimate(0.0, _ASSUMED, 0.0, _ASSUMED)


@dataclass(slots=True)
class _Line:
    """Decayed sums for a line of power P over utilisation U."""

    count: float = 0.0
    sum_u: float = 0.0
    sum_p: float = 0.0
    sum_uu: float = 0.0
    sum_up: float = 0.0

    def add(self, utilization: float, power_w: float, dt_s: float) -> None:
        """Count an interval."""
        kept = 2.0 ** (-dt_s / HALF_LIFE_S)
        self.count = kept * self.count + 1.0
        self.sum_u = kept * self.sum_u + utilization
        self.sum_p = kept * self.sum_p + power_w
        self.sum_uu = kept * self.sum_uu + utilization * utilization
        self.sum_up = kept * self.sum_up + utilization * power_w

    def intercept_w(self, prior_w: float) -> float:
        """Power at no utilisation; with few or similar intervals it stays near ``prior_w``."""
        if self.count <= 0 or self.sum_u <= 0:
            return prior_w
        mean_u, mean_p = self.sum_u / self.count, self.sum_p / self.count
        variance = max(0.0, self.sum_uu / self.count - mean_u * mean_u)
        covariance = self.sum_up / self.count - mean_u * mean_p
        ridge = _RIDGE / self.count
        slope = (covariance + ridge * (mean_p - prior_w) / mean_u) / (variance + ridge)
        return mean_p - slope * mean_u


class _Recent:
    """The newest of what was observed, and the middle of them without sorting them each time."""

    __slots__ = ("_ordered", "in_turn")

    def __init__(self) -> None:
        self.in_turn: deque[float] = deque()
        self._ordered: list[float] = []

    def append(self, power_w: float) -> None:
        """One more; the oldest makes room."""
        ordered = self._ordered
        if len(self.in_turn) == _MAX_OBSERVED:
            del ordered[bisect_left(ordered, self.in_turn.popleft())]
        self.in_turn.append(power_w)
        insort(ordered, power_w)

    def median_w(self) -> float | None:
        """``None`` while there are too few."""
        ordered = self._ordered
        count, middle = len(ordered), len(ordered) // 2
        if count < _MIN_OBSERVED:
            return None
        return ordered[middle] if count % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class Baseline:
    """P0 and P1 of one GPU, from its intervals."""

    __slots__ = (
        "_assumed_fraction",
        "_before",
        "_dropped",
        "_estimate",
        "_held",
        "_highest_w",
        "_idle",
        "_is_current",
        "_line",
        "_lowest_held_w",
        "_lowest_w",
        "_power_limit_w",
        "_ranges",
        "_stretch_s",
    )

    def __init__(self, assumed_fraction: float = ASSUMED_FRACTION) -> None:
        self._assumed_fraction = assumed_fraction
        self._idle = _Recent()
        self._held = _Recent()
        self._before: bool | None = None  # whether the interval before had residents, if it was quiet
        self._line = _Line()
        self._ranges: deque[tuple[float, float]] = deque(maxlen=_STRETCHES)
        self._stretch_s = 0.0
        self._lowest_w = self._lowest_held_w = math.inf  # before anything is seen
        self._highest_w = 0.0
        self._power_limit_w: float | None = None
        self._dropped = 0
        self._estimate = _NOTHING_SEEN
        self._is_current = False  # while nothing more is seen

    @property
    def dropped(self) -> int:
        """Intervals refused because a figure could not be true."""
        return self._dropped

    # ------------------------------------------------------------------------ what it sees

    def observe(
        self,
        *,
        power_w: float,
        utilization: float | None,
        resident: bool,
        power_limit_w: float | None,
        dt_s: float,
    ) -> None:
        """Take in one interval: its mean power, total SM share (0 to 1), and whether anybody had a context."""
        if dt_s == 0:
            return
        self._is_current = False
        if not _credible(power_w, utilization, dt_s):
            self._dropped += 1
            self._before = None
            return
        if power_limit_w is not None and 0 < power_limit_w <= HIGHEST_POWER_W:
            self._power_limit_w = power_limit_w
        before, self._before = self._before, None
        if dt_s < _MIN_INTERVAL_S:
            return
        self._highest_w = max(self._highest_w, power_w)
        self._lowest_w = min(self._lowest_w, power_w)
        if resident:
            self._lowest_held_w = min(self._lowest_held_w, power_w)
        if utilization is None or dt_s > LONGEST_INTERVAL_S:
            return
        if utilization < _QUIET:
            self._before = resident
            # Clocks take seconds to fall after work: the first quiet interval still draws more.
            if before is resident:
                (self._held if resident else self._idle).append(power_w)
        if resident and (self._power_limit_w is None or power_w < CAPPED * self._power_limit_w):
            self._line.add(utilization, power_w, dt_s)
            self._widen(utilization, dt_s)

    def _widen(self, utilization: float, dt_s: float) -> None:
        if not self._ranges or self._stretch_s >= _STRETCH_S:
            self._stretch_s = 0.0
            self._ranges.append((utilization, utilization))
        low, high = self._ranges[-1]
        if not low <= utilization <= high:
            self._ranges[-1] = min(low, utilization), max(high, utilization)
        self._stretch_s += dt_s

    # ------------------------------------------------------------------------ what follows

    def estimate(self) -> BaselineEstimate:
        """P0 and P1 as far as known by now. What was not observed is never above the lowest power seen.

        What was observed may be: the lowest of many readings is mostly the noise of the counter's steps.
        """
        if not self._is_current:
            self._estimate, self._is_current = self._estimated(self._estimate), True
        return self._estimate

    def _estimated(self, before: BaselineEstimate) -> BaselineEstimate:
        # The limit cannot be below what was drawn: where it is not known, that stands in for it.
        limit_w = self._highest_w if self._power_limit_w is None else self._power_limit_w
        assumed_w = self._assumed_fraction * limit_w
        idle_w, idle_origin = self._idle.median_w(), _OBSERVED
        if idle_w is None:
            idle_w, idle_origin = min(self._lowest_w, assumed_w), _ASSUMED
        held_w, held_origin = self._held.median_w(), _OBSERVED
        if held_w is None:
            held_w, held_origin = self._extrapolated(min(self._lowest_held_w, assumed_w))
        if idle_w > held_w:  # contexts only add
            if idle_origin is _OBSERVED and held_origin is not _OBSERVED:
                held_w = min(self._lowest_held_w, idle_w)
            idle_w = min(idle_w, held_w)
        same_w = idle_w == before.idle_w and held_w == before.held_w
        if same_w and idle_origin is before.idle_origin and held_origin is before.held_origin:
            return before  # the same object, as mostly
        return _estimate(idle_w, idle_origin, held_w, held_origin)

    def _extrapolated(self, assumed_w: float) -> tuple[float, Origin]:
        low = min((low for low, _ in self._ranges), default=0.0)
        high = max((high for _, high in self._ranges), default=0.0)
        if high < _MIN_WORK or low > _CONTRAST * high:
            return assumed_w, _ASSUMED
        intercept_w = min(self._lowest_held_w, self._line.intercept_w(assumed_w))
        return max(0.0, intercept_w), Origin.EXTRAPOLATED

    # ------------------------------------------------------------------------ how it is kept

    def to_state(self) -> dict[str, Any]:
        """All it knows, as plain data."""
        line = self._line
        return {
            "idle_w": list(self._idle.in_turn),
            "held_w": list(self._held.in_turn),
            "before": self._before,
            "line": [line.count, line.sum_u, line.sum_p, line.sum_uu, line.sum_up],
            "ranges": [list(pair) for pair in self._ranges],
            "stretch_s": self._stretch_s,
            "lowest_w": _told(self._lowest_w),
            "lowest_held_w": _told(self._lowest_held_w),
            "highest_w": self._highest_w,
            "power_limit_w": self._power_limit_w,
            "dropped": self._dropped,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], assumed_fraction: float = ASSUMED_FRACTION) -> Self:
        """Go on from ``to_state``; ValueError if it is anything else."""
        new = cls(assumed_fraction)
        try:
            for recent, saved in ((new._idle, state["idle_w"]), (new._held, state["held_w"])):
                for power_w in figures(saved):
                    recent.append(power_w)
            count, sum_u, sum_p, sum_uu, sum_up = figures(state["line"])
            new._line = _Line(count, sum_u, sum_p, sum_uu, sum_up)
            new._ranges.extend((low, high) for low, high in map(figures, state["ranges"]))
            new._stretch_s, new._highest_w = figures([state["stretch_s"], state["highest_w"]])
            new._lowest_w, new._lowest_held_w, limit_w = (
                math.inf if state[name] is None else figures([state[name]])[0]
                for name in ("lowest_w", "lowest_held_w", "power_limit_w")
            )
            new._power_limit_w = _told(limit_w)
            new._before = {None: None, False: False, True: True}[state["before"]]
            new._dropped = int(figures([state["dropped"]])[0])
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not the state of a baseline: {error!r}") from None
        return new


def figures(values: Iterable[Any], *, least: float = 0.0) -> list[float]:
    """Finite numbers out of saved state, none below ``least``; ValueError for anything else."""
    numbers = list(values)
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers):
        raise ValueError("not numbers")
    if not all(least <= number <= _LARGEST_FIGURE for number in numbers):
        raise ValueError("numbers that cannot be")
    return [float(number) for number in numbers]


def _credible(power_w: float, utilization: float | None, dt_s: float) -> bool:
    """Whether these figures can be true: comparisons with NaN are false. A GPU that is on draws something."""
    return (
        0 < power_w <= HIGHEST_POWER_W
        and (utilization is None or 0 <= utilization <= HIGHEST_UTILIZATION)
        and 0 < dt_s < math.inf
    )


def _told(figure: float) -> float | None:
    """A figure, if there is one yet."""
    return None if figure == math.inf else figure
