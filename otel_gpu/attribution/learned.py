"""Watts per unit of SM share, learned per process: at the same share, two processes can differ threefold.

The mean power of an interval is taken as ``held + h(U) + Σ δᵢ·sᵢ``: what contexts hold without work, a curve of
the total share U common to everybody, and what each process draws beyond it per unit of its share sᵢ. Shares that
vary against one another let the δᵢ be found by least squares; a ridge pulls them to 0, so that what the data does
not tell stays at the plain split by share. The curve ``h(U) = a + k·U + q·U²`` is there because power rises less
than linearly and the held power is often only estimated: without ``a`` and ``q``, whoever tends to work alone
would be blamed for either.

It can still be wrong: shares that move together, power that is no sum, samples that say little. So every interval
is first predicted, with the δᵢ and without, and only then learned from; the δᵢ count as far as they have predicted
the energy counter better. That test is honest because it comes first. The split itself comes after learning, since
the interval at hand is evidence too.

At the power limit all work draws less than it would, taken to be by the same factor. Where the SM clock was seen to
follow, it tells that factor (``learned_clock``), and the interval counts like any other: power per MHz is learned from,
and the counter is predicted at the clock it ran at. Otherwise the power read is the least the work would draw. Such an
interval counts only where less was predicted, as what is then to be expected above the limit. To leave out all of them
would be to see only the cheap moments of everybody.

Intervals that are skipped neither teach nor age what is known.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from otel_gpu.attribution.baseline import (
    CAPPED,
    HALF_LIFE_S,
    HIGHEST_POWER_W,
    HIGHEST_UTILIZATION,
    LONGEST_INTERVAL_S,
    figures,
)
from otel_gpu.attribution.learned_clock import SmClock
from otel_gpu.attribution.learned_sums import FIRST_NOISE, MIN_UTILIZATION, Fit, PowerSums, key_from
from otel_gpu.model import ProcessKey

MIN_FACTOR: Final = 1 / 3
MAX_FACTOR: Final = 3.0

_MIN_SAMPLES: Final = 16.0
_MIN_INTERVAL_S: Final = 1e-3
_WARM_UP: Final = 12  # intervals that refute both ways, predicted before the gate may open
_LEAST_NOISE: Final = 0.02  # of the typical watts
_NOISE_PACE: Final = 0.03


@dataclass(slots=True)
class _Pending:
    """Short intervals put together until they hold enough samples; shares, power and clock as integrals over time."""

    capped: bool = False  # whether the power limit held any of them back
    dt_s: float = 0.0
    samples: float = 0.0
    energy_j: float = 0.0
    mean_mhz_s: float | None = 0.0  # None where the clock of any is not known
    end_mhz_s: float = 0.0
    work_s: dict[ProcessKey, float] = field(default_factory=dict)


class LearnedPower:
    """What the processes of one GPU draw per unit of SM share, relative to one another."""

    __slots__ = (
        "_clock",
        "_dropped",
        "_fit_or_none",
        "_gain",
        "_gain_squares",
        "_held_w",
        "_pending",
        "_predicted",
        "_sums",
        "_variance",
    )

    def __init__(self) -> None:
        self._sums = PowerSums()
        self._clock = SmClock()
        self._gain = 0.0  # by how much the δᵢ reduced squared errors of prediction: sum, and sum of squares
        self._gain_squares = 0.0
        self._variance: float | None = None
        self._predicted = 0
        self._held_w = 0.0
        self._pending = _Pending()
        self._dropped = 0
        self._fit_or_none: Fit | None = None

    @property
    def dropped(self) -> int:
        """Intervals refused because a figure could not be true."""
        return self._dropped

    @property
    def keys(self) -> frozenset[ProcessKey]:
        """The processes something is remembered of."""
        return frozenset(self._sums.keys) | self._pending.work_s.keys()

    # ------------------------------------------------------------------------ what is known

    @property
    def gate(self) -> float:
        """How far what was learned is trusted, 0 to 1: it must have predicted better, and not by chance."""
        if self._predicted < _WARM_UP or self._gain_squares <= 0:
            return 0.0
        return min(1.0, max(0.0, self._gain / math.sqrt(self._gain_squares) - 1.0))

    def factors(self, keys: Iterable[ProcessKey]) -> dict[ProcessKey, float]:
        """Weight of each process's SM share in the split of dynamic energy; 1.0 where nothing better is known."""
        fit, gate = self._fit(), self.gate
        if fit is None or gate <= 0:
            return dict.fromkeys(keys, 1.0)
        return {
            key: min(MAX_FACTOR, max(MIN_FACTOR, 1.0 + gate * fit.split_w.get(key, 0.0) / fit.common_w)) for key in keys
        }

    def _fit(self) -> Fit | None:
        if self._fit_or_none is None:
            self._fit_or_none = self._sums.solve(self._held_w, self._clock.reference_mhz, self._variance)
        return self._fit_or_none

    # ------------------------------------------------------------------------ what it learns from

    def observe(
        self,
        shares: Mapping[ProcessKey, float],
        *,
        power_w: float,
        power_limit_w: float | None,
        held_w: float,
        samples: float,
        dt_s: float,
        sm_clock_mhz: int | None = None,
    ) -> None:
        """Learn from one interval: mean SM shares (0 to 1), mean power, power held without work, driver samples.

        ``sm_clock_mhz`` is the clock at its end.
        """
        if not _credible(shares, power_w, held_w, samples, dt_s):
            self._dropped += 1
            return
        if held_w != self._held_w:
            self._held_w, self._fit_or_none = held_w, None
        if dt_s > LONGEST_INTERVAL_S:
            self._pending = _Pending()
        elif dt_s >= _MIN_INTERVAL_S:
            capped = power_limit_w is not None and 0 < CAPPED * power_limit_w <= power_w
            self._pending.capped |= capped
            self._watch_clock(sm_clock_mhz if sum(shares.values()) >= MIN_UTILIZATION else None, dt_s, capped=capped)
            self._gather(shares, power_w, samples, dt_s)

    def _watch_clock(self, clock_mhz: int | None, dt_s: float, *, capped: bool) -> None:
        pending, reference_mhz = self._pending, self._clock.reference_mhz
        clocks = self._clock.observe(clock_mhz, capped=capped, dt_s=dt_s)
        if self._clock.reference_mhz != reference_mhz:
            self._fit_or_none = None
        if clocks is None or pending.mean_mhz_s is None:
            pending.mean_mhz_s = None
        else:
            pending.mean_mhz_s += clocks.mean_mhz * dt_s
            pending.end_mhz_s += clocks.end_mhz * dt_s

    def _gather(self, shares: Mapping[ProcessKey, float], power_w: float, samples: float, dt_s: float) -> None:
        pending = self._pending
        pending.dt_s += dt_s
        pending.samples += samples
        pending.energy_j += power_w * dt_s
        for key, share in shares.items():
            if share > 0:
                pending.work_s[key] = pending.work_s.get(key, 0.0) + share * dt_s
        if pending.samples < _MIN_SAMPLES and pending.dt_s <= LONGEST_INTERVAL_S:
            return
        self._pending = _Pending()
        means = {key: pending.work_s[key] / pending.dt_s for key in sorted(pending.work_s)}
        if pending.samples < _MIN_SAMPLES or sum(means.values()) < MIN_UTILIZATION:
            return
        power_w = pending.energy_j / pending.dt_s
        if not pending.capped:
            self._predict(means, power_w)
            self._learn(means, pending, power_w=power_w)
        elif pending.mean_mhz_s is not None and self._clock.tells:
            self._predict(means, power_w, self._clock.ratio(pending.end_mhz_s / pending.dt_s))
            clock_mhz = self._clock.ratio(pending.mean_mhz_s / pending.dt_s) * self._clock.reference_mhz
            self._learn(means, pending, per_mhz=(power_w - self._held_w) / clock_mhz)
        else:
            wanted_w = self._expect(means, power_w)
            if wanted_w is not None:
                self._learn(means, pending, power_w=wanted_w)

    def _predict(self, shares: Mapping[ProcessKey, float], power_w: float, ratio: float = 1.0) -> None:
        """Put what is known to the test on an interval that it has not seen, at this ratio of the reference clock."""
        fit = self._fit()
        if fit is None or self._variance is None:
            return
        alone_w, beside_w = fit.predicted_w(shares)
        above_w = (power_w - self._held_w) / ratio
        plain, error = above_w - alone_w, above_w - beside_w
        self._weigh(ratio * plain, ratio * error)
        self._predicted += 1
        square = min(error * error, 9.0 * self._variance)  # one outlier must not close the gate for an hour
        variance = (1.0 - _NOISE_PACE) * self._variance + _NOISE_PACE * square
        self._variance = max(variance, (_LEAST_NOISE * fit.typical_w) ** 2)

    def _expect(self, shares: Mapping[ProcessKey, float], power_w: float) -> float | None:
        """The same where the power is only the least it would be; the power to learn from it, if any."""
        fit = self._fit()
        if fit is None or self._variance is None:
            return None
        alone_w, beside_w = fit.predicted_w(shares)
        above_w = power_w - self._held_w
        plain, error = max(0.0, above_w - alone_w), max(0.0, above_w - beside_w)  # to predict more is no error
        self._weigh(plain, error)
        # The mean of what a normal distribution has above the limit (Sampford's bound on Mills' ratio, 1953).
        return power_w + (math.sqrt(error * error + 8.0 * self._variance) - error) / 4.0 if error > 0 else None

    def _weigh(self, plain: float, error: float) -> None:
        """Count errors of predicting the counter without the δᵢ, and with them."""
        gain = plain * plain - error * error
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
        self._sums.add(shares, pending.samples, kept=kept, power_w=power_w, per_mhz=per_mhz)
        self._fit_or_none = None
        if excess := self._sums.least_busy():
            self._remove(excess)
        if self._variance is None and (fit := self._fit()) is not None:
            self._variance = (FIRST_NOISE * fit.typical_w) ** 2

    # ------------------------------------------------------------------------ how it ends

    def forget(self, keys: Collection[ProcessKey]) -> None:
        """Drop every trace of these processes but for what they teach about the others."""
        if not self._pending.work_s.keys().isdisjoint(keys):
            self._pending = _Pending()
        if gone := {place for place, key in enumerate(self._sums.keys) if key in keys}:
            self._remove(gone)

    def _remove(self, places: Collection[int]) -> None:
        fit, gate = self._fit(), self.gate
        self._sums.remove(places, {} if fit is None else {key: gate * watts for key, watts in fit.own_w.items()})
        self._fit_or_none = None

    # ------------------------------------------------------------------------ how it is kept

    def to_state(self) -> dict[str, Any]:
        """All it knows, as plain data."""
        pending = self._pending
        return {
            **self._sums.to_state(),
            "clock": self._clock.to_state(),
            "gain": [self._gain, self._gain_squares],
            "variance": self._variance,
            "predicted": self._predicted,
            "held_w": self._held_w,
            "pending": [pending.dt_s, pending.samples, pending.energy_j],
            "pending_capped": pending.capped,
            "pending_mhz_s": None if pending.mean_mhz_s is None else [pending.mean_mhz_s, pending.end_mhz_s],
            "pending_work_s": [[*key, work_s] for key, work_s in sorted(pending.work_s.items())],
            "dropped": self._dropped,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Go on from ``to_state``; ValueError if it is anything else."""
        new = cls()
        try:
            new._sums = PowerSums.from_state(state)
            new._clock = SmClock.from_state(state["clock"])
            new._gain, new._gain_squares = figures(state["gain"], least=-math.inf)
            new._variance = None if state["variance"] is None else figures([state["variance"]])[0]
            new._predicted, new._dropped = map(int, figures([state["predicted"], state["dropped"]]))
            new._held_w = figures([state["held_w"]])[0]
            work = {key_from(pid, start): figures([work_s])[0] for pid, start, work_s in state["pending_work_s"]}
            dt_s, samples, energy_j = figures(state["pending"])
            capped = {False: False, True: True}[state["pending_capped"]]
            new._pending = _Pending(capped, dt_s, samples, energy_j, None, 0.0, work)
            if state["pending_mhz_s"] is not None:
                new._pending.mean_mhz_s, new._pending.end_mhz_s = figures(state["pending_mhz_s"])
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not the state of learned power: {error!r}") from None
        return new


def _credible(shares: Mapping[ProcessKey, float], power_w: float, held_w: float, samples: float, dt_s: float) -> bool:
    """Whether these figures can be true: comparisons with NaN are false."""
    return (
        0 < power_w <= HIGHEST_POWER_W
        and 0 <= held_w <= HIGHEST_POWER_W
        and 0 <= samples < math.inf
        and 0 <= dt_s < math.inf
        and all(0 <= share <= HIGHEST_UTILIZATION for share in shares.values())
        and math.fsum(shares.values()) <= HIGHEST_UTILIZATION
    )
