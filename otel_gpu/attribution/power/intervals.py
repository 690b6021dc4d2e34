"""Which intervals count for a GPU's power, and numbers from saved state. Shared by the modules of this package."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

HALF_LIFE_S: Final = 900.0
"""Age at which an interval has half its weight in a fit: power follows the phases of a workload."""
CAPPED_FRACTION: Final = 0.95
"""Of the power limit: at or above this the limit determines the power, not the work."""
LONGEST_INTERVAL_S: Final = 30.0
"""The driver's samples reach back 10 to 17 s: of a longer interval only the end has a utilisation."""
HIGHEST_UTILIZATION: Final = 1.05
"""Rows that sum to more are not shares of one GPU."""
HIGHEST_POWER_W: Final = 1e5
"""More than any board draws."""

_LARGEST: Final = 1e60  # no sum comes near it, and products of smaller numbers stay finite


def saved_numbers(values: Iterable[Any], *, least: float = 0.0) -> list[float]:
    """Finite numbers from saved state, none below ``least``; ValueError for anything else."""
    numbers = list(values)
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers):
        raise ValueError("saved power: not a number")
    if not all(least <= number <= _LARGEST for number in numbers):
        raise ValueError("saved power: a number is out of range")
    return [float(number) for number in numbers]
