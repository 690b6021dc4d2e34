"""The background sampler: runs cycles at a steady cadence, and sooner when a reader asks for a fresh Report."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from otel_gpu.agent.engine import Engine
from otel_gpu.model import Report

log = logging.getLogger(__name__)

FRESH_S: Final = 1.0
"""The age up to which a Report is fresh enough for a reader."""

FRESH_WAIT_S: Final = 0.5
"""How long a reader waits for a fresh Report before it takes the newest one."""


class Sampler:
    """A thread that runs a cycle every ``interval_s``: the driver's utilisation ring wraps in about 10 s.

    The interval counts from start to start, however long a cycle takes. A cycle that a reader asks for restarts it.
    ``on_sample`` is called with every Report, in this thread.
    """

    def __init__(self, engine: Engine, interval_s: float, on_sample: Callable[[Report], None] = lambda _: None) -> None:
        self._engine = engine
        self._interval_s = interval_s
        self._on_sample = on_sample
        # One lock with two conditions, so that asking for a cycle does not wake the readers that wait for one.
        lock = threading.RLock()
        self._requested, self._completed = threading.Condition(lock), threading.Condition(lock)
        self._is_requested = True
        self._stopped = False
        self._cycles = 0
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._loop, name="otel-gpu-sampler", daemon=True)

    def start(self) -> None:
        """Start the thread. The first cycle runs at once."""
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Stop after the present cycle, or without waiting for it if it takes longer than ``timeout_s``."""
        with self._requested:
            self._stopped = True
            self._requested.notify_all()
            self._completed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def cycles(self) -> int:
        """The number of cycles so far, those that failed included."""
        return self._cycles

    def fresh(self, max_age_s: float = FRESH_S, wait_s: float = FRESH_WAIT_S) -> Report | None:
        """A Report at most ``max_age_s`` old if there is one within ``wait_s``, else the newest one."""
        age_s = self._engine.age_s()
        if age_s is None or age_s > max_age_s:
            with self._requested:
                seen = self._cycles
                self._is_requested = True
                self._requested.notify_all()
                self._completed.wait_for(lambda: self._cycles > seen or self._stopped, wait_s)
        return self._engine.latest

    def wait_for_cycle(self, seen: int, timeout_s: float, unless: Callable[[], bool] = lambda: False) -> int:
        """Wait at most ``timeout_s`` until there are more than ``seen`` cycles; returns their number.

        Returns at once if ``unless`` is true. ``wake`` makes a waiting thread check it again.
        """
        with self._completed:
            self._completed.wait_for(lambda: self._cycles > seen or self._stopped or unless(), timeout_s)
            return self._cycles

    def wake(self) -> None:
        """Make threads in ``wait_for_cycle`` check again. Safe in a signal handler of the waiting thread.

        The lock is reentrant, and a thread releases it while it waits.
        """
        with self._completed:
            self._completed.notify_all()

    def _until_next_s(self) -> float:
        """Time to the next whole interval after the start of the newest cycle. Missed cycles are not made up for."""
        age_s = self._engine.age_s()
        return self._interval_s if age_s is None else self._interval_s - age_s % self._interval_s

    def _log_outcome(self, error: Exception | None) -> None:
        """Log one line when sampling starts to fail or fails in another way, and one when it works again."""
        failure = None if error is None else type(error).__name__
        before, self._failure = self._failure, failure
        if failure is not None and failure != before:
            log.error("sampling failed: %s: %s", failure, error, exc_info=log.isEnabledFor(logging.DEBUG) and error)
        elif failure is None and before is not None:
            log.info("sampling works again")

    def _loop(self) -> None:
        while True:
            with self._requested:
                self._requested.wait_for(lambda: self._is_requested or self._stopped, self._until_next_s())
                if self._stopped:
                    return
                self._is_requested = False
            try:
                self._on_sample(self._engine.sample())
                self._log_outcome(None)
            except Exception as error:  # a bug in one cycle must not end the agent
                self._log_outcome(error)
            with self._requested:
                self._cycles += 1
                self._completed.notify_all()
