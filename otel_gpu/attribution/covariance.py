"""How much of the same amount several parties could explain: the covariance of what each is thought to have."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Mapping
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

MOST_PAIRED: Final = 128
"""Beyond this many parties only variances are kept: every pair would cost more than it tells."""


class Covariance(Generic[K]):
    """A symmetric matrix, by party; what it does not hold is 0. The unit is that of the amounts, squared."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[K, dict[K, float]] = {}

    def __iter__(self) -> Iterator[tuple[K, K, float]]:
        """Every entry, rows in the order in which they came."""
        return ((i, j, value) for i, row in self._rows.items() for j, value in row.items())

    def set(self, i: K, j: K, value: float) -> None:
        """Put one entry in its place."""
        self._rows.setdefault(i, {})[j] = value

    def variance(self, parties: Collection[K]) -> float:
        """Variance of the sum of these."""
        rows = [row for i in parties if (row := self._rows.get(i)) is not None]
        return max(0.0, math.fsum(row[j] for row in rows for j in parties if j in row))

    def add(self, amount: float, odds: Mapping[K, float], doubt: float = 1.0) -> None:
        """One of these got an amount, by these odds: amount²·(diag p - p·pᵀ), times ``doubt``."""
        if len(odds) < 2:
            return
        scale = doubt * amount * amount
        for i, p in odds.items():
            row = self._rows.setdefault(i, {})
            for j in _paired(i, odds):
                row[j] = row.get(j, 0.0) + scale * ((p if i == j else 0.0) - p * odds[j])

    def drop(self, party: K) -> None:
        """Forget a party, and leave to the others what they could explain of its amount."""
        self._rows.pop(party, None)
        for row in self._rows.values():
            row.pop(party, None)

    def replace(self, party: K, heirs: Collection[K]) -> None:
        """Put several in a party's place, each with an equal part of its amount."""
        old = self._rows.get(party, {})
        part = 1.0 / len(heirs)
        for i in heirs:
            for j, value in old.items():
                if j != party:
                    self.set(i, j, part * value)
                    self.set(j, i, part * value)
            for j in heirs:
                self.set(i, j, part * part * old.get(party, 0.0))
        self.drop(party)

    def learn_sum(self, part: float = 1.0) -> dict[K, float]:
        """The sum of all became known (by this part): whose shares its error is. v = C·1, q = 1ᵀv, C -= v·vᵀ/q."""
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
        """Nobody has less than nothing or more than all: variance ≤ mean·(all - mean) (Bhatia and Davis, 2000)."""
        everything = math.fsum(amounts.values())
        scale = {}
        for i, row in self._rows.items():
            most, own = max(0.0, amounts[i] * (everything - amounts[i])), row.get(i, 0.0)
            scale[i] = math.sqrt(most / own) if own > most else 1.0
        if min(scale.values(), default=1.0) < 1.0:
            for i, row in self._rows.items():
                for j in row:
                    row[j] *= scale[i] * scale[j]


def _paired(party: K, parties: Collection[K]) -> Collection[K]:
    return parties if len(parties) <= MOST_PAIRED else (party,)
