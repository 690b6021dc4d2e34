"""Keeps the answer fresh: a steady cadence of its own, and sooner when somebody asks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from otel_gpu.engine import Engine
from otel_gpu.model import Report

log = logging.getLogger(__name__)

FRESH_S: Final = 1.0
"""How old an answer may be for a reader that asks."""

PATIENCE_S: Final = 0.5
"""How long a reader waits for a sample under way before it takes the newest there is."""


class Sampler:
    """A thread that samples every ``interval_s``, because the driver's utilisation ring wraps in about 10 s.

    The interval counts from start to start, however long a sample takes; one asked for in between restarts it.
    ``on_sample`` sees every answer, in this thread.
    """

    def __init__(self, engine: Engine, interval_s: float, on_sample: Callable[[Report], None] = lambda _: None) -> None:
        self._engine = engine
        self._interval_s = interval_s
        self._on_sample = on_sample
        # One lock, and two to wait for: who wants a sample need not wake everybody who waits for one.
        lock = threading.RLock()
        self._turn, self._passed = threading.Condition(lock), threading.Condition(lock)
        self._wanted = True
        self._stopped = False
        self._passes = 0
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._loop, name="otel-gpu-sampler", daemon=True)

    def start(self) -> None:
        """Begin; the first sample is taken at once."""
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End after the sample under way, or without it if it takes longer than ``timeout_s``."""
        with self._turn:
            self._stopped = True
            self._turn.notify_all()
            self._passed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def passes(self) -> int:
        """Samples taken so far."""
        return self._passes

    def fresh(self, max_age_s: float = FRESH_S, wait_s: float = PATIENCE_S) -> Report | None:
        """An answer at most ``max_age_s`` old if one can be had within ``wait_s``, else the newest there is."""
        age_s = self._engine.age_s()
        if age_s is None or age_s > max_age_s:
            with self._turn:
                seen = self._passes
                self._wanted = True
                self._turn.notify_all()
                self._passed.wait_for(lambda: self._passes > seen or self._stopped, wait_s)
        return self._engine.latest

    def wait_for_pass(self, seen: int, timeout_s: float, unless: Callable[[], bool] = lambda: False) -> int:
        """Wait until more than ``seen`` samples were taken, or the time is up; the number taken.

        It is not waited at all if there is something else to do; ``wake`` has whoever waits find out whether there is.
        """
        with self._passed:
            self._passed.wait_for(lambda: self._passes > seen or self._stopped or unless(), timeout_s)
            return self._passes

    def wake(self) -> None:
        """Have whoever waits for a pass look around. A signal's handler may call this in the thread that waits: the
        lock can be taken twice by one thread, and nobody has it while he waits.
        """
        with self._passed:
            self._passed.notify_all()

    def _until_next_s(self) -> float:
        """Time to the next whole interval after the start of the newest sample; those missed are not made up for."""
        age_s = self._engine.age_s()
        return self._interval_s if age_s is None else self._interval_s - age_s % self._interval_s

    def _note(self, error: Exception | None) -> None:
        """One log line when sampling begins to fail, or fails in another way, and one when it works again."""
        failure = None if error is None else type(error).__name__
        before, self._failure = self._failure, failure
        if failure is not None and failure != before:
            log.error("sampling failed: %s: %s", failure, error, exc_info=log.isEnabledFor(logging.DEBUG) and error)
        elif failure is None and before is not None:
            log.info("sampling works again")

    def _loop(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._wanted or self._stopped, self._until_next_s())
                if self._stopped:
                    return
                self._wanted = False
            try:
                self._on_sample(self._engine.sample())
                self._note(None)
            except Exception as error:  # the agent must outlive a bug in one pass
                self._note(error)
            with self._turn:
                self._passes += 1
                self._passed.notify_all()
