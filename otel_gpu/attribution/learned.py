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

Intervals that are skipped neither teach nor age what is known.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import Any, Final, Self

from otel_gpu.attribution.baseline import (
    CAPPED,
    HALF_LIFE_S,
    HIGHEST_POWER_W,
    HIGHEST_UTILIZATION,
    LONGEST_INTERVAL_S,
    figures,
)
from otel_gpu.model import ProcessKey

MIN_FACTOR: Final = 1 / 3
MAX_FACTOR: Final = 3.0
MAX_MODELLED: Final = 32
"""Processes with watts of their own, those with the most work; the others draw what is typical."""
MAX_TRACKED: Final = 2 * MAX_MODELLED
"""Processes whose sums are kept: room for a newcomer to overtake one that is modelled."""

_MIN_UTILIZATION: Final = 0.02
_MIN_SAMPLES: Final = 16.0
_MIN_INTERVAL_S: Final = 1e-3
_WARM_UP: Final = 12  # intervals predicted before the gate may open
_SPREAD: Final = 0.4  # of the typical watts: how much processes are expected to differ
_CURVATURE: Final = 0.2  # of the typical watts: how much a and q are expected to be
_FIRST_NOISE: Final = 0.15  # of the typical watts, until errors of prediction tell better
_LEAST_NOISE: Final = 0.02
_NOISE_PACE: Final = 0.03
_LEAST_RELIABILITY: Final = 0.3
_LEAST_COMMON: Final = 0.2  # of the typical watts
_LEAST_TYPICAL_W: Final = 1e-3
_MOST_TYPICAL_W: Final = HIGHEST_POWER_W / _MIN_UTILIZATION
_COMMON: Final = 3  # columns of the curve, before those of the processes: 1, U, U²


@dataclass(frozen=True, slots=True)
class _Fit:
    """Watts: per unit of share over all work, the curve without and with the δᵢ beside it, and the δᵢ.

    ``common_w`` is what the curve gives per unit of share at the usual utilisation: there it is known best.
    ``own_w`` predicts from shares as they are read; ``split_w`` is corrected for the noise in them.
    """

    typical_w: float
    common_w: float
    curve_alone_w: Sequence[float]
    curve_w: Sequence[float]
    own_w: Mapping[ProcessKey, float]
    split_w: Mapping[ProcessKey, float]


@dataclass(slots=True)
class _Pending:
    """Short intervals put together until they hold enough samples; shares and power as integrals over time."""

    dt_s: float = 0.0
    samples: float = 0.0
    energy_j: float = 0.0
    work_s: dict[ProcessKey, float] = field(default_factory=dict)


class LearnedPower:
    """What the processes of one GPU draw per unit of SM share, relative to one another."""

    __slots__ = (
        "_dropped",
        "_fit_or_none",
        "_gain",
        "_gain_squares",
        "_held_w",
        "_keys",
        "_noise",
        "_pending",
        "_power",
        "_predicted",
        "_products",
        "_variance",
    )

    def __init__(self) -> None:
        self._keys: list[ProcessKey] = []
        # Decayed sums over intervals of x·xᵀ (lower triangle), x·P and the sampling noise of each share,
        # where x = (1, U, U², s₁, s₂, …) with the processes in the order of their first work.
        self._products: list[list[float]] = [[0.0] * (row + 1) for row in range(_COMMON)]
        self._power: list[float] = [0.0] * _COMMON
        self._noise: list[float] = []
        self._gain = 0.0  # by how much the δᵢ reduced squared errors of prediction: sum, and sum of squares
        self._gain_squares = 0.0
        self._variance: float | None = None
        self._predicted = 0
        self._held_w = 0.0
        self._pending = _Pending()
        self._dropped = 0
        self._fit_or_none: _Fit | None = None

    @property
    def dropped(self) -> int:
        """Intervals refused because a figure could not be true."""
        return self._dropped

    @property
    def keys(self) -> frozenset[ProcessKey]:
        """The processes something is remembered of."""
        return frozenset(self._keys) | self._pending.work_s.keys()

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
    ) -> None:
        """Learn from one interval: mean SM shares (0 to 1), mean power, power held without work, driver samples."""
        if not _credible(shares, power_w, held_w, samples, dt_s):
            self._dropped += 1
            return
        if held_w != self._held_w:
            self._held_w, self._fit_or_none = held_w, None
        capped = power_limit_w is not None and 0 < CAPPED * power_limit_w <= power_w
        if capped or dt_s > LONGEST_INTERVAL_S:
            self._pending = _Pending()
        elif dt_s >= _MIN_INTERVAL_S:
            self._gather(shares, power_w, samples, dt_s)

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
        if pending.samples >= _MIN_SAMPLES and sum(means.values()) >= _MIN_UTILIZATION:
            power_w = pending.energy_j / pending.dt_s
            self._predict(means, power_w)
            self._learn(means, power_w, pending.samples, pending.dt_s)

    def _predict(self, shares: Mapping[ProcessKey, float], power_w: float) -> None:
        """Put what is known to the test on an interval that it has not seen."""
        fit = self._fit()
        if fit is None or self._variance is None:
            return
        common = _common_columns(sum(shares.values()))
        above_w = power_w - self._held_w
        plain = above_w - _dot(fit.curve_alone_w, common)
        own_w = sum(fit.own_w.get(key, 0.0) * share for key, share in shares.items())
        error = above_w - _dot(fit.curve_w, common) - own_w
        gain = plain * plain - error * error
        self._gain += gain
        self._gain_squares += gain * gain
        self._predicted += 1
        square = min(error * error, 9.0 * self._variance)  # one outlier must not close the gate for an hour
        variance = (1.0 - _NOISE_PACE) * self._variance + _NOISE_PACE * square
        self._variance = max(variance, (_LEAST_NOISE * fit.typical_w) ** 2)

    def _learn(self, shares: Mapping[ProcessKey, float], power_w: float, samples: float, dt_s: float) -> None:
        for key in sorted(shares.keys() - set(self._keys)):
            self._keys.append(key)
            self._products.append([0.0] * (len(self._power) + 1))
            self._power.append(0.0)
            self._noise.append(0.0)
        utilization = sum(shares.values())
        columns = [*_common_columns(utilization), *(shares.get(key, 0.0) for key in self._keys)]
        kept = 2.0 ** (-dt_s / HALF_LIFE_S)
        self._gain *= kept
        self._gain_squares *= kept
        for row, value in zip(self._products, columns, strict=True):
            row[:] = [kept * known + value * other for known, other in zip(row, columns, strict=False)]
        self._power = [kept * known + value * power_w for known, value in zip(self._power, columns, strict=True)]
        # A sample credits all work to one process: over n samples a share is a binomial estimate.
        self._noise = [
            kept * known + share * (utilization - share) / samples
            for known, share in zip(self._noise, columns[_COMMON:], strict=True)
        ]
        self._fit_or_none = None
        if len(self._keys) > MAX_TRACKED:
            self._remove(set(self._by_work()[MAX_TRACKED:]))
        fit = self._fit()
        if fit is not None and self._variance is None:
            self._variance = (_FIRST_NOISE * fit.typical_w) ** 2

    # ------------------------------------------------------------------------ least squares

    def _by_work(self) -> list[int]:
        """Places of the processes in ``_keys``, those with the most work first."""
        return sorted(range(len(self._keys)), key=lambda i: (-self._products[_COMMON + i][0], self._keys[i]))

    def _fit(self) -> _Fit | None:
        if self._fit_or_none is None:
            self._fit_or_none = self._solve()
        return self._fit_or_none

    def _solve(self) -> _Fit | None:
        """The watts that fit the sums; ``None`` while work seems to draw nothing beyond what is held."""
        utilization_squares = self._products[1][1]
        if min(self._products[1]) <= 0:
            return None
        typical_w = (self._power[1] - self._held_w * self._products[1][0]) / utilization_squares
        if not _LEAST_TYPICAL_W <= typical_w <= _MOST_TYPICAL_W:
            return None
        modelled = sorted(self._by_work()[:MAX_MODELLED])
        columns = [*range(_COMMON), *(_COMMON + i for i in modelled)]
        variance = (_FIRST_NOISE * typical_w) ** 2 if self._variance is None else self._variance
        ridge = [variance / (_CURVATURE * typical_w) ** 2] * _COMMON
        ridge += [variance / (_SPREAD * typical_w) ** 2] * len(modelled)
        matrix = [[self._products[i][j] for j in columns[: n + 1]] for n, i in enumerate(columns)]
        for n, penalty in enumerate(ridge):
            matrix[n][n] += penalty
        # What is sought is measured from held + typical·U, so that the ridge pulls towards that.
        rest = [self._power[i] - self._held_w * self._product(i, 0) - typical_w * self._product(i, 1) for i in columns]
        alone = solve_symmetric(matrix[:_COMMON], rest[:_COMMON])
        beside = solve_symmetric(matrix, rest)
        if alone is None or beside is None:
            return None
        curve_alone, curve = ([a, k + typical_w, q] for a, k, q in (alone, beside[:_COMMON]))
        own_w = {self._keys[i]: watts for i, watts in zip(modelled, beside[_COMMON:], strict=True)}
        split_w = {self._keys[i]: own_w[self._keys[i]] / self._reliability(i) for i in modelled}
        usual = utilization_squares / self._products[1][0]
        common_w = max(_dot(curve, _common_columns(usual)) / usual, _LEAST_COMMON * typical_w)
        return _Fit(typical_w, common_w, curve_alone, curve, own_w, split_w)

    def _product(self, i: int, j: int) -> float:
        return self._products[max(i, j)][min(i, j)]

    def _reliability(self, i: int) -> float:
        """Part of a share's variance that is not sampling noise: by so much least squares falls short.

        1 where it is too small to be told from noise.
        """
        row = self._products[_COMMON + i]
        spread = row[-1] - row[0] * row[0] / self._products[0][0] if row[0] > 0 else 0.0
        if self._noise[i] >= (1.0 - _LEAST_RELIABILITY) * spread:
            return 1.0
        return 1.0 - self._noise[i] / spread

    # ------------------------------------------------------------------------ how it ends

    def forget(self, keys: Collection[ProcessKey]) -> None:
        """Drop every trace of these processes but for what they teach about the others."""
        if not self._pending.work_s.keys().isdisjoint(keys):
            self._pending = _Pending()
        gone = {place for place, key in enumerate(self._keys) if key in keys}
        if gone:
            self._remove(gone)

    def _remove(self, places: Collection[int]) -> None:
        """Drop columns; first take out of the power what they drew beyond the typical, which stays in the sums."""
        fit, gate = self._fit(), self.gate
        for place in sorted(places):
            watts = 0.0 if fit is None else gate * fit.own_w.get(self._keys[place], 0.0)
            self._power = [p - watts * self._product(i, _COMMON + place) for i, p in enumerate(self._power)]
        columns = [*range(_COMMON), *(_COMMON + i for i in range(len(self._keys)) if i not in places)]
        self._products = [[self._products[i][j] for j in columns if j <= i] for i in columns]
        self._power = [self._power[i] for i in columns]
        self._noise = [noise for i, noise in enumerate(self._noise) if i not in places]
        self._keys = [key for i, key in enumerate(self._keys) if i not in places]
        self._fit_or_none = None

    # ------------------------------------------------------------------------ how it is kept

    def to_state(self) -> dict[str, Any]:
        """All it knows, as plain data."""
        pending = self._pending
        return {
            "keys": [list(key) for key in self._keys],
            "products": [list(row) for row in self._products],
            "power": list(self._power),
            "noise": list(self._noise),
            "gain": [self._gain, self._gain_squares],
            "variance": self._variance,
            "predicted": self._predicted,
            "held_w": self._held_w,
            "pending": [pending.dt_s, pending.samples, pending.energy_j],
            "pending_work_s": [[*key, work_s] for key, work_s in sorted(pending.work_s.items())],
            "dropped": self._dropped,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Go on from ``to_state``; ValueError if it is anything else."""
        new = cls()
        try:
            new._keys = [_key(pid, start) for pid, start in state["keys"]]
            new._products = [figures(row) for row in state["products"]]
            new._power = figures(state["power"], least=-math.inf)
            new._noise = figures(state["noise"])
            new._gain, new._gain_squares = figures(state["gain"], least=-math.inf)
            new._variance = None if state["variance"] is None else figures([state["variance"]])[0]
            new._predicted, new._dropped = map(int, figures([state["predicted"], state["dropped"]]))
            new._held_w = figures([state["held_w"]])[0]
            work = {_key(pid, start): figures([work_s])[0] for pid, start, work_s in state["pending_work_s"]}
            dt_s, samples, energy_j = figures(state["pending"])
            new._pending = _Pending(dt_s, samples, energy_j, work)
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not the state of learned power: {error!r}") from None
        sizes = [len(row) for row in new._products]
        if sizes != list(range(1, _COMMON + len(new._keys) + 1)) or len(set(new._keys)) < len(new._keys):
            raise ValueError("not the state of learned power: its parts do not fit together")
        if len(new._power) != len(sizes) or len(new._noise) != len(new._keys) or len(new._keys) > MAX_TRACKED:
            raise ValueError("not the state of learned power: its parts do not fit together")
        return new


def _key(pid: Any, start_ticks: Any) -> ProcessKey:
    if type(pid) is not int or type(start_ticks) is not int:
        raise TypeError("a process is two whole numbers")
    return ProcessKey(pid, start_ticks)


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


def _dot(first: Iterable[float], second: Iterable[float]) -> float:
    total: float = sum(map(mul, first, second))
    return total


def _common_columns(utilization: float) -> tuple[float, float, float]:
    return 1.0, utilization, utilization * utilization


def solve_symmetric(lower: Sequence[Sequence[float]], right: Sequence[float]) -> list[float] | None:
    """x of A·x = right by Cholesky, A given by its lower triangle; ``None`` unless A is positive definite."""
    factor: list[list[float]] = []
    solution: list[float] = []
    for n, row in enumerate(lower):
        new: list[float] = []
        for j in range(n):
            new.append((row[j] - _dot(new, factor[j])) / factor[j][j])
        pivot = row[n] - _dot(new, new)
        if not pivot > 1e-12 * row[n]:
            return None
        new.append(math.sqrt(pivot))
        factor.append(new)
        solution.append((right[n] - _dot(new, solution)) / new[n])
    for n in reversed(range(len(solution))):
        below = sum(factor[i][n] * solution[i] for i in range(n + 1, len(solution)))
        solution[n] = (solution[n] - below) / factor[n][n]
    return solution
