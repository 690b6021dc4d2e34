"""A state directory that cannot be used yet: taken into use when it can, as when a pod has been replaced by another."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.errors import Unavailable
from otel_gpu.model import Snapshot, SourceState
from otel_gpu.sources.workers import Pending, TooLate, Worker
from otel_gpu.state.recovery import Recovered
from otel_gpu.state.saved import Kept
from otel_gpu.state.store import Run, Store

log = logging.getLogger(__name__)


class Opening:
    """Opens a store, and never twice at once: a disk that is slow to open it may give us the lock at any time."""

    def __init__(self, path: Path, open_store: Callable[[], Store]) -> None:
        self._path = path
        self._open = open_store
        self._under_way: Pending[Store] | None = None

    def first(self, within_s: float) -> Store:
        """The store; Unavailable says why there is none, or none yet."""
        worker = Worker("otel-gpu-open")
        try:
            self._under_way = worker.start(self._open)
        except Unavailable:  # no room for a thread
            return self._open()
        worker.close()  # it ends with the call
        return self._outcome(self._under_way, within_s)

    def again(self) -> Store:
        """The same, once more: what the first attempt gives, if that has only just ended."""
        return self._open() if self._under_way is None else self._outcome(self._under_way, 0.0)

    def _outcome(self, under_way: Pending[Store], within_s: float) -> Store:
        try:
            store = under_way.result(time.monotonic() + within_s)
        except TooLate:
            raise Unavailable(f"{self._path}: the disk does not answer") from None
        except Unavailable:
            self._under_way = None
            raise
        self._under_way = None
        return store


class AwaitedStore:
    """A Store that is opened as soon as it can be, which is tried in every cycle.

    What another agent left there is removed at once: the books here have begun anew, and it knows nothing of what is
    told from them. Whoever is next goes on from these, once they were saved.
    """

    def __init__(self, path: Path, open_store: Callable[[], Store], because: str) -> None:
        self.path = path
        self._open = open_store
        self._because = because
        self._store: Store | None = None
        self._cycles = 0

    @property
    def state(self) -> tuple[SourceState, str | None]:
        """Whether a restart would lose nothing by now, and why not."""
        if self._store is None:
            return SourceState.UNAVAILABLE, f"nothing is saved: {self._because}"
        return self._store.state

    def recover(self, options: AttributionOptions) -> Recovered | None:  # noqa: ARG002 - as a Store has it
        """Nothing: it cannot be used yet."""
        return None

    def discard(self, damaged: str | None = None) -> str:  # noqa: ARG002 - as a Store has it
        """Nothing: there was nothing to recover."""
        return "cannot be used yet"

    def begin(self, number: int, run: Run, *, resumed_ns: int | None = None, new_driver: bool = False) -> None:
        """Nothing: there is no journal before the books were saved."""

    def append(self, snapshot: Snapshot, missed: int = 0) -> bool:
        """Journal a cycle, if the directory is ours by now; whether it is journalled."""
        self._cycles += missed
        if self._store is None:
            self._store = self._taken_over()
        if self._store is None:
            self._cycles += 1
            return False
        missed, self._cycles = self._cycles, 0
        return self._store.append(snapshot, missed)

    def give_up(self, reason: str) -> None:
        """What was saved is no longer true, if anything was."""
        if self._store is not None:
            self._store.give_up(reason)

    def save(self, kept: Kept, run: Run) -> None:
        """Save the books whole, if the directory is ours."""
        if self._store is not None:
            self._store.save(kept, run)

    def close(self, kept: Kept, run: Run | None, timeout_s: float) -> None:
        """Save the books for the last time, if the directory can be had."""
        store = self._store
        if store is None and run is not None:
            store = self._taken_over()
            if store is not None:
                store.begin(self._cycles, run)
        if store is not None:
            store.close(kept, run, timeout_s)

    def _taken_over(self) -> Store | None:
        try:
            store = self._open()
        except Unavailable as error:
            self._because = str(error)
            return None
        log.info("%s can be used, and counters are kept there from now on", self.path)
        # Until the books are there nothing there is trusted: a journal of later cycles has none to go on from.
        store.give_up(self._because)
        return store
