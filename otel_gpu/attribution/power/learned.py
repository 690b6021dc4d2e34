"""Watts per unit of SM share, learned per process: at the same share, two processes can differ threefold.

The model of an interval's mean power is ``P1 + h(U) + Σ δᵢ·sᵢ``: the context power P1, a curve h over the total share
U that is common to all processes, and what each process draws above that curve per unit of its share sᵢ. The δᵢ are
found by least squares where shares vary independently. A ridge pulls them to 0, so without such data energy is split
by share alone. The curve ``h(U) = a + k·U + q·U²`` is needed because power rises less than linearly and P1 is often
only estimated. Without ``a`` and ``q`` either error would be blamed on the process that tends to work alone.

The fit can be wrong: shares may move together, power may not be a sum, samples may be few. So every interval is first
predicted, with and without the δᵢ, and only then learned from. The weight of the δᵢ grows with how much better
they have predicted the energy counter than the curve alone. The split of an interval comes after learning from it,
because the interval is evidence too.

At the power limit all work draws less than it would without, by about the same factor. Where the SM clock is seen to
fall at the limit it shows that factor (``SmClock``), and the interval counts like any other: power per MHz is learned,
and the counter is predicted at the clock of that interval. Otherwise the power read is a lower bound of what the work
would draw. Such an interval counts only where the prediction was lower, with the power to be expected above the limit.
Leaving out all capped intervals would keep only the ones with little power of every process.

Intervals that are skipped neither change nor age what was learned.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from otel_gpu.attribution.power.baseline import (
    CAPPED_FRACTION,
    HALF_LIFE_S,
    HIGHEST_POWER_W,
    HIGHEST_UTILIZATION,
    LONGEST_INTERVAL_S,
)
from otel_gpu.attribution.power.regression import FIRST_NOISE, MAX_TRACKED, MIN_UTILIZATION, PowerFit, PowerRegression
from otel_gpu.attribution.saved_values import (
    amount,
    boolean,
    number,
    optional,
    parts,
    process_key_from,
    restoring,
    whole,
)
from otel_gpu.model import ProcessKey

MIN_FACTOR: Final = 1 / 3
MAX_FACTOR: Final = 3.0

_MIN_SAMPLES: Final = 16.0
_MIN_INTERVAL_S: Final = 1e-3
_WARM_UP: Final = 12  # predicted intervals before the gate may open; those with a lower bound of power do not count
_LEAST_NOISE: Final = 0.02  # fraction of the typical watts
_NOISE_RATE: Final = 0.03  # weight of the newest error in the variance of errors


LEAST_RATIO: Final = 0.3
"""Fraction of the reference clock: no GPU at work is slowed down further."""

_VARIES: Final = 0.98  # the lowest clock at the limit must be below this part of the reference
_HIGHEST_MHZ: Final = 10_000


@dataclass(slots=True)
class _Pending:
    """Short intervals, merged until they have enough samples; shares, power and clock as integrals over time."""

    capped: bool = False  # whether any of them was at the power limit
    dt_s: float = 0.0
    samples: float = 0.0
    energy_j: float = 0.0
    mean_mhz_s: float | None = 0.0  # None where the clock of any of them is unknown
    end_mhz_s: float = 0.0
    work_s: dict[ProcessKey, float] = field(default_factory=dict)

    def add(
        self, shares: Mapping[ProcessKey, float], power_w: float, clocks: Clocks | None, samples: float, dt_s: float
    ) -> None:
        """Add an interval."""
        self.dt_s += dt_s
        self.samples += samples
        self.energy_j += power_w * dt_s
        for key, share in shares.items():
            if share > 0:
                self.work_s[key] = self.work_s.get(key, 0.0) + share * dt_s
        if clocks is None or self.mean_mhz_s is None:
            self.mean_mhz_s = None
        else:
            self.mean_mhz_s += clocks.mean_mhz * dt_s
            self.end_mhz_s += clocks.end_mhz * dt_s


class LearnedPower:
    """Relative watts per unit of SM share of the processes of one GPU."""

    __slots__ = (
        "_clock",
        "_context_power_w",
        "_gain",
        "_gain_squares",
        "_pending",
        "_predicted",
        "_regression",
        "_variance",
    )

    def __init__(self) -> None:
        self._regression = PowerRegression()
        self._clock = SmClock()
        # By how much the δᵢ reduced squared errors of prediction: the sum, and the sum of squares.
        self._gain = 0.0
        self._gain_squares = 0.0
        self._variance: float | None = None  # of errors of prediction, in W²
        self._predicted = 0
        self._context_power_w = 0.0
        self._pending = _Pending()

    @property
    def gate(self) -> float:
        """Trust in what was learned, 0 to 1: its predictions must be better by more than chance.

        With z = Σ gain / √(Σ gain²), the gate opens from z = 1 and is fully open at z = 2.
        """
        if self._predicted < _WARM_UP or self._gain_squares <= 0:
            return 0.0
        return min(1.0, max(0.0, self._gain / math.sqrt(self._gain_squares) - 1.0))

    def factors(self, keys: Iterable[ProcessKey]) -> dict[ProcessKey, float]:
        """Weight of each process's SM share in the split of dynamic energy; 1.0 without better knowledge."""
        gate = self.gate
        fit = self._fit() if gate > 0 else None
        if fit is None:
            return dict.fromkeys(keys, 1.0)
        return {
            key: min(MAX_FACTOR, max(MIN_FACTOR, 1.0 + gate * fit.split_w.get(key, 0.0) / fit.common_w)) for key in keys
        }

    def _fit(self) -> PowerFit | None:
        return self._regression.solve(self._context_power_w, self._clock.reference_mhz, self._variance)

    # -- learning -------------------------------------------------------------------

    def observe(
        self,
        shares: Mapping[ProcessKey, float],
        *,
        power_w: float,
        power_limit_w: float | None,
        context_power_w: float,
        samples: float,
        dt_s: float,
        sm_clock_mhz: int | None = None,
    ) -> None:
        """Learn from one interval: mean SM shares (0 to 1), mean power, power without work, number of driver samples.

        ``sm_clock_mhz`` is the clock at its end.
        """
        if not _is_plausible(shares, power_w, context_power_w, samples, dt_s):
            return
        self._context_power_w = context_power_w
        if dt_s > LONGEST_INTERVAL_S:
            self._pending = _Pending()
        elif dt_s >= _MIN_INTERVAL_S:
            capped = power_limit_w is not None and 0 < CAPPED_FRACTION * power_limit_w <= power_w
            has_work = sum(shares.values()) >= MIN_UTILIZATION
            clocks = self._clock.observe(sm_clock_mhz if has_work else None, capped=capped, dt_s=dt_s)
            self._pending.capped |= capped
            self._pending.add(shares, power_w, clocks, samples, dt_s)
            if self._pending.samples >= _MIN_SAMPLES or self._pending.dt_s > LONGEST_INTERVAL_S:
                pending, self._pending = self._pending, _Pending()
                self._use(pending)

    def _use(self, pending: _Pending) -> None:
        """Predict a merged interval, then learn from it."""
        means = {key: pending.work_s[key] / pending.dt_s for key in sorted(pending.work_s)}
        if pending.samples < _MIN_SAMPLES or sum(means.values()) < MIN_UTILIZATION:
            return
        power_w = pending.energy_j / pending.dt_s
        if not pending.capped:
            self._predict(means, power_w)
            self._learn(means, pending, power_w=power_w)
        elif pending.mean_mhz_s is not None and self._clock.follows_limit:
            self._predict(means, power_w, self._clock.ratio(pending.end_mhz_s / pending.dt_s))
            clock_mhz = self._clock.ratio(pending.mean_mhz_s / pending.dt_s) * self._clock.reference_mhz
            self._learn(means, pending, per_mhz=(power_w - self._context_power_w) / clock_mhz)
        else:
            expected_w = self._predict_bound(means, power_w)
            if expected_w is not None:
                self._learn(means, pending, power_w=expected_w)

    def _predict(self, shares: Mapping[ProcessKey, float], power_w: float, ratio: float = 1.0) -> None:
        """Test the fit on an interval that it has not seen, at this ratio of the reference clock."""
        fit = self._fit()
        if fit is None or self._variance is None:
            return
        alone_w, beside_w = fit.predicted_w(shares)
        above_w = (power_w - self._context_power_w) / ratio
        alone_error, error = above_w - alone_w, above_w - beside_w
        self._add_gain(ratio * alone_error, ratio * error)
        self._predicted += 1
        square = min(error * error, 9.0 * self._variance)  # a single outlier must not close the gate for an hour
        variance = (1.0 - _NOISE_RATE) * self._variance + _NOISE_RATE * square
        self._variance = max(variance, (_LEAST_NOISE * fit.typical_w) ** 2)

    def _predict_bound(self, shares: Mapping[ProcessKey, float], power_w: float) -> float | None:
        """Test the fit where the power is a lower bound; the power to learn, ``None`` if the interval shows nothing."""
        fit = self._fit()
        if fit is None or self._variance is None:
            return None
        alone_w, beside_w = fit.predicted_w(shares)
        above_w = power_w - self._context_power_w
        # A prediction above the bound is not an error.
        alone_error, error = max(0.0, above_w - alone_w), max(0.0, above_w - beside_w)
        self._add_gain(alone_error, error)
        if error <= 0:
            return None
        # The mean of a normal distribution above the limit (Sampford's bound on Mills' ratio, 1953).
        return power_w + (math.sqrt(error * error + 8.0 * self._variance) - error) / 4.0

    def _add_gain(self, alone_error: float, error: float) -> None:
        """Add the errors of predicting the counter without the δᵢ, and with them."""
        gain = alone_error * alone_error - error * error
        self._gain += gain
        self._gain_squares += gain * gain

    def _learn(
        self,
        shares: Mapping[ProcessKey, float],
        pending: _Pending,
        *,
        power_w: float = 0.0,
        per_mhz: float | None = None,
    ) -> None:
        kept = 2.0 ** (-pending.dt_s / HALF_LIFE_S)
        self._gain *= kept
        self._gain_squares *= kept
        self._regression.add(shares, pending.samples, kept=kept, power_w=power_w, per_mhz=per_mhz)
        if least_busy := self._regression.by_work()[MAX_TRACKED:]:
            self._remove(least_busy)
        if self._variance is None and (fit := self._fit()) is not None:
            self._variance = (FIRST_NOISE * fit.typical_w) ** 2

    def forget(self, keys: Collection[ProcessKey]) -> None:
        """Drop processes that have ended. What was learned about the others stays."""
        if not self._pending.work_s.keys().isdisjoint(keys):
            self._pending = _Pending()
        if places := {place for place, key in enumerate(self._regression.keys) if key in keys}:
            self._remove(places)

    def _remove(self, places: Collection[int]) -> None:
        fit, gate = self._fit(), self.gate
        self._regression.remove(places, {} if fit is None else {key: gate * watts for key, watts in fit.own_w.items()})

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Everything, as plain data."""
        pending = self._pending
        return {
            **self._regression.to_state(),
            "clock": self._clock.to_state(),
            "gain": [self._gain, self._gain_squares],
            "variance": self._variance,
            "predicted": self._predicted,
            "held_w": self._context_power_w,
            "pending": [pending.dt_s, pending.samples, pending.energy_j],
            "pending_capped": pending.capped,
            "pending_mhz_s": None if pending.mean_mhz_s is None else [pending.mean_mhz_s, pending.end_mhz_s],
            "pending_work_s": [[*key, work_s] for key, work_s in sorted(pending.work_s.items())],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Restore what ``to_state`` returned; ValueError for anything else."""
        restored = cls()
        with restoring("learned power"):
            restored._regression = PowerRegression.from_state(state)
            restored._clock = SmClock.from_state(state["clock"])
            restored._gain, restored._gain_squares = map(number, state["gain"])
            restored._variance = optional(amount, state["variance"])
            restored._predicted = whole(state["predicted"])
            restored._context_power_w = amount(state["held_w"])
            pending = restored._pending = _Pending(boolean(state["pending_capped"]))
            pending.dt_s, pending.samples, pending.energy_j = map(amount, parts(state["pending"], 3))
            pending.work_s = {process_key_from(key): amount(work_s) for *key, work_s in state["pending_work_s"]}
            pending.mean_mhz_s = None
            if state["pending_mhz_s"] is not None:
                pending.mean_mhz_s, pending.end_mhz_s = map(amount, parts(state["pending_mhz_s"], 2))
        return restored


def _is_plausible(
    shares: Mapping[ProcessKey, float], power_w: float, context_power_w: float, samples: float, dt_s: float
) -> bool:
    """Whether the figures of an interval can be true. NaN fails every comparison."""
    return (
        0 < power_w <= HIGHEST_POWER_W
        and 0 <= context_power_w <= HIGHEST_POWER_W
        and 0 <= samples < math.inf
        and 0 <= dt_s < math.inf
        and all(0 <= share <= HIGHEST_UTILIZATION for share in shares.values())
        and math.fsum(shares.values()) <= HIGHEST_UTILIZATION
    )


# ---------------------------------------------------------------------------- the power limit


class Clocks(NamedTuple):
    """SM clock of an interval, in MHz: its mean, and the clock at its end."""

    mean_mhz: float
    end_mhz: float


class SmClock:
    """SM clock of one GPU: how far the power limit slows it down.

    At the limit power is constant and does not show which process draws more; the clock does. Dynamic power is
    f·V², and V falls with f or stays the same: at a clock lower by some factor, work draws less by at least that
    factor. So power divided by the ratio of the clock to the clock under free load is the least that the same work
    would draw there. Where power falls faster than the clock, differences between processes come out too small,
    never too large.

    A clock is read at one instant. The clock of an interval is the mean of those at its ends, as a ratio to the
    highest clock that was seen under load lately. A clock below 0.3 of that is of a GPU that happened to be idle at
    that instant. A clock that never varies at the limit is either not the one that the limit lowers, or not updated
    by the driver.

    Predictions are tested with the clock at the end of an interval alone. The clock at its beginning was learned
    from before, and an error in it must not count as a correct prediction.
    """

    __slots__ = ("_before_mhz", "_highest_mhz", "_lowest_mhz", "_stretch_s")

    def __init__(self) -> None:
        self._before_mhz: float | None = None
        # The highest clock under load and the lowest at the power limit, in this stretch of time and the one before.
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
