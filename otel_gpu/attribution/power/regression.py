"""Least-squares fit of a GPU's power to the SM shares of its processes.

The columns of an interval are (1, U, U², s₁, s₂, …): a curve over the total SM share U that is common to all
processes, and the share sᵢ of each process. Only decayed sums are kept. The context power and the reference clock
enter when the sums are solved, so a better estimate of either applies to all earlier intervals too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any, Final, Self

from otel_gpu.attribution.power.baseline import HIGHEST_POWER_W
from otel_gpu.attribution.saved_values import amount, number, process_key_from
from otel_gpu.model import ProcessKey

MIN_UTILIZATION: Final = 0.02
MAX_MODELLED: Final = 32
"""Maximum number of processes with watts of their own, those with the most work. Others draw the typical watts."""
MAX_TRACKED: Final = 2 * MAX_MODELLED
"""Maximum number of processes whose sums are kept: a new process can overtake one that is modelled."""
FIRST_NOISE: Final = 0.15
"""Initial error of prediction, as a fraction of the typical watts."""

_SPREAD: Final = 0.4  # expected difference between processes, as a fraction of the typical watts
_CURVATURE: Final = 0.2  # expected size of a and q, as a fraction of the typical watts
_LEAST_RELIABILITY: Final = 0.3
_LEAST_COMMON: Final = 0.2  # fraction of the typical watts
_LEAST_TYPICAL_W: Final = 1e-3
_MOST_TYPICAL_W: Final = HIGHEST_POWER_W / MIN_UTILIZATION
_COMMON: Final = 3  # columns of the curve, before the columns of the processes: 1, U, U²


@dataclass(frozen=True, slots=True)
class PowerFit:
    """Result of a fit, in watts per unit of SM share.

    ``typical_w`` is the value for all work together. ``curve_alone_w`` are the coefficients (a, k, q) of the curve
    fitted without the δᵢ, ``curve_w`` with them. ``common_w`` is the curve per unit of share at the usual utilisation,
    where it is known best. ``own_w`` are the δᵢ that predict power from shares as read; ``split_w`` are the δᵢ
    corrected for the sampling noise of the shares.
    """

    typical_w: float
    common_w: float
    curve_alone_w: Sequence[float]
    curve_w: Sequence[float]
    own_w: Mapping[ProcessKey, float]
    split_w: Mapping[ProcessKey, float]

    def predicted_w(self, shares: Mapping[ProcessKey, float]) -> tuple[float, float]:
        """Predicted power above the context power for such work: without the δᵢ, and with them."""
        common = _common_columns(sum(shares.values()))
        own_w = sum(self.own_w.get(key, 0.0) * share for key, share in shares.items())
        return _dot(self.curve_alone_w, common), _dot(self.curve_w, common) + own_w


class PowerRegression:
    """Decayed sums over the intervals of one GPU, with a column for each of its processes."""

    __slots__ = ("_noise", "_per_mhz", "_power", "_products", "_uncapped", "keys")

    def __init__(self) -> None:
        self.keys: list[ProcessKey] = []  # in the order of their first work
        # With x the columns of an interval and P its power: sums of x·xᵀ (lower triangle); of x·P and of x over the
        # intervals whose power counts as read; of x·(P - context power)/clock over those that the limit slowed down.
        self._products: list[list[float]] = [[0.0] * (row + 1) for row in range(_COMMON)]
        self._power: list[float] = [0.0] * _COMMON
        self._uncapped: list[float] = [0.0] * _COMMON
        self._per_mhz: list[float] = [0.0] * _COMMON
        self._noise: list[float] = []  # sampling variance of each share

    def add(
        self,
        shares: Mapping[ProcessKey, float],
        samples: float,
        *,
        kept: float,
        power_w: float = 0.0,
        per_mhz: float | None = None,
    ) -> None:
        """Add an interval; the weight of earlier ones is multiplied by ``kept``.

        Its power counts as ``power_w``, or as ``per_mhz``: watts above the context power per MHz of SM clock.
        """
        for key in sorted(shares.keys() - set(self.keys)):
            self.keys.append(key)
            self._products.append([0.0] * (len(self._power) + 1))
            for sums in (self._power, self._uncapped, self._per_mhz, self._noise):
                sums.append(0.0)
        utilization = sum(shares.values())
        columns = [*_common_columns(utilization), *(shares.get(key, 0.0) for key in self.keys)]
        for row, value in zip(self._products, columns, strict=True):
            row[:] = [kept * known + value * other for known, other in zip(row, columns, strict=False)]
        uncapped = float(per_mhz is None)
        self._power = _decayed(self._power, kept, columns, uncapped * power_w)
        self._uncapped = _decayed(self._uncapped, kept, columns, uncapped)
        self._per_mhz = _decayed(self._per_mhz, kept, columns, per_mhz or 0.0)
        # A sample credits all work to one process: over n samples a share is a binomial estimate with this variance.
        self._noise = [
            kept * known + share * (utilization - share) / samples
            for known, share in zip(self._noise, columns[_COMMON:], strict=True)
        ]

    def by_work(self) -> list[int]:
        """Places in ``keys`` of all processes, those with the most work first."""
        return sorted(range(len(self.keys)), key=lambda i: (-self._products[_COMMON + i][0], self.keys[i]))

    # -- least squares --------------------------------------------------------------

    def solve(self, context_power_w: float, reference_mhz: float, variance: float | None) -> PowerFit | None:
        """Fit the sums; ``None`` while work seems to draw nothing above the context power.

        ``variance`` is the variance of the errors of prediction, in W². Ridge regression: each unknown is pulled to 0
        by the ratio of this variance to the square of its expected size.
        """
        utilization_squares = self._products[1][1]
        if min(self._products[1]) <= 0:
            return None
        drawn = [
            power - context_power_w * uncapped + reference_mhz * per_mhz
            for power, uncapped, per_mhz in zip(self._power, self._uncapped, self._per_mhz, strict=True)
        ]
        typical_w = drawn[1] / utilization_squares
        if not _LEAST_TYPICAL_W <= typical_w <= _MOST_TYPICAL_W:
            return None
        modelled = sorted(self.by_work()[:MAX_MODELLED])
        columns = [*range(_COMMON), *(_COMMON + i for i in modelled)]
        variance = (FIRST_NOISE * typical_w) ** 2 if variance is None else variance
        ridge = [variance / (_CURVATURE * typical_w) ** 2] * _COMMON
        ridge += [variance / (_SPREAD * typical_w) ** 2] * len(modelled)
        matrix = [[self._products[i][j] for j in columns[: n + 1]] for n, i in enumerate(columns)]
        for n, penalty in enumerate(ridge):
            matrix[n][n] += penalty
        # The unknowns are differences from context power + typical·U, so the ridge pulls the fit towards that line.
        rest = [drawn[i] - typical_w * self._product(i, 1) for i in columns]
        factored = factorize(matrix, rest)
        if factored is None:
            return None
        alone, beside = solve_leading(*factored, _COMMON), solve_leading(*factored, len(columns))
        curve_alone, curve = ([a, k + typical_w, q] for a, k, q in (alone, beside[:_COMMON]))
        own_w = {self.keys[i]: watts for i, watts in zip(modelled, beside[_COMMON:], strict=True)}
        split_w = {self.keys[i]: own_w[self.keys[i]] / self._reliability(i) for i in modelled}
        usual = utilization_squares / self._products[1][0]
        common_w = max(_dot(curve, _common_columns(usual)) / usual, _LEAST_COMMON * typical_w)
        return PowerFit(typical_w, common_w, curve_alone, curve, own_w, split_w)

    def _product(self, i: int, j: int) -> float:
        return self._products[max(i, j)][min(i, j)]

    def _reliability(self, i: int) -> float:
        """Part of a share's variance that is not sampling noise; 1 where it is too small to be separated from noise.

        Noise in a regressor attenuates its coefficient by this factor (errors in variables).
        """
        row = self._products[_COMMON + i]
        spread = row[-1] - row[0] * row[0] / self._products[0][0] if row[0] > 0 else 0.0
        if self._noise[i] >= (1.0 - _LEAST_RELIABILITY) * spread:
            return 1.0
        return 1.0 - self._noise[i] / spread

    def remove(self, places: Collection[int], own_w: Mapping[ProcessKey, float]) -> None:
        """Drop the columns of processes. What they drew above the typical watts is first subtracted from the power."""
        for place in sorted(places):
            watts = own_w.get(self.keys[place], 0.0)
            self._power = [p - watts * self._product(i, _COMMON + place) for i, p in enumerate(self._power)]
        columns = [*range(_COMMON), *(_COMMON + i for i in range(len(self.keys)) if i not in places)]
        self._products = [[self._products[i][j] for j in columns if j <= i] for i in columns]
        self._power = [self._power[i] for i in columns]
        self._uncapped = [self._uncapped[i] for i in columns]
        self._per_mhz = [self._per_mhz[i] for i in columns]
        self._noise = [noise for i, noise in enumerate(self._noise) if i not in places]
        self.keys = [key for i, key in enumerate(self.keys) if i not in places]

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """All sums, as plain data."""
        return {
            "keys": [list(key) for key in self.keys],
            "products": [list(row) for row in self._products],
            "power": list(self._power),
            "free": list(self._uncapped),
            "per_mhz": list(self._per_mhz),
            "noise": list(self._noise),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Restore what ``to_state`` returned; raises for anything else."""
        restored = cls()
        restored.keys = [process_key_from(key) for key in state["keys"]]
        restored._products = [list(map(amount, row)) for row in state["products"]]
        restored._power = list(map(number, state["power"]))
        restored._uncapped = list(map(amount, state["free"]))
        restored._per_mhz = list(map(number, state["per_mhz"]))
        restored._noise = list(map(amount, state["noise"]))
        sizes = [len(row) for row in restored._products]
        counts = {len(sizes), len(restored._power), len(restored._uncapped), len(restored._per_mhz)}
        known = len(restored.keys)
        if sizes != list(range(1, _COMMON + known + 1)) or len(counts) > 1 or len(restored._noise) != known:
            raise ValueError("learned power: the sizes of a saved state do not match")
        if len(set(restored.keys)) < known or known > MAX_TRACKED:
            raise ValueError("learned power: a saved state has a process twice, or too many")
        return restored


def _decayed(sums: Sequence[float], kept: float, columns: Sequence[float], value: float) -> list[float]:
    return [kept * known + column * value for known, column in zip(sums, columns, strict=True)]


def _dot(first: Iterable[float], second: Iterable[float]) -> float:
    total: float = sum(map(mul, first, second))
    return total


def _common_columns(utilization: float) -> tuple[float, float, float]:
    return 1.0, utilization, utilization * utilization


def factorize(lower: Sequence[Sequence[float]], right: Sequence[float]) -> tuple[list[list[float]], list[float]] | None:
    """Cholesky factorisation of A = L·Lᵀ, given the lower triangle of A: L, and y of L·y = right.

    ``None`` unless A is positive definite. The leading rows of L and y depend only on the leading rows of A and
    ``right``, so one factorisation serves both the curve alone and the whole model.
    """
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


def solve_leading(factor: Sequence[Sequence[float]], halfway: Sequence[float], count: int) -> list[float]:
    """x of Lᵀ·x = y for the first ``count`` rows."""
    solution = list(halfway[:count])
    for n in reversed(range(count)):
        below = sum([factor[i][n] * solution[i] for i in range(n + 1, count)])
        solution[n] = (solution[n] - below) / factor[n][n]
    return solution
