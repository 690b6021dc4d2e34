"""Time, injected: nothing else in the package asks the system what time it is."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for people and timestamps, monotonic time for differences; both in nanoseconds."""

    def wall_ns(self) -> int:
        """Unix time; may step."""

    def monotonic_ns(self) -> int:
        """Never goes back; its zero means nothing."""


class SystemClock:
    """The machine's clocks."""

    def wall_ns(self) -> int:
        """Unix time."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        return time.monotonic_ns()


class ManualClock:
    """A clock that advances only by method calls: for tests, and for simulated hosts that run faster than real time."""

    def __init__(self, wall_ns: int = 1_700_000_000_000_000_000, monotonic_ns: int = 0) -> None:
        self._lock = threading.Lock()
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns

    def wall_ns(self) -> int:
        """Unix time as set and advanced."""
        return self._wall_ns

    def monotonic_ns(self) -> int:
        """Monotonic time as advanced."""
        return self._monotonic_ns

    def advance(self, seconds: float) -> None:
        """Let this much time pass."""
        step_ns = round(seconds * 1e9)
        with self._lock:
            self._wall_ns += step_ns
            self._monotonic_ns += step_ns

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator or NTP would."""
        with self._lock:
            self._wall_ns += round(seconds * 1e9)
