"""Covariance of estimated amounts: how much of the same amount several candidates could explain."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Mapping
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

MOST_PAIRED: Final = 128
"""With more keys than this only variances are kept: all pairs would cost more than they are worth."""


class Covariance(Generic[K]):
    """A symmetric matrix by key, in squared units of the amounts. A missing entry is 0."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[K, dict[K, float]] = {}

    def __iter__(self) -> Iterator[tuple[K, K, float]]:
        """Every entry, rows in the order of their insertion."""
        return ((i, j, value) for i, row in self._rows.items() for j, value in row.items())

    def set(self, i: K, j: K, value: float) -> None:
        """Set one entry."""
        self._rows.setdefault(i, {})[j] = value

    def variance(self, keys: Collection[K]) -> float:
        """Variance of the sum of these amounts."""
        rows = [row for i in keys if (row := self._rows.get(i)) is not None]
        return max(0.0, math.fsum(row[j] for row in rows for j in keys if j in row))

    def add(self, amount: float, odds: Mapping[K, float], doubt: float = 1.0) -> None:
        """Add the uncertainty of an amount that one of several keys got, with these odds p, times ``doubt``.

        The covariance of such a choice is that of a multinomial of one trial: C += amount²·(diag p - p·pᵀ).
        """
        if len(odds) < 2:
            return
        scale = doubt * amount * amount
        for i, p in odds.items():
            row = self._rows.setdefault(i, {})
            for j in _paired(i, odds):
                row[j] = row.get(j, 0.0) + scale * ((p if i == j else 0.0) - p * odds[j])

    def drop(self, key: K) -> None:
        """Remove a key. The others keep what they could explain of its amount."""
        self._rows.pop(key, None)
        for row in self._rows.values():
            row.pop(key, None)

    def replace(self, key: K, successors: Collection[K]) -> None:
        """Replace a key by several, each with an equal part of its amount."""
        old = self._rows.get(key, {})
        part = 1.0 / len(successors)
        for i in successors:
            for j, value in old.items():
                if j != key:
                    self.set(i, j, part * value)
                    self.set(j, i, part * value)
            for j in successors:
                self.set(i, j, part * part * old.get(key, 0.0))
        self.drop(key)

    def learn_sum(self, part: float = 1.0) -> dict[K, float]:
        """Condition on the sum of all amounts, which became known (to this part); the share of each in its error.

        A Kalman update with the sum as the measurement: v = C·1, q = 1ᵀ·v, shares v/q, C -= v·vᵀ/q.
        """
        gains = {i: math.fsum(row.values()) for i, row in self._rows.items()}
        total = math.fsum(gains.values())
        if total <= 0:
            return {}
        for i, gain in gains.items():
            row = self._rows[i]
            for j in _paired(i, gains):
                row[j] = row.get(j, 0.0) - part * gain * gains[j] / total
        return {i: gain / total for i, gain in gains.items()}

    def limit(self, amounts: Mapping[K, float]) -> None:
        """Scale variances down to what is possible for amounts between 0 and their sum.

        Such an amount has a variance of at most mean·(sum - mean) (Bhatia and Davis, 2000).
        """
        everything = math.fsum(amounts.values())
        scale = {}
        for i, row in self._rows.items():
            most, own = max(0.0, amounts[i] * (everything - amounts[i])), row.get(i, 0.0)
            scale[i] = math.sqrt(most / own) if own > most else 1.0
        if min(scale.values(), default=1.0) < 1.0:
            for i, row in self._rows.items():
                for j in row:
                    row[j] *= scale[i] * scale[j]


def _paired(key: K, keys: Collection[K]) -> Collection[K]:
    return keys if len(keys) <= MOST_PAIRED else (key,)
