"""Finding out beside the cycles: a thread that asks, and a board on which it leaves what it knows for every cycle."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

from otel_gpu.errors import OtelGpuError
from otel_gpu.model import SourceState
from otel_gpu.sources.base import NO_PODS, NO_WORKLOADS, Claim, NameRead, PodContainer, WorkloadInfo

log = logging.getLogger(__name__)

FIRST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 30.0
"""Waited after a lost connection: the first time, doubled with each failure after that, at most."""

NOT_YET: Final = "has not answered yet"
"""The reason while nothing was left on a board: no answer is none that all is well."""


class Board:
    """What is known by now and how its source fares. One thread writes, every cycle reads; neither waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: Mapping[str, WorkloadInfo] = NO_WORKLOADS
        self._pods: Mapping[PodContainer, tuple[Claim, ...]] = NO_PODS
        self._state = SourceState.DEGRADED
        self._reason: str | None = NOT_YET
        self._errors = 0
        self._told = threading.Event()

    def know(self, known: Mapping[str, WorkloadInfo]) -> None:
        """Leave workloads by their ids. The mapping must not be changed after that; leave a new one instead."""
        with self._lock:
            self._known = known

    def know_pods(self, pods: Mapping[PodContainer, tuple[Claim, ...]]) -> None:
        """Leave what was given to containers of pods. The mapping must not be changed after that."""
        with self._lock:
            self._pods = pods

    def well(self) -> None:
        """All that was asked was answered, and answered well."""
        self._fares(SourceState.OK, None, errors=0)

    def degraded(self, reason: str, *, errors: int = 1) -> None:
        """There are answers, and something is missing from them."""
        self._fares(SourceState.DEGRADED, reason, errors)

    def unavailable(self, reason: str) -> None:
        """There are no answers; what was known before stands."""
        self._fares(SourceState.UNAVAILABLE, reason, errors=1)

    def wait(self, timeout_s: float) -> bool:
        """Wait until anything was left here, good or bad."""
        return self._told.wait(timeout_s)

    @property
    def told(self) -> bool:
        """Whether anything was left here yet."""
        return self._told.is_set()

    @property
    def known(self) -> Mapping[str, WorkloadInfo]:
        """Workloads by their ids."""
        return self._known

    def read(self, pending: frozenset[str] = frozenset()) -> NameRead:
        """What is known by now. Errors are those since the last time."""
        with self._lock:
            errors, self._errors = self._errors, 0
            return NameRead(self._known, self._pods, pending, self._state, self._reason, errors)

    def _fares(self, state: SourceState, reason: str | None, errors: int) -> None:
        with self._lock:
            self._state, self._reason = state, reason
            self._errors += errors
        self._told.set()


class Beside:
    """A thread that follows something for as long as it can, and begins again when the connection is lost.

    ``follow`` is called with this; it leaves what it finds on the board, and returns or raises when it cannot go on.
    It must return soon after ``stopping``; while it waits, it does so in ``sleep``. ``longest_retry_s`` is for those
    who cost nothing to try.
    """

    def __init__(
        self, name: str, board: Board, follow: Callable[[Beside], None], *, longest_retry_s: float | None = None
    ) -> None:
        self._name = name
        self._board = board
        self._follow = follow
        self._longest_retry_s = longest_retry_s
        self._wake = threading.Condition()
        self._woken = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._failures = 0

    @property
    def stopping(self) -> bool:
        """Whether it is time to end."""
        return self._stopping

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._has_begun():  # as in nearly every cycle
            return
        with self._wake:
            if self._has_begun() or self._stopping:
                return
            # Daemon: a thread that waits for a runtime that never answers must not keep the process alive.
            self._thread = threading.Thread(target=self._run, name=f"otel-gpu-{self._name}", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:  # the container's limit of pids counts threads
                self._thread = None
                self._board.unavailable(f"no thread to ask from: {error}")

    def _has_begun(self) -> bool:
        return self._thread is not None

    def wake(self) -> None:
        """End a ``sleep``: there is something to ask."""
        with self._wake:
            self._woken = True
            self._wake.notify_all()

    def sleep(self, seconds: float) -> bool:
        """Wait, until woken or stopped at most; true if woken."""
        with self._wake:
            self._wake.wait_for(lambda: self._woken or self._stopping, timeout=seconds)
            woken, self._woken = self._woken, False
            return woken

    def well(self) -> None:
        """The connection stands: the next loss is the first again."""
        self._failures = 0

    def next_pause_s(self) -> float:
        """How long to wait before it is tried again, longer each time."""
        longest_s = LONGEST_RETRY_S if self._longest_retry_s is None else self._longest_retry_s
        pause_s = min(longest_s, FIRST_RETRY_S * (1 << self._failures))
        self._failures = min(self._failures + 1, 16)
        return pause_s

    def stop(self, timeout_s: float = 1.0) -> None:
        """End it; waits that long at most."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._follow(self)
            except OtelGpuError as error:
                self._board.unavailable(str(error))
            except Exception as error:  # a bug in a source must cost names, not the agent
                log.debug("%s: internal error", self._name, exc_info=True)
                self._board.unavailable(f"internal error: {type(error).__name__}: {error}")
            with self._wake:
                self._wake.wait_for(lambda: self._stopping, timeout=self.next_pause_s())
