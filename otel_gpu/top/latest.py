"""The newest view, handed from the thread that reads cycles to the one that draws them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from otel_gpu.clock import Clock
from otel_gpu.errors import OtelGpuError
from otel_gpu.view.model import View


@dataclass(frozen=True, slots=True)
class Outage:
    """Since when (Unix time) no views come, and why."""

    since_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest view, if there is one, and the outage, if it is not current."""

    view: View | None = None
    outage: Outage | None = None


class LatestView:
    """Holds the newest view. Any thread may use it; the callback runs after each change."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._changed: Callable[[], None] = lambda: None
        self._latest = Latest()
        self._arrived_ns = 0
        self.failure: OtelGpuError | None = None

    def on_change(self, callback: Callable[[], None]) -> None:
        """Set the callback. It may run on any thread."""
        self._changed = callback

    def put(self, view: View) -> None:
        """Replace the view; this ends an outage."""
        with self._lock:
            self._latest, self._arrived_ns = Latest(view), self._clock.monotonic_ns()
        self._changed()

    def lose(self, reason: str) -> None:
        """Begin an outage, or change the reason of the present one. The last view remains."""
        with self._lock:
            self._detect_silence()
            outage = self._latest.outage
            since_s = self._clock.wall_ns() / 1e9 if outage is None else outage.since_s
            self._latest = Latest(self._latest.view, Outage(since_s, reason))
        self._changed()

    def fail(self, error: OtelGpuError) -> None:
        """Report that there will never be a view."""
        self.failure = error
        self._changed()

    def read(self) -> Latest:
        """The newest view. Silence for too long is an outage."""
        with self._lock:
            self._detect_silence()
            return self._latest

    def _detect_silence(self) -> None:
        view = self._latest.view
        if view is None or self._latest.outage is not None:
            return
        silent_s = (self._clock.monotonic_ns() - self._arrived_ns) / 1e9
        if silent_s > view.lost_after_s:
            since_s = self._clock.wall_ns() / 1e9 - silent_s
            self._latest = Latest(view, Outage(since_s, "no cycle since then"))
