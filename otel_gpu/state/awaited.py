"""A state directory that another agent uses: taken into use when that one has ended, as where pods are replaced."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.errors import Unavailable
from otel_gpu.model import Snapshot, SourceState
from otel_gpu.state.recovery import Recovered
from otel_gpu.state.store import Run, Store

log = logging.getLogger(__name__)


class AwaitedStore:
    """A Store that is opened when it can be, at the earliest when books are to be saved.

    What the other agent left there is removed: the books here have begun anew, and whoever is next goes on from them.
    """

    def __init__(self, path: Path, open_store: Callable[[], Store], because: str) -> None:
        self.path = path
        self._open = open_store
        self._because = because
        self._store: Store | None = None

    @property
    def state(self) -> tuple[SourceState, str | None]:
        """Whether a restart would lose nothing by now, and why not."""
        if self._store is None:
            return SourceState.UNAVAILABLE, f"nothing is saved: {self._because}"
        return self._store.state

    def recover(self, options: AttributionOptions) -> Recovered | None:  # noqa: ARG002 - as a Store has it
        """Nothing: it is still the other's."""
        return None

    def discard(self, damaged: str | None = None) -> None:
        """Nothing: there was nothing to recover."""

    def begin(self, number: int, run: Run, *, resumed_ns: int | None = None, new_driver: bool = False) -> None:
        """Nothing: there is no journal before the books were saved."""

    def append(self, snapshot: Snapshot) -> None:
        """Journal a cycle, if the directory is ours by now."""
        if self._store is not None:
            self._store.append(snapshot)

    def give_up(self, reason: str) -> None:
        """What was saved is no longer true, if anything was."""
        if self._store is not None:
            self._store.give_up(reason)

    def save(self, books: Any, run: Run) -> None:
        """Save the books whole, if the directory can be had."""
        store = self._had(run)
        if store is not None:
            store.save(books, run)

    def close(self, books: Any, run: Run | None, timeout_s: float) -> None:
        """Save the books for the last time, if the directory can be had."""
        store = self._store if run is None else self._had(run)
        if store is not None:
            store.close(books, run, timeout_s)

    def _had(self, run: Run) -> Store | None:
        if self._store is None:
            try:
                store = self._open()
            except Unavailable as error:
                self._because = str(error)
                return None
            log.info("%s is free, and counters are kept there from now on", self.path)
            # Until the books are there nothing there is trusted: a journal from cycle 1 on has none to go on from.
            store.give_up(self._because)
            store.begin(1, run)
            self._store = store
        return self._store
