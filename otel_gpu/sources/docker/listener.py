"""A thread that listens to an engine's events and keeps them until they are taken."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from otel_gpu.errors import OtelGpuError, Unavailable
from otel_gpu.sources.docker.client import Engine, Events

_MOST_KEPT: Final = 10_000
"""Events that wait. With more than that the stream is given up: a new list costs less than what they tell."""


class Listener:
    """Listens from ``start`` until ``close``, or until the stream ends; ``wake`` is called when there is something."""

    def __init__(self, engine: Engine, actions: tuple[str, ...], *, quiet_s: float, wake: Callable[[], None]) -> None:
        self._engine = engine
        self._actions = actions
        self._quiet_s = quiet_s
        self._wake = wake
        self._lines: deque[bytes] = deque()
        self._opened = threading.Event()
        self._closing = False
        self._ended = False
        self._events: Events | None = None
        self._error: OtelGpuError | None = None
        # Daemon, as the thread that it works for: neither may keep the process alive.
        self._thread = threading.Thread(target=self._run, name="otel-gpu-events", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether its thread is there."""
        return self._thread.is_alive()

    @property
    def ended(self) -> bool:
        """Whether the stream has ended; what it said before may still have to be taken."""
        return self._ended

    def start(self, timeout_s: float) -> None:
        """Begin, and wait until the engine has agreed: from then on no event is missed."""
        try:
            self._thread.start()
        except RuntimeError as error:  # the container's limit of pids counts threads
            raise Unavailable(f"no thread to listen from: {error}") from error
        if not self._opened.wait(timeout_s):
            raise Unavailable(f"GET /events is not answered within {timeout_s:g} s")
        if self._error is not None:
            raise self._error

    def take(self) -> list[bytes]:
        """The events since the last time, one line each."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def close(self, timeout_s: float = 0.5) -> None:
        """End it; waits that long at most."""
        self._closing = True
        if self._events is not None:
            self._events.close()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            events = self._engine.events(self._actions, self._quiet_s)
        except OtelGpuError as error:
            self._error = error
        else:
            self._events = events
            self._opened.set()
            self._listen(events)
            events.release()
        self._ended = True
        self._opened.set()
        self._wake()

    def _listen(self, events: Events) -> None:
        for line in () if self._closing else events:
            if self._closing or len(self._lines) >= _MOST_KEPT:
                return
            self._lines.append(line)
            self._wake()
