"""How much energy a GPU used between two readings: by its counter, or by its power where it has none."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Self

from otel_gpu.attribution.plain import number, whole
from otel_gpu.model import GpuReading

_IMPLAUSIBLE: Final = 1.5
"""More than this times the power limit is no reading of energy, whatever the counter says."""

_COUNTER_AWAY_NS: Final = 300_000_000_000
"""How long a counter that stopped telling is waited for."""

_HIGHEST_LIMIT_W: Final = 3000.0
"""Taken for the limit where the driver names none: above every board there is."""


class Metered(NamedTuple):
    """Energy of one interval. ``anomalous``: implausibly much. ``reset``: the counter went down, and tells nothing."""

    delta_mj: int
    duration_s: float
    anomalous: bool = False
    reset: bool = False


_tuple: Final = tuple.__new__
_INFINITE: Final = float("inf")


class EnergyMeter:
    """Turns the readings of one GPU into energy used, without losing a fraction of a millijoule."""

    __slots__ = ("_at_ns", "_counter_mj", "_owed_mj", "_power_w")

    def __init__(self) -> None:
        self._counter_mj: int | None = None
        self._power_w: float | None = None
        self._at_ns: int | None = None
        self._owed_mj = 0.0

    @property
    def is_silent(self) -> bool:
        """Whether nothing was ever told of this GPU's energy."""
        return self._at_ns is None

    @property
    def source(self) -> str:
        """``counter`` or ``power``: once a counter was seen, it is the source."""
        return "power" if self._counter_mj is None else "counter"

    def read(self, reading: GpuReading) -> Metered | None:
        """Energy since the last reading that told; ``None`` if this one does not, or there was none before."""
        if reading.energy_mj is not None and reading.energy_mj >= 0:
            return self._by_counter(reading, reading.energy_mj)
        power_w = _power(reading)
        if power_w is None:
            return None
        if self._counter_mj is not None and self._at_ns is not None:
            if reading.taken_at_ns - self._at_ns <= _COUNTER_AWAY_NS:
                return None  # it will tell this time as well when it is back
            self._counter_mj = None  # it is not coming back: from here on by power
            self._power_w, self._at_ns = power_w, reading.taken_at_ns
            return None
        return self._by_power(reading, power_w)

    def _by_counter(self, reading: GpuReading, counter_mj: int) -> Metered | None:
        before_mj, at_ns = self._counter_mj, self._at_ns
        if before_mj is None:
            power_w = _power(reading)
            if power_w is None:
                power_w = self._power_w
            if power_w is not None:
                metered = self._by_power(reading, power_w)  # the last interval before the counter speaks for itself
                self._counter_mj = counter_mj
                return metered
        if before_mj is not None and at_ns is not None and reading.taken_at_ns <= at_ns:
            return None  # no time has passed: whatever it counted belongs to the next interval
        self._counter_mj, self._at_ns = counter_mj, reading.taken_at_ns
        if before_mj is None or at_ns is None:
            return None
        duration_s = (reading.taken_at_ns - at_ns) / 1e9
        if counter_mj < before_mj:
            return Metered(0, duration_s, reset=True)
        return self._judged(reading, counter_mj - before_mj, duration_s)

    def _by_power(self, reading: GpuReading, power_w: float) -> Metered | None:
        before_w, at_ns = self._power_w, self._at_ns
        if at_ns is not None and reading.taken_at_ns <= at_ns:
            return None
        self._power_w, self._at_ns = power_w, reading.taken_at_ns
        if before_w is None or at_ns is None:
            return None
        duration_s = (reading.taken_at_ns - at_ns) / 1e9
        exact_mj = (before_w + power_w) / 2 * duration_s * 1000 + self._owed_mj
        delta_mj = int(exact_mj)
        self._owed_mj = exact_mj - delta_mj
        return self._judged(reading, delta_mj, duration_s)

    def _judged(self, reading: GpuReading, delta_mj: int, duration_s: float) -> Metered:
        limit_w = reading.power_limit_w
        if limit_w is None or not 0 < limit_w < _INFINITE:
            limit_w = _HIGHEST_LIMIT_W
        anomalous = delta_mj > _IMPLAUSIBLE * limit_w * duration_s * 1000
        return _tuple(Metered, (delta_mj, duration_s, anomalous, False))

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """The last reading, as plain data."""
        return {
            "counter_mj": self._counter_mj,
            "power_w": self._power_w,
            "at_ns": self._at_ns,
            "owed_mj": self._owed_mj,
        }

    @classmethod
    def from_state(cls, data: Any) -> Self:
        """The counterpart of ``to_state``; ValueError if it is not what that gave."""
        restored = cls()
        try:
            counter_mj, power_w, at_ns, owed_mj = (data[key] for key in ("counter_mj", "power_w", "at_ns", "owed_mj"))
        except (KeyError, TypeError) as error:
            raise ValueError("not a state of a meter") from error
        restored._counter_mj = None if counter_mj is None else whole(counter_mj)
        restored._power_w = None if power_w is None else number(power_w)
        restored._at_ns = None if at_ns is None else whole(at_ns)
        restored._owed_mj = number(owed_mj)
        return restored


def _power(reading: GpuReading) -> float | None:
    """The power it tells, if that can be one."""
    power_w = reading.power_w
    return power_w if power_w is not None and 0 <= power_w < _INFINITE else None
