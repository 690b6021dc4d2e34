"""A name source's background thread (``Poller``), and the answer it shares with the cycles (``PublishedNames``)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from otel_gpu.errors import OtelGpuError
from otel_gpu.model import SourceState
from otel_gpu.sources.backoff import Backoff
from otel_gpu.sources.base import NO_PODS, NO_WORKLOADS, Claim, NameRead, PodContainer, Speaker, WorkloadInfo

log = logging.getLogger(__name__)

MAX_RETRY_S: Final = 30.0
"""Longest pause after a failure."""

NO_ANSWER_YET: Final = "has not answered yet"
"""The reason until the first answer. Without an answer a source does not count as healthy."""


class PublishedNames:
    """The latest answer of a name source and its state. One thread publishes, every cycle reads; neither waits."""

    def __init__(self, speaker: Speaker) -> None:
        self._lock = threading.Lock()
        self._speaker = speaker
        self._known: Mapping[str, WorkloadInfo] = NO_WORKLOADS
        self._pods: Mapping[PodContainer, tuple[Claim, ...]] = NO_PODS
        self._state = SourceState.DEGRADED
        self._reason: str | None = NO_ANSWER_YET
        self._errors = 0
        self._answered = threading.Event()

    def publish(self, known: Mapping[str, WorkloadInfo], speaker: Speaker | None = None) -> None:
        """Publish workloads by their ids, and their ``speaker`` if that has changed.

        The mapping must not change after that; publish a new one instead.
        """
        with self._lock:
            self._known = known
            self._speaker = speaker or self._speaker

    def publish_pods(self, pods: Mapping[PodContainer, tuple[Claim, ...]]) -> None:
        """Publish the claims of containers of pods. The mapping must not change after that."""
        with self._lock:
            self._pods = pods

    def set_ok(self) -> None:
        """The source answered everything."""
        self._set_state(SourceState.OK, None, errors=0)

    def set_degraded(self, reason: str, *, errors: int = 1) -> None:
        """The source answered, and part of the answer is missing."""
        self._set_state(SourceState.DEGRADED, reason, errors)

    def set_problems(self, problems: Sequence[str], *, errors: int) -> None:
        """Ok without problems, else degraded with the first one and the number of the others."""
        if not problems:
            self.set_ok()
        else:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            self.set_degraded(f"{problems[0]}{more}", errors=errors)

    def set_unavailable(self, reason: str) -> None:
        """The source does not answer. What was published before remains valid."""
        self._set_state(SourceState.UNAVAILABLE, reason, errors=1)

    def wait(self, timeout_s: float) -> bool:
        """Wait until a state has been set, good or bad."""
        return self._answered.wait(timeout_s)

    @property
    def has_answered(self) -> bool:
        """Whether a state has been set."""
        return self._answered.is_set()

    @property
    def known(self) -> Mapping[str, WorkloadInfo]:
        """The published workloads by their ids."""
        return self._known

    def read(self, pending: frozenset[str] = frozenset()) -> NameRead:
        """The latest answer, with the errors since the last read."""
        with self._lock:
            errors, self._errors = self._errors, 0
            return NameRead(self._known, self._pods, pending, self._state, self._reason, errors, self._speaker)

    def _set_state(self, state: SourceState, reason: str | None, errors: int) -> None:
        with self._lock:
            self._state, self._reason = state, reason
            self._errors += errors
        self._answered.set()


class Poller:
    """Runs ``poll`` on a thread, and again after each failure with a growing pause.

    ``poll`` is called with the poller and publishes what it finds. It returns or raises when it cannot continue, and
    returns soon after ``stopping`` becomes true; it waits only in ``sleep``.
    """

    def __init__(
        self,
        name: str,
        published: PublishedNames,
        poll: Callable[[Poller], None],
        *,
        max_retry_s: float = MAX_RETRY_S,
    ) -> None:
        self._name = name
        self._published = published
        self._poll = poll
        self._backoff = Backoff(max_retry_s)
        self._wake = threading.Condition()
        self._woken = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def stopping(self) -> bool:
        """Whether ``poll`` must return."""
        return self._stopping

    def start(self) -> None:
        """Start the thread unless it runs."""
        with self._wake:
            if self._thread is not None or self._stopping:
                return
            # Daemon: a thread that waits for a runtime without an answer must not keep the process alive.
            self._thread = threading.Thread(target=self._run, name=f"otel-gpu-{self._name}", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:  # the container's limit of pids counts threads
                self._thread = None
                self._published.set_unavailable(f"cannot start a thread: {error}")

    def wake(self) -> None:
        """End ``sleep``: there is something to look up."""
        with self._wake:
            self._woken = True
            self._wake.notify_all()

    def sleep(self, seconds: float) -> bool:
        """Wait until woken or stopped, at most this long; true if woken."""
        with self._wake:
            self._wake.wait_for(lambda: self._woken or self._stopping, timeout=seconds)
            woken, self._woken = self._woken, False
            return woken

    def reset_backoff(self) -> None:
        """The connection works: the next failure counts as the first."""
        self._backoff.worked()

    def stop(self, timeout_s: float = 1.0) -> None:
        """Stop the thread; waits at most ``timeout_s`` for it."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._poll(self)
            except OtelGpuError as error:
                self._published.set_unavailable(str(error))
            except Exception as error:  # a bug in a source must cost names, not the agent
                log.debug("%s: internal error", self._name, exc_info=True)
                self._published.set_unavailable(f"internal error: {type(error).__name__}: {error}")
            with self._wake:
                self._wake.wait_for(lambda: self._stopping, timeout=self._backoff.failed())
