"""Where cycles are left by who reads them, and looked at by who draws them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.errors import OtelGpuError
from otel_gpu.top.cycle import Cycle

_MISSED: Final = 3
_GRACE_S: Final = 10.0
"""So many intervals and seconds without a cycle, and it is said that there are none: the page waits as long."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Since when (Unix time) cycles no longer come, and why."""

    since_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest cycle, if there was one, and why it is not of now, if it is not."""

    cycle: Cycle | None = None
    lost: Lost | None = None


class Board:
    """Holds the newest cycle. Any thread may put something on it; ``tell`` is called when something is new."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tell: Callable[[], None] = lambda: None
        self._seen = Seen()
        self._came_ns = 0
        self.failure: OtelGpuError | None = None

    def on_news(self, tell: Callable[[], None]) -> None:
        """Call this, from any thread, when there is something new."""
        self._tell = tell

    def put(self, cycle: Cycle) -> None:
        """A cycle has come."""
        with self._lock:
            self._seen, self._came_ns = Seen(cycle), self._clock.monotonic_ns()
        self._tell()

    def lose(self, why: str) -> None:
        """Cycles come no more; what there was stays, and since when this is so, whatever the reason is now."""
        with self._lock:
            self._miss()
            lost = self._seen.lost
            since_s = self._clock.wall_ns() / 1e9 if lost is None else lost.since_s
            self._seen = Seen(self._seen.cycle, Lost(since_s, why))
        self._tell()

    def fail(self, error: OtelGpuError) -> None:
        """There is nothing to look at, and there will not be."""
        self.failure = error
        self._tell()

    def look(self) -> Seen:
        """What there is now. Cycles that came at an interval and come no more are missed."""
        with self._lock:
            self._miss()
            return self._seen

    def _miss(self) -> None:
        cycle = self._seen.cycle
        if cycle is None or self._seen.lost is not None:
            return
        silent_s = (self._clock.monotonic_ns() - self._came_ns) / 1e9
        if silent_s > _MISSED * cycle.interval_s + _GRACE_S:
            since_s = self._clock.wall_ns() / 1e9 - silent_s
            self._seen = Seen(cycle, Lost(since_s, "no cycle has come since"))
