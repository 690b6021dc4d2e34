"""How much energy a GPU used between two readings: by its energy counter, or by its power where it has none."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple, Self

from otel_gpu.attribution.plain import number, optional, restoring, whole
from otel_gpu.model import GpuReading

_IMPLAUSIBLE_FACTOR: Final = 1.5
"""Energy above this times the power limit is an anomaly, whatever the counter says."""

_COUNTER_ABSENT_NS: Final = 300_000_000_000
"""How long to wait for a counter that is no longer reported before power takes over."""

_HIGHEST_LIMIT_W: Final = 3000.0
"""Used as the power limit where the driver reports none: above that of any board."""


class Metered(NamedTuple):
    """Energy of one interval. ``anomalous``: implausibly high. ``reset``: the counter fell, so nothing is known."""

    delta_mj: int
    duration_s: float
    anomalous: bool = False
    reset: bool = False


class EnergyMeter:
    """Turns the readings of one GPU into energy used; carries fractions of a millijoule."""

    __slots__ = ("_at_ns", "_counter_mj", "_power_w", "_residue_mj")

    def __init__(self) -> None:
        self._counter_mj: int | None = None
        self._power_w: float | None = None
        self._at_ns: int | None = None
        self._residue_mj = 0.0

    @property
    def has_read(self) -> bool:
        """Whether this GPU has ever reported energy or power."""
        return self._at_ns is not None

    @property
    def source(self) -> str:
        """``counter`` or ``power``: once a counter was seen, it is the source."""
        return "power" if self._counter_mj is None else "counter"

    def read(self, reading: GpuReading) -> Metered | None:
        """Energy since the last reading with a figure; ``None`` if this one has none, or there was none before."""
        if reading.energy_mj is not None and reading.energy_mj >= 0:
            return self._by_counter(reading, reading.energy_mj)
        power_w = _plausible_power_w(reading)
        if power_w is None:
            return None
        if self._counter_mj is not None and self._at_ns is not None:
            if reading.taken_at_ns - self._at_ns <= _COUNTER_ABSENT_NS:
                return None  # the counter covers this time as well when it is back
            self._counter_mj = None  # it does not come back: power takes over from here
            self._power_w, self._at_ns = power_w, reading.taken_at_ns
            return None
        return self._by_power(reading, power_w)

    def _by_counter(self, reading: GpuReading, counter_mj: int) -> Metered | None:
        before_mj, at_ns = self._counter_mj, self._at_ns
        if before_mj is None:
            power_w = _plausible_power_w(reading)
            if power_w is None:
                power_w = self._power_w
            if power_w is not None:
                metered = self._by_power(reading, power_w)  # the last interval before the counter takes over
                self._counter_mj = counter_mj
                return metered
        if before_mj is not None and at_ns is not None and reading.taken_at_ns <= at_ns:
            return None  # no time has passed: what it counted belongs to the next interval
        self._counter_mj, self._at_ns = counter_mj, reading.taken_at_ns
        if before_mj is None or at_ns is None:
            return None
        duration_s = (reading.taken_at_ns - at_ns) / 1e9
        if counter_mj < before_mj:
            return Metered(0, duration_s, reset=True)
        return _judged(reading, counter_mj - before_mj, duration_s)

    def _by_power(self, reading: GpuReading, power_w: float) -> Metered | None:
        before_w, at_ns = self._power_w, self._at_ns
        if at_ns is not None and reading.taken_at_ns <= at_ns:
            return None
        self._power_w, self._at_ns = power_w, reading.taken_at_ns
        if before_w is None or at_ns is None:
            return None
        duration_s = (reading.taken_at_ns - at_ns) / 1e9
        exact_mj = (before_w + power_w) / 2 * duration_s * 1000 + self._residue_mj
        delta_mj = int(exact_mj)
        self._residue_mj = exact_mj - delta_mj
        return _judged(reading, delta_mj, duration_s)

    # -- checkpoint -----------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """The last reading, as plain data."""
        return {
            "counter_mj": self._counter_mj,
            "power_w": self._power_w,
            "at_ns": self._at_ns,
            "owed_mj": self._residue_mj,
        }

    @classmethod
    def from_state(cls, data: Any) -> Self:
        """The counterpart of ``to_state``; ValueError for any other data."""
        restored = cls()
        with restoring("meter"):
            restored._counter_mj = optional(whole, data["counter_mj"])
            restored._power_w = optional(number, data["power_w"])
            restored._at_ns = optional(whole, data["at_ns"])
            restored._residue_mj = number(data["owed_mj"])
        return restored


def _judged(reading: GpuReading, delta_mj: int, duration_s: float) -> Metered:
    limit_w = reading.power_limit_w
    if limit_w is None or not 0 < limit_w < math.inf:
        limit_w = _HIGHEST_LIMIT_W
    return Metered(delta_mj, duration_s, anomalous=delta_mj > _IMPLAUSIBLE_FACTOR * limit_w * duration_s * 1000)


def _plausible_power_w(reading: GpuReading) -> float | None:
    power_w = reading.power_w
    return power_w if power_w is not None and 0 <= power_w < math.inf else None
