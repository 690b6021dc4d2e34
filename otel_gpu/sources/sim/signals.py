"""Signals: work, power and memory of a simulated process as pure functions of time.

A ``Signal`` has no state, so that times may be evaluated in any order at constant cost. Randomness is a hash of (seed,
stream, index) instead of a generator, which would have to run up to that point.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

_MASK64 = (1 << 64) - 1


def hash64(seed: int, stream: int, index: int) -> int:
    """64 pseudo-random bits, a function of the arguments (the finaliser of splitmix64)."""
    z = (
        seed * 0x9E3779B97F4A7C15 + stream * 0xD1342543DE82EF95 + index * 0xDA942042E4DD58B5 + 0x632BE59BD9B4E019
    ) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def uniform(seed: int, stream: int, index: int) -> float:
    """A pseudo-random number in [0, 1), a function of the arguments."""
    return (hash64(seed, stream, index) >> 11) * 2.0**-53


@lru_cache(maxsize=4096)
def _level(seed: int, stream: int, index: int) -> float:
    """``uniform``, cached: a burst or phase spans many steps with the same arguments."""
    return uniform(seed, stream, index)


def seed_for(seed: int, name: str) -> int:
    """A seed for each name; different names give independent signals."""
    return hash64(seed, zlib.crc32(name.encode()), 0)


class Signal(Protocol):
    """A quantity over time; ``at`` takes seconds since the process started."""

    def at(self, t_s: float) -> float:
        """The value at this time."""


@dataclass(frozen=True, slots=True)
class Steady:
    """A constant."""

    level: float

    def at(self, t_s: float) -> float:  # noqa: ARG002 - the signature of Signal
        """The level."""
        return self.level


@dataclass(frozen=True, slots=True)
class Points:
    """Linear interpolation between (time in s, value); two points at one time are a step. Constant outside.

    With ``repeat_s`` the shape repeats with this period.
    """

    points: tuple[tuple[float, float], ...]
    repeat_s: float | None = None

    def __post_init__(self) -> None:
        if not self.points or any(a[0] > b[0] for a, b in zip(self.points, self.points[1:], strict=False)):
            raise ValueError("points must be in the order of their times, and at least one")
        if self.repeat_s is not None and self.repeat_s <= 0:
            raise ValueError("repeat_s must be above 0")

    def at(self, t_s: float) -> float:
        """The value on the line at this time; at a step, the later one."""
        if self.repeat_s is not None:
            t_s %= self.repeat_s
        elif t_s >= self.points[-1][0]:
            return self.points[-1][1]
        after = bisect_right(self.points, (t_s, math.inf))
        if after == 0:
            return self.points[0][1]
        start_s, start = self.points[after - 1]
        if after == len(self.points):
            return start
        end_s, end = self.points[after]
        return start + (end - start) * (t_s - start_s) / (end_s - start_s)


@dataclass(frozen=True, slots=True)
class Bursty:
    """One burst per period, at a random position, with a random length of ``duty`` periods on average."""

    level: float
    duty: float
    period_s: float
    seed: int
    rest: float = 0.0

    def __post_init__(self) -> None:
        if self.period_s <= 0 or not 0 <= self.duty <= 1:
            raise ValueError("a burst needs a period above 0 and a duty from 0 to 1")

    def at(self, t_s: float) -> float:
        """``level`` in the burst, ``rest`` outside it."""
        position = t_s / self.period_s
        index = math.floor(position)
        spread = min(self.duty, 1.0 - self.duty)
        length = self.duty + spread * (2.0 * _level(self.seed, 1, index) - 1.0)
        begin = (1.0 - length) * _level(self.seed, 2, index)
        return self.level if begin <= position - index < begin + length else self.rest


@dataclass(frozen=True, slots=True)
class OnOff:
    """On or off in each slot of ``slot_s``, at random; on with probability ``duty``."""

    level: float
    duty: float
    slot_s: float
    seed: int

    def __post_init__(self) -> None:
        if self.slot_s <= 0:
            raise ValueError("slot_s must be above 0")

    def at(self, t_s: float) -> float:
        """``level`` in a slot that is on, otherwise 0."""
        return self.level if _level(self.seed, 3, math.floor(t_s / self.slot_s)) < self.duty else 0.0


@dataclass(frozen=True, slots=True)
class Alternating:
    """On in turn number ``turn`` of every ``turns``, each ``turn_s`` long."""

    level: float
    turn_s: float
    turn: int
    turns: int = 2
    rest: float = 0.0

    def __post_init__(self) -> None:
        if self.turn_s <= 0 or not 0 <= self.turn < self.turns:
            raise ValueError("alternating needs turn_s above 0 and a turn below turns")

    def at(self, t_s: float) -> float:
        """``level`` in its turn, ``rest`` otherwise."""
        return self.level if math.floor(t_s / self.turn_s) % self.turns == self.turn else self.rest


@dataclass(frozen=True, slots=True)
class Wander:
    """Random levels between ``low`` and ``high``, one per ``knot_s``: steps, or interpolated if ``smooth``."""

    low: float
    high: float
    knot_s: float
    seed: int
    smooth: bool = False

    def __post_init__(self) -> None:
        if self.knot_s <= 0:
            raise ValueError("knot_s must be above 0")

    def at(self, t_s: float) -> float:
        """The level of this interval, or the interpolation to the next one."""
        position = t_s / self.knot_s
        index = math.floor(position)
        here = _level(self.seed, 4, index)
        if self.smooth:
            here += (_level(self.seed, 4, index + 1) - here) * (position - index)
        return self.low + (self.high - self.low) * here


@dataclass(frozen=True, slots=True)
class Product:
    """The product of two signals, for example bursts with a drifting height."""

    first: Signal
    second: Signal

    def at(self, t_s: float) -> float:
        """The product at this time."""
        return self.first.at(t_s) * self.second.at(t_s)
