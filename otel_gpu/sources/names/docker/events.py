"""A thread that queues an engine's events until they are taken."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from otel_gpu.errors import OtelGpuError, Unavailable
from otel_gpu.sources.names.docker.client import Engine, Events

_MAX_QUEUED: Final = 10_000
"""Longest queue. Beyond it the stream is closed: a new list costs less than so many events."""


class EventListener:
    """Queues events from ``start`` until ``close`` or the end of the stream. Calls ``wake`` for each event."""

    def __init__(self, engine: Engine, actions: tuple[str, ...], *, quiet_s: float, wake: Callable[[], None]) -> None:
        self._engine = engine
        self._actions = actions
        self._quiet_s = quiet_s
        self._wake = wake
        self._lines: deque[bytes | None] = deque()
        self._opened = threading.Event()
        self._closing = False
        self._ended = False
        self._events: Events | None = None
        self._error: OtelGpuError | None = None
        # Daemon: it must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="otel-gpu-events", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def ended(self) -> bool:
        """Whether the stream has ended. Events may remain to be taken."""
        return self._ended

    def start(self, timeout_s: float) -> None:
        """Start the thread and wait until the engine has accepted: from then on no event is missed."""
        try:
            self._thread.start()
        except RuntimeError as error:  # the container's limit of pids counts threads
            raise Unavailable(f"cannot start a thread: {error}") from error
        if not self._opened.wait(timeout_s):
            raise Unavailable(f"no answer to GET /events within {timeout_s:g} s")
        if self._error is not None:
            raise self._error

    def take(self) -> list[bytes | None]:
        """The queued events, one line each; ``None`` for a line that was too long."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def close(self, timeout_s: float = 0.5) -> None:
        """Stop the thread; waits at most ``timeout_s`` for it."""
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
            self._queue(events)
            events.release()
        self._ended = True
        self._opened.set()
        self._wake()

    def _queue(self, events: Events) -> None:
        for line in () if self._closing else events:
            if self._closing or len(self._lines) >= _MAX_QUEUED:
                return
            self._lines.append(line)
            self._wake()
