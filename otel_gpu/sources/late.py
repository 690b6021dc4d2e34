"""Who was not there when the agent started: a runtime that is installed or comes up later, a job from nowhere."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import NameRead, NameSource
from otel_gpu.sources.beside import Beside, Board

log = logging.getLogger(__name__)

LOOK_S: Final = 60.0
SOON_S: Final = 5.0
EARLY_S: Final = 120.0
"""How often it looks whether somebody new is there, which takes a few calls of stat(2): soon as long as the host may be
starting, and while somebody on a GPU has no name; else at leisure."""


@dataclass(frozen=True, slots=True)
class Found:
    """Sources that are new, and of those that could not be opened the reasons: they are to be tried again."""

    sources: tuple[NameSource, ...] = ()
    failed: tuple[str, ...] = ()


class Lookout:
    """Looks for sources of names on a thread of its own. ``find`` is told what kinds of workloads lack a name."""

    def __init__(
        self, find: Callable[[Collection[WorkloadKind]], Found], clock: Clock, *, name: str = "environment"
    ) -> None:
        self._name = name
        self._find = find
        self._clock = clock
        self._started_ns = clock.monotonic_ns()
        self._board = Board()
        self._board.well()  # nobody is missed yet
        self._beside = Beside(name, self._board, self._follow)
        self._lock = threading.Lock()
        self._closed = False
        self._sources: tuple[NameSource, ...] = ()
        # Both are replaced as a whole, by one thread each: who is nameless now, and for whom it has looked.
        self._nameless: Mapping[WorkloadRef, Collection[int]] = {}
        self._looked_for: frozenset[str] = frozenset()
        self._looked = threading.Event()

    @property
    def name(self) -> str:
        """Its name in ``sources`` and in ``otel_gpu.source``."""
        return self._name

    @property
    def sources(self) -> tuple[NameSource, ...]:
        """Whoever came so far, in the order in which they came."""
        return self._sources

    def look_for(self, nameless: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        """Say who has no name, with his pids. Who is new among them is pending until it has looked once."""
        # Before it begins: it may have looked by the time this returns, and who came is asked in the next cycle only.
        new = frozenset(ref.id for ref in nameless) - self._looked_for
        if new:
            self._looked.clear()
        self._nameless = nameless
        self._beside.start()
        if new:
            self._beside.wake()
        read = self._board.read(new)
        # Who cannot look is not waited for.
        return replace(read, pending=frozenset()) if read.state is SourceState.UNAVAILABLE else read

    def wait(self, timeout_s: float) -> None:
        """Wait until it has looked for those it was told of last, and whoever came has answered; at most so long."""
        deadline_ns = self._clock.monotonic_ns() + round(timeout_s * 1e9)
        self._looked.wait(timeout_s)
        for source in self._sources:
            source.wait(max(0.0, (deadline_ns - self._clock.monotonic_ns()) / 1e9))

    def close(self) -> None:
        """Look no more; waits for nobody. Whoever came is to be closed after it."""
        with self._lock:
            self._closed = True
        self._beside.stop(timeout_s=0.0)

    # -- on the thread ----------------------------------------------------------------

    def _follow(self, beside: Beside) -> None:
        while not beside.stopping:
            self._look()
            beside.well()
            beside.sleep(self._pause_s())

    def _pause_s(self) -> float:
        is_early = self._clock.monotonic_ns() - self._started_ns < EARLY_S * 1e9
        return SOON_S if is_early or self._nameless else LOOK_S

    def _look(self) -> None:
        nameless = self._nameless
        found = self._find({ref.kind for ref in nameless})
        for source in found.sources:
            source.read(nameless)  # it begins now, not in the next cycle, in which its names may be known
            self._add(source)
        self._looked_for = frozenset(ref.id for ref in nameless)
        if nameless is self._nameless:
            self._looked.set()
        if found.failed:
            self._board.degraded("; ".join(found.failed), errors=len(found.failed))
        else:
            self._board.well()

    def _add(self, source: NameSource) -> None:
        with self._lock:
            if not self._closed:
                self._sources = (*self._sources, source)
                log.info("%s has come, and is asked for names", source.name)
                return
        source.close()
