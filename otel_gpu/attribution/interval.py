"""The interval whose energy is divided: how much energy a GPU used since its last reading, and what happened on it.

Energy is metered by the counter, or by power where there is none. An interval is one cycle, or several where readings
were missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from otel_gpu.attribution.energy import Consumer
from otel_gpu.attribution.keys import ProcessOnDevice
from otel_gpu.attribution.residents import Resident, Residents
from otel_gpu.attribution.saved_values import boolean, number, optional, process_on_device_from, restoring, whole
from otel_gpu.attribution.utilization import ComputeWindow
from otel_gpu.model import GpuReading

_IMPLAUSIBLE_FACTOR: Final = 1.5
"""Energy above this times the power limit is an anomaly, whatever the counter says."""

_COUNTER_ABSENT_NS: Final = 300_000_000_000
"""How long to wait for a counter that is no longer reported before power takes over."""

_HIGHEST_LIMIT_W: Final = 3000.0
"""Used as the power limit where the driver reports none: above that of any board."""

PRESENCE_UNKNOWN: Final = 0.5
"""Assumed fraction of a cycle for a process that came or went in it at an unknown time."""

_MAX_STAYS: Final = 4096
"""Above this many processes in one interval, those that have left are dropped."""


# ---------------------------------------------------------------------------- energy


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


# ---------------------------------------------------------------------------- processes


@dataclass(slots=True)
class _Stay:
    """One process in the interval so far."""

    resident: Resident
    present_us: float = 0.0
    sm_us: int = 0
    memory_bytes: int | None = None


class IntervalBuilder:
    """Adds up cycles until their energy can be divided.

    ``at_start`` are the processes at the beginning, ``complete`` says that no other could be there.
    """

    def __init__(
        self,
        at_start: Set[ProcessOnDevice] = frozenset(),
        *,
        complete: bool = False,
        has_unexplained_memory: bool = False,
    ) -> None:
        self._stays: dict[ProcessOnDevice, _Stay] = {}
        self.duration_us = 0
        self.covered_us = 0
        """How much of the duration utilisation rows cover."""
        self.samples = 0
        self.unidentified_us = 0
        self._has_work = False
        self._has_unidentified = False
        self.has_unexplained_memory = has_unexplained_memory
        self._at_start = at_start
        self._is_exclusive = complete
        self.agent_was_away = False

    def add(
        self,
        window_us: int,
        present: Residents,
        presence: Mapping[ProcessOnDevice, float],
        compute: ComputeWindow | None,
        *,
        has_unexplained_memory: bool = False,
        complete: bool = True,
    ) -> None:
        """Add a cycle. ``presence`` is the fraction of it a process was there, 1 where none is given.

        Where two processes in ``present`` have one pid, work is the later one's. ``compute`` is ``None`` where the
        driver reports no work. ``complete`` is false where processes may be invisible.
        """
        self.duration_us += window_us
        self.has_unexplained_memory = self.has_unexplained_memory or has_unexplained_memory
        by_pid = {at.process.pid: at for at in present}
        sm_us: dict[ProcessOnDevice, int] = {}
        if compute is not None:
            self._has_unidentified = self._has_unidentified or not compute.pids <= by_pid.keys()
        # Where one row cannot be true, the shares of the other processes are unknown too.
        if compute is not None and not compute.unknown_pids:
            self._has_work = True
            self.covered_us += compute.covered_us
            self.samples += compute.samples
            self.unidentified_us += sum(done.sm_us for pid, done in compute.work.items() if pid not in by_pid)
            sm_us = {by_pid[pid]: done.sm_us for pid, done in compute.work.items() if pid in by_pid}
        if len(self._stays) > _MAX_STAYS:
            self._stays = {at: stay for at, stay in self._stays.items() if at in present}
        for at, resident in present.items():
            stay = self._stays.get(at)
            if stay is None:
                stay = self._stays[at] = _Stay(resident)
            stay.resident = resident
            stay.present_us += window_us * presence.get(at, 1.0)
            if resident.memory_bytes is not None:
                stay.memory_bytes = resident.memory_bytes
            stay.sm_us += sm_us.get(at, 0)
        if self._is_exclusive:
            self._is_exclusive = complete and len(present) == 1 and not presence and present.keys() == self._at_start

    def add_gap(self, window_us: int) -> None:
        """Add a cycle in which the GPU did not answer: its residents are unknown."""
        self.duration_us += window_us
        self._is_exclusive = False

    def add_absence(self, window_us: int) -> None:
        """Add the time between two runs of the agent. The next cycle shows which processes are there at both ends."""
        self.duration_us += window_us
        self.agent_was_away = True

    @property
    def is_exclusive(self) -> bool:
        """One process at both ends and in between, and none that could be invisible."""
        return self._is_exclusive and not self._has_unidentified and not self.has_unexplained_memory

    def consumers(self, inferred_bytes: Mapping[ProcessOnDevice, int]) -> list[Consumer]:
        """Every process of the interval, in order. Inferred memory counts for those without a figure."""
        duration_us = max(1, self.duration_us)
        return [
            Consumer(
                at=at,
                workload=stay.resident.ref,
                presence=min(1.0, stay.present_us / duration_us),
                memory_bytes=stay.memory_bytes if stay.memory_bytes is not None else inferred_bytes.get(at),
                sm_us=stay.sm_us if self._has_work else None,
                hidden=not stay.resident.listed,
                sm_count=stay.resident.sm_count,
            )
            for at, stay in sorted(self._stays.items(), key=lambda item: item[0])
        ]

    # -- checkpoint -----------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """The interval so far, as plain data."""
        return {
            "stays": [
                [stay.resident.to_state(), stay.present_us, stay.sm_us, stay.memory_bytes]
                for _, stay in sorted(self._stays.items(), key=lambda item: item[0])
            ],
            "at_start": sorted(self._at_start),
            **{key: getattr(self, name) for key, name in (*_COUNTS.items(), *_FLAGS.items())},
        }

    @classmethod
    def from_state(cls, data: Any) -> Self:
        """The counterpart of ``to_state``; ValueError for any other data."""
        restored = cls()
        with restoring("interval"):
            for resident_data, present_us, sm_us, memory_bytes in data["stays"]:
                resident = Resident.from_state(resident_data)
                stay = _Stay(resident, number(present_us), whole(sm_us), optional(whole, memory_bytes))
                restored._stays[resident.at] = stay
            restored._at_start = frozenset(process_on_device_from(at) for at in data["at_start"])
            for key, name in _COUNTS.items():
                setattr(restored, name, whole(data[key]))
            for key, name in _FLAGS.items():
                setattr(restored, name, boolean(data[key]))
        return restored


_COUNTS: Final = {
    "_duration_us": "duration_us",
    "_told_us": "covered_us",
    "_samples": "samples",
    "foreign_us": "unidentified_us",
}
_FLAGS: Final = {
    "_told": "_has_work",
    "foreign": "_has_unidentified",
    "strangers": "has_unexplained_memory",
    "_alone": "_is_exclusive",
    "away": "agent_was_away",
}
"""Keys of a checkpoint, which stay as the first version wrote them, and the attributes they hold."""
