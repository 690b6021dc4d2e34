"""Threads for calls that may never return: each call has a deadline, and no second call waits behind it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from otel_gpu.errors import OtelGpuError, Unavailable

T = TypeVar("T")


class TooLate(Unavailable):
    """The call has not returned by its deadline. It may return later."""


class Pending(Generic[T]):
    """A call in progress, and its outcome."""

    __slots__ = ("_call", "_error", "_in_progress", "_value", "finished", "started_s")

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        # Held until the call has returned. An Event needs a condition and a lock per waiting thread in addition.
        self._in_progress = threading.Lock()
        self._in_progress.acquire()
        self._value: T | None = None
        self._error: OtelGpuError | None = None
        self.finished = False
        """Whether the call has returned."""
        self.started_s = time.monotonic()

    def run(self) -> None:
        """Make the call, on the worker's thread."""
        try:
            self._value = self._call()
        except OtelGpuError as error:
            self._error = error
        except Exception as error:  # a bug in a source fails one read and does not end the thread
            self._error = Unavailable(f"internal error: {type(error).__name__}: {error}")
        finally:
            del self._call  # a worker keeps its last call, which may refer to a whole checkpoint
            self.finished = True
            self._in_progress.release()

    def result(self, deadline_s: float) -> T:
        """The value of the call. Waits until ``deadline_s`` (``time.monotonic``), then raises TooLate."""
        if not self.finished:
            if not self._in_progress.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
                raise TooLate(f"no answer within {time.monotonic() - self.started_s:.1f} s")
            self._in_progress.release()  # for the next thread that waits
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # T may itself be optional


class Round:
    """Calls that one thread makes in order, until all are done or the round is cut short.

    Waking a thread for each of many calls of a few microseconds costs more than the calls.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: deque[Pending[Any]] = deque()
        self._in_progress: Pending[Any] | None = None

    def __bool__(self) -> bool:
        return bool(self._left)

    def add(self, call: Callable[[], T]) -> Pending[T]:
        """Add a call at the end. Only before the round starts."""
        pending = Pending(call)
        self._left.append(pending)
        return pending

    def run(self) -> None:
        """Make the calls, on a worker's thread."""
        while (pending := self._next()) is not None:
            pending.run()

    def cut(self) -> tuple[Pending[Any] | None, frozenset[Pending[Any]]]:
        """Start no further call. Returns the call in progress, if any, and those that have not started."""
        with self._lock:
            left = frozenset(self._left)
            self._left.clear()
            return self._in_progress, left

    def _next(self) -> Pending[Any] | None:
        with self._lock:
            self._in_progress = self._left.popleft() if self._left else None
            return self._in_progress


class Worker:
    """A daemon thread that makes one call at a time.

    It is a daemon, because a thread stuck in the driver (state D) cannot be ended and must not keep the process alive.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._to_do: SimpleQueue[Pending[Any] | None] = SimpleQueue()
        """The next call, at most one, or ``None`` for the end of the thread."""
        self._current: Pending[Any] | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self, call: Callable[[], T]) -> Pending[T]:
        """Start a call. Raises Unavailable at once, and queues nothing, while the last call has not returned."""
        pending = Pending(call)
        self.take(pending)
        return pending

    def take(self, pending: Pending[T]) -> None:
        """Start a call that was created elsewhere, as ``start`` does."""
        with self._lock:
            if self._closed:
                raise Unavailable("closed")
            if self._current is not None and not self._current.finished:
                waited_s = time.monotonic() - self._current.started_s
                raise Unavailable(f"no answer for {waited_s:.0f} s: a call has not returned")
            if self._thread is None:
                self._thread = self._start_thread()
            self._current = pending
            self._to_do.put(pending)

    @property
    def stuck(self) -> bool:
        """Whether a call has not returned."""
        return self._current is not None and not self._current.finished

    def close(self) -> None:
        """End the thread as soon as its call returns. Does not wait."""
        with self._lock:
            self._closed = True
            self._to_do.put(None)

    def _start_thread(self) -> threading.Thread:
        thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the pid limit of the container counts threads
            raise Unavailable(f"cannot start a thread: {error}") from None
        return thread

    def _loop(self) -> None:
        while (pending := self._to_do.get()) is not None:
            pending.run()
