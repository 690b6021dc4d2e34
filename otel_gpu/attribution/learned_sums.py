"""Decayed sums of intervals, and the watts that fit them by least squares.

The columns of an interval are (1, U, U², s₁, s₂, …): a curve of the total SM share U common to everybody, and each
process's own share. What was held without work, and the clock that held-back power is referred to, enter only when the
sums are solved: a better estimate of either later does not find the sums poisoned.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any, Final, Self

from otel_gpu.attribution.baseline import HIGHEST_POWER_W, figures
from otel_gpu.model import ProcessKey

MIN_UTILIZATION: Final = 0.02
MAX_MODELLED: Final = 32
"""Processes with watts of their own, those with the most work; the others draw what is typical."""
MAX_TRACKED: Final = 2 * MAX_MODELLED
"""Processes whose sums are kept: room for a newcomer to overtake one that is modelled."""
FIRST_NOISE: Final = 0.15
"""Of the typical watts: errors of prediction, until they tell better."""

_SPREAD: Final = 0.4  # of the typical watts: how much processes are expected to differ
_CURVATURE: Final = 0.2  # of the typical watts: how much a and q are expected to be
_LEAST_RELIABILITY: Final = 0.3
_LEAST_COMMON: Final = 0.2  # of the typical watts
_LEAST_TYPICAL_W: Final = 1e-3
_MOST_TYPICAL_W: Final = HIGHEST_POWER_W / MIN_UTILIZATION
_COMMON: Final = 3  # columns of the curve, before those of the processes: 1, U, U²


@dataclass(frozen=True, slots=True)
class Fit:
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

    def predicted_w(self, shares: Mapping[ProcessKey, float]) -> tuple[float, float]:
        """Power above what is held that such work draws: without the δᵢ, and with them."""
        common = _common_columns(sum(shares.values()))
        own_w = sum(self.own_w.get(key, 0.0) * share for key, share in shares.items())
        return _dot(self.curve_alone_w, common), _dot(self.curve_w, common) + own_w


class PowerSums:
    """Sums over the intervals of one GPU, with a column for each of its processes."""

    __slots__ = ("_free", "_noise", "_per_mhz", "_power", "_products", "keys")

    def __init__(self) -> None:
        self.keys: list[ProcessKey] = []
        # Of x·xᵀ (lower triangle), where x are the columns, processes in the order of their first work. Of x·P and x
        # over the intervals whose power P counts as it is, and of x·(P - held)/clock over those that were held back.
        self._products: list[list[float]] = [[0.0] * (row + 1) for row in range(_COMMON)]
        self._power: list[float] = [0.0] * _COMMON
        self._free: list[float] = [0.0] * _COMMON
        self._per_mhz: list[float] = [0.0] * _COMMON
        self._noise: list[float] = []  # sampling noise of each share

    def add(
        self,
        shares: Mapping[ProcessKey, float],
        samples: float,
        *,
        kept: float,
        power_w: float = 0.0,
        per_mhz: float | None = None,
    ) -> None:
        """Count an interval by its power, or by its watts above the held ones per MHz; age all others by ``kept``."""
        for key in sorted(shares.keys() - set(self.keys)):
            self.keys.append(key)
            self._products.append([0.0] * (len(self._power) + 1))
            for sums in (self._power, self._free, self._per_mhz, self._noise):
                sums.append(0.0)
        utilization = sum(shares.values())
        columns = [*_common_columns(utilization), *(shares.get(key, 0.0) for key in self.keys)]
        for row, value in zip(self._products, columns, strict=True):
            row[:] = [kept * known + value * other for known, other in zip(row, columns, strict=False)]
        free = float(per_mhz is None)
        self._power = _aged(self._power, kept, columns, free * power_w)
        self._free = _aged(self._free, kept, columns, free)
        self._per_mhz = _aged(self._per_mhz, kept, columns, per_mhz or 0.0)
        # A sample credits all work to one process: over n samples a share is a binomial estimate.
        self._noise = [
            kept * known + share * (utilization - share) / samples
            for known, share in zip(self._noise, columns[_COMMON:], strict=True)
        ]

    def least_busy(self) -> set[int]:
        """Places of the processes that are too many to be kept."""
        return set(self._by_work()[MAX_TRACKED:]) if len(self.keys) > MAX_TRACKED else set()

    def _by_work(self) -> list[int]:
        """Places of the processes in ``keys``, those with the most work first."""
        return sorted(range(len(self.keys)), key=lambda i: (-self._products[_COMMON + i][0], self.keys[i]))

    # ------------------------------------------------------------------------ least squares

    def solve(self, held_w: float, reference_mhz: float, variance: float | None) -> Fit | None:
        """The watts that fit the sums; ``None`` while work seems to draw nothing beyond what is held.

        ``variance`` is that of errors of prediction, in W².
        """
        utilization_squares = self._products[1][1]
        if min(self._products[1]) <= 0:
            return None
        drawn = [
            power - held_w * free + reference_mhz * per_mhz
            for power, free, per_mhz in zip(self._power, self._free, self._per_mhz, strict=True)
        ]
        typical_w = drawn[1] / utilization_squares
        if not _LEAST_TYPICAL_W <= typical_w <= _MOST_TYPICAL_W:
            return None
        everybody = range(len(self.keys))
        modelled = everybody if len(everybody) <= MAX_MODELLED else sorted(self._by_work()[:MAX_MODELLED])
        columns = [*range(_COMMON), *(_COMMON + i for i in modelled)]
        variance = (FIRST_NOISE * typical_w) ** 2 if variance is None else variance
        ridge = [variance / (_CURVATURE * typical_w) ** 2] * _COMMON
        ridge += [variance / (_SPREAD * typical_w) ** 2] * len(modelled)
        matrix = [[self._products[i][j] for j in columns[: n + 1]] for n, i in enumerate(columns)]
        for n, penalty in enumerate(ridge):
            matrix[n][n] += penalty
        # What is sought is measured from held + typical·U, so that the ridge pulls towards that.
        rest = [drawn[i] - typical_w * self._product(i, 1) for i in columns]
        factored = _factored(matrix, rest)
        if factored is None:
            return None
        alone, beside = _solved(*factored, _COMMON), _solved(*factored, len(columns))
        curve_alone, curve = ([a, k + typical_w, q] for a, k, q in (alone, beside[:_COMMON]))
        own_w = {self.keys[i]: watts for i, watts in zip(modelled, beside[_COMMON:], strict=True)}
        split_w = {self.keys[i]: own_w[self.keys[i]] / self._reliability(i) for i in modelled}
        usual = utilization_squares / self._products[1][0]
        common_w = max(_dot(curve, _common_columns(usual)) / usual, _LEAST_COMMON * typical_w)
        return Fit(typical_w, common_w, curve_alone, curve, own_w, split_w)

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

    def remove(self, places: Collection[int], own_w: Mapping[ProcessKey, float]) -> None:
        """Drop columns; first take out of the power what they drew beyond the typical, which stays in the sums."""
        for place in sorted(places):
            watts = own_w.get(self.keys[place], 0.0)
            self._power = [p - watts * self._product(i, _COMMON + place) for i, p in enumerate(self._power)]
        columns = [*range(_COMMON), *(_COMMON + i for i in range(len(self.keys)) if i not in places)]
        self._products = [[self._products[i][j] for j in columns if j <= i] for i in columns]
        self._power = [self._power[i] for i in columns]
        self._free = [self._free[i] for i in columns]
        self._per_mhz = [self._per_mhz[i] for i in columns]
        self._noise = [noise for i, noise in enumerate(self._noise) if i not in places]
        self.keys = [key for i, key in enumerate(self.keys) if i not in places]

    # ------------------------------------------------------------------------ how it is kept

    def to_state(self) -> dict[str, Any]:
        """All sums, as plain data."""
        return {
            "keys": [list(key) for key in self.keys],
            "products": [list(row) for row in self._products],
            "power": list(self._power),
            "free": list(self._free),
            "per_mhz": list(self._per_mhz),
            "noise": list(self._noise),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The counterpart of ``to_state``; raises on anything else."""
        new = cls()
        new.keys = [key_from(pid, start) for pid, start in state["keys"]]
        new._products = [figures(row) for row in state["products"]]
        new._power = figures(state["power"], least=-math.inf)
        new._free = figures(state["free"])
        new._per_mhz = figures(state["per_mhz"], least=-math.inf)
        new._noise = figures(state["noise"])
        sizes = [len(row) for row in new._products]
        fit = sizes == list(range(1, _COMMON + len(new.keys) + 1)) and len(new._noise) == len(new.keys)
        vectors = (new._power, new._free, new._per_mhz)
        if not fit or any(len(sums) != len(sizes) for sums in vectors):
            raise ValueError("not the state of learned power: its parts do not fit together")
        if len(set(new.keys)) < len(new.keys) or len(new.keys) > MAX_TRACKED:
            raise ValueError("not the state of learned power: processes twice, or too many")
        return new


def key_from(pid: Any, start_ticks: Any) -> ProcessKey:
    """A process as saved; TypeError if it is none."""
    if type(pid) is not int or type(start_ticks) is not int:
        raise TypeError("a process is two whole numbers")
    return ProcessKey(pid, start_ticks)


def _aged(sums: Sequence[float], kept: float, columns: Sequence[float], value: float) -> list[float]:
    return [kept * known + column * value for known, column in zip(sums, columns, strict=True)]


def _dot(first: Iterable[float], second: Iterable[float]) -> float:
    total: float = sum(map(mul, first, second))
    return total


def _common_columns(utilization: float) -> tuple[float, float, float]:
    return 1.0, utilization, utilization * utilization


def solve_symmetric(lower: Sequence[Sequence[float]], right: Sequence[float]) -> list[float] | None:
    """x of A·x = right by Cholesky, A given by its lower triangle; ``None`` unless A is positive definite."""
    factored = _factored(lower, right)
    return None if factored is None else _solved(*factored, len(lower))


def _factored(lower: Sequence[Sequence[float]], right: Sequence[float]) -> tuple[list[list[float]], list[float]] | None:
    """L of A = L·Lᵀ, and y of L·y = right. What both begin with is that of the A and right that theirs begin with."""
    factor: list[list[float]] = []
    halfway: list[float] = []
    for n, row in enumerate(lower):
        new: list[float] = []
        for j in range(n):
            new.append((row[j] - sum(map(mul, new, factor[j]))) / factor[j][j])
        pivot = row[n] - _dot(new, new)
        if not pivot > 1e-12 * row[n]:
            return None
        new.append(math.sqrt(pivot))
        factor.append(new)
        halfway.append((right[n] - _dot(new, halfway)) / new[n])
    return factor, halfway


def _solved(factor: Sequence[Sequence[float]], halfway: Sequence[float], count: int) -> list[float]:
    """x of Lᵀ·x = y, of the first so many."""
    solution = list(halfway[:count])
    for n in reversed(range(count)):
        below = sum([factor[i][n] * solution[i] for i in range(n + 1, count)])
        solution[n] = (solution[n] - below) / factor[n][n]
    return solution
