"""A thread per thing that may never answer: its call is given a deadline, and never a second call behind it."""

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
    """The call has not returned by its deadline; it may still."""


class Pending(Generic[T]):
    """A call under way. Its outcome is taken once, by the deadline or never."""

    __slots__ = ("_call", "_error", "_under_way", "_value", "finished", "started_s")

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        # Held until the call has returned. An Event is a lock, a condition, and another lock for whoever waits.
        self._under_way = threading.Lock()
        self._under_way.acquire()
        self._value: T | None = None
        self._error: OtelGpuError | None = None
        self.finished = False
        """Whether the call has returned."""
        self.started_s = time.monotonic()

    def run(self) -> None:
        """Make the call; on the worker's thread."""
        try:
            self._value = self._call()
        except OtelGpuError as error:
            self._error = error
        except Exception as error:  # a bug in a source must cost one reading, not the thread
            self._error = Unavailable(f"internal error: {type(error).__name__}: {error}")
        finally:
            del self._call  # a worker keeps its last call, which may hold a whole checkpoint
            self.finished = True
            self._under_way.release()

    def result(self, deadline_s: float) -> T:
        """The call's value, waiting until ``deadline_s`` (``time.monotonic``); TooLate if it comes later."""
        if not self.finished:
            if not self._under_way.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
                raise TooLate(f"no answer within {time.monotonic() - self.started_s:.1f} s")
            self._under_way.release()  # to the next who waits
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # T may itself be optional


class Round:
    """Calls that one thread makes, one after the other, until they are done or the round is cut short.

    Waking a thread for each of many calls that take microseconds costs more than the calls.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: deque[Pending[Any]] = deque()
        self._under_way: Pending[Any] | None = None

    def __bool__(self) -> bool:
        return bool(self._left)

    def add(self, call: Callable[[], T]) -> Pending[T]:
        """Have a call made after those before it; not once the round has begun."""
        pending = Pending(call)
        self._left.append(pending)
        return pending

    def run(self) -> None:
        """Make the calls; on a worker's thread."""
        while (pending := self._next()) is not None:
            pending.run()

    def cut(self) -> tuple[Pending[Any] | None, frozenset[Pending[Any]]]:
        """Begin no more of them; the one that has not returned, if any, and those that nobody has begun."""
        with self._lock:
            left = frozenset(self._left)
            self._left.clear()
            return self._under_way, left

    def _next(self) -> Pending[Any] | None:
        with self._lock:
            self._under_way = self._left.popleft() if self._left else None
            return self._under_way


class Worker:
    """One daemon thread that makes one call at a time.

    Daemon, because a thread stuck in the driver (state D) cannot be ended and must not keep the process alive.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._to_do: SimpleQueue[Pending[Any] | None] = SimpleQueue()
        """What the thread is to begin, one call at most, and that it is to end."""
        self._current: Pending[Any] | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self, call: Callable[[], T]) -> Pending[T]:
        """Begin a call. Unavailable at once, with nothing queued, while the last one has not returned."""
        pending = Pending(call)
        self.take(pending)
        return pending

    def take(self, pending: Pending[T]) -> None:
        """Begin a call that was to be made elsewhere; as ``start``."""
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
        """Whether a call is still under way."""
        return self._current is not None and not self._current.finished

    def close(self) -> None:
        """End the thread as soon as its call returns; does not wait."""
        with self._lock:
            self._closed = True
            self._to_do.put(None)

    def _start_thread(self) -> threading.Thread:
        thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the container's limit of pids counts threads
            raise Unavailable(f"no thread to ask from: {error}") from None
        return thread

    def _loop(self) -> None:
        while (pending := self._to_do.get()) is not None:
            pending.run()
