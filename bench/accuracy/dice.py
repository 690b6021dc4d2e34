"""Reproducible random draws from a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from otel_gpu.sources.sim.signals import seed_for, uniform

T = TypeVar("T")


class Dice:
    """Draws that depend only on name, seed and the number of earlier draws."""

    __slots__ = ("_drawn", "seed")

    def __init__(self, name: str, seed: int) -> None:
        self.seed = seed_for(seed, name)
        self._drawn = 0

    def between(self, low: float, high: float) -> float:
        """A number from ``low`` to ``high``, uniformly distributed."""
        self._drawn += 1
        return low + (high - low) * uniform(self.seed, 11, self._drawn)

    def log_between(self, low: float, high: float) -> float:
        """A number from ``low`` to ``high``, with a uniformly distributed logarithm."""
        return math.exp(self.between(math.log(low), math.log(high)))

    def integer(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return min(high, math.floor(self.between(low, high + 1)))

    def pick(self, options: Sequence[T]) -> T:
        """One of them."""
        return options[self.integer(0, len(options) - 1)]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """All of them in another order."""
        order = {place: self.between(0.0, 1.0) for place in range(len(items))}
        return [items[place] for place in sorted(order, key=order.__getitem__)]
