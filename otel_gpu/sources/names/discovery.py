"""Discovery of name sources that appear after the agent has started: a runtime installed later, a Slurm job."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import HOST, NameRead, NameSource
from otel_gpu.sources.names.poller import Poller, PublishedNames

log = logging.getLogger(__name__)

SEARCH_S: Final = 60.0
SEARCH_SOON_S: Final = 5.0
EARLY_S: Final = 120.0
"""The interval between searches, each of which takes a few calls of stat(2). The short one applies while the host may
still be starting, for ``EARLY_S``, and while a workload on a GPU has no name."""


@dataclass(frozen=True, slots=True)
class DiscoveredSources:
    """New sources, and the reasons why others could not be opened: those are tried again."""

    sources: tuple[NameSource, ...] = ()
    failed: tuple[str, ...] = ()


class SourceDiscovery:
    """Searches for name sources on a thread of its own. ``find`` takes the kinds of workloads that have no name."""

    def __init__(
        self, find: Callable[[Collection[WorkloadKind]], DiscoveredSources], clock: Clock, *, name: str = "environment"
    ) -> None:
        self._name = name
        self._find = find
        self._clock = clock
        self._started_ns = clock.monotonic_ns()
        self._published = PublishedNames(HOST)
        self._published.set_ok()  # no source is missing yet
        self._poller = Poller(name, self._published, self._poll)
        self._lock = threading.Lock()
        self._closed = False
        self._sources: tuple[NameSource, ...] = ()
        # Each is replaced as a whole by one thread: the workloads without a name, and the ids already searched for.
        self._unnamed: Mapping[WorkloadRef, Collection[int]] = {}
        self._searched_ids: frozenset[str] = frozenset()
        self._searched = threading.Event()

    @property
    def name(self) -> str:
        """Its name in ``sources`` and in ``otel_gpu.source``."""
        return self._name

    @property
    def sources(self) -> tuple[NameSource, ...]:
        """The sources found so far, in the order in which they were found."""
        return self._sources

    def search_for(self, unnamed: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        """Request a search for workloads without a name, given with their pids. New ones are pending until it is done.

        ``unnamed`` must not change after that.
        """
        # Computed before the search starts: it may end before this returns, and what it finds is read next cycle.
        new = frozenset(ref.id for ref in unnamed) - self._searched_ids
        if new:
            self._searched.clear()
        self._unnamed = unnamed
        self._poller.start()
        if new:
            self._poller.wake()
        read = self._published.read(new)
        # A search that cannot run holds no workload back.
        return replace(read, pending=frozenset()) if read.state is SourceState.UNAVAILABLE else read

    def wait(self, timeout_s: float) -> None:
        """Wait until the newest search has ended and the sources found have answered, at most ``timeout_s``."""
        deadline_ns = self._clock.monotonic_ns() + round(timeout_s * 1e9)
        self._searched.wait(timeout_s)
        for source in self._sources:
            source.wait(max(0.0, (deadline_ns - self._clock.monotonic_ns()) / 1e9))

    def close(self) -> None:
        """End the search without waiting for it. The sources found are closed by the caller, after this."""
        with self._lock:
            self._closed = True
        self._poller.stop(timeout_s=0.0)

    # -- on the thread ----------------------------------------------------------------

    def _poll(self, poller: Poller) -> None:
        while not poller.stopping:
            self._search()
            poller.reset_backoff()
            poller.sleep(self._pause_s())

    def _pause_s(self) -> float:
        is_early = self._clock.monotonic_ns() - self._started_ns < EARLY_S * 1e9
        return SEARCH_SOON_S if is_early or self._unnamed else SEARCH_S

    def _search(self) -> None:
        unnamed = self._unnamed
        found = self._find({ref.kind for ref in unnamed})
        for source in found.sources:
            source.read(unnamed)  # starts its look-up now, so that names may be known in the next cycle
            self._add(source)
        self._searched_ids = frozenset(ref.id for ref in unnamed)
        if unnamed.keys() == self._unnamed.keys():
            self._searched.set()
        if found.failed:
            self._published.set_degraded("; ".join(found.failed), errors=len(found.failed))
        else:
            self._published.set_ok()

    def _add(self, source: NameSource) -> None:
        with self._lock:
            if not self._closed:
                self._sources = (*self._sources, source)
                log.info("name source %s found", source.name)
                return
        source.close()
