"""A CheckpointStore behind one worker thread with a deadline: no disk delays a cycle for more than a second, once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.errors import Unavailable
from otel_gpu.model import Snapshot, SourceState
from otel_gpu.sources.workers import Pending, TooLate, Worker
from otel_gpu.state.checkpoint import CheckpointData
from otel_gpu.state.gap_marker import GapMarker
from otel_gpu.state.recovery import RecoveredState
from otel_gpu.state.store import CheckpointStore, Run

T = TypeVar("T")

log = logging.getLogger(__name__)

DEADLINE_S: Final = 1.0
"""How long a cycle waits for the disk. After that no cycle waits until the disk has responded."""

START_S: Final = 10.0
"""How long a start waits for the disk, to open the directory and again to recover."""


class DeadlineStore:
    """Runs every call of a CheckpointStore on one worker, and waits for it until a deadline. Used by one thread.

    After a call that is late, the disk counts as hung: nothing is called until that call has returned. Then cycles have
    been exported that the directory lacks, so its files are removed, and the next checkpoint makes it valid again. A
    directory that cannot be opened yet is tried in every cycle; files of another agent in it are removed, too.

    The first cycle that is in no journal is marked in the ``marker`` before it is exported.
    """

    def __init__(
        self,
        path: Path,
        open_store: Callable[[], CheckpointStore],
        marker: GapMarker,
        *,
        deadline_s: float = DEADLINE_S,
        start_s: float = START_S,
        worker: Worker | None = None,
    ) -> None:
        self.path: Path | None = path
        self._open_store = open_store
        self._marker = marker
        self.deadline_s = deadline_s
        """How long a cycle waits for the disk."""
        self._start_s = start_s
        self._worker = Worker("otel-gpu-journal") if worker is None else worker
        self._store: CheckpointStore | None = None
        """Set on the worker."""
        self._not_open = "it is not open yet"
        """Why there is no store."""
        self._number = 0
        """The number of the last cycle, in the journal or not."""
        self._late: Pending[Any] | None = None
        """The call that missed its deadline, then the removal that follows it."""
        self._is_removing = False
        self._marked_reason: str | None = None
        """Why the last cycle is in no journal, if that is marked."""

    @property
    def state(self) -> tuple[SourceState, str | None]:
        """Whether a restart now would lose nothing, and the reason if not."""
        if self._late is not None:
            return SourceState.UNAVAILABLE, f"nothing is saved: {self._hung_reason}"
        if self._store is None:
            return SourceState.UNAVAILABLE, f"nothing is saved: {self._not_open}"
        return self._store.state

    @property
    def gap_ns(self) -> int | None:
        """When an agent last began to export figures that no journal has, in this boot (monotonic)."""
        return self._marker.marked_ns()

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether the journal is large enough for a checkpoint before its time."""
        return self._late is None and self._store is not None and self._store.is_checkpoint_due

    @property
    def _hung_reason(self) -> str:
        return f"{self.path}: the disk does not respond"

    # -- start ----------------------------------------------------------------------

    def open(self) -> None:
        """Open the directory; Unavailable if it cannot be used, or not yet."""
        self._call(self._open, None, self._start_s)
        if self._late is not None:
            raise Unavailable(self._hung_reason)

    def recover(self, options: AttributionOptions) -> RecoveredState | None:
        """The state of an earlier run, if it can be used."""
        store = self._store
        return None if store is None else self._call(partial(store.recover, options), None, self._start_s)

    def discard(self) -> None:
        """Remove all files."""
        if self._store is not None:
            self._call(self._store.discard, "")

    def begin(self, number: int, run: Run, *, resumed_ns: int | None = None, new_driver: bool = False) -> None:
        """Start a journal after cycle ``number`` of an earlier run that is resumed, or after 0."""
        self._number = number
        if self._store is not None:
            call = partial(self._store.begin, number, run, resumed_ns=resumed_ns, new_driver=new_driver)
            self._call(call, None)

    # -- every cycle ----------------------------------------------------------------

    def append(self, snapshot: Snapshot) -> None:
        """Write a cycle to the journal, or mark that it is in none."""
        self._number += 1
        append = partial(self._append, self._number, snapshot)
        if self._responds() and self._call(append, otherwise=False):
            self._marked_reason = None
            return
        reason = self.state[1] or ""
        # Marked again for another reason: the agent that had the directory may have saved since, and have ended.
        if reason != self._marked_reason:
            self._marker.mark(snapshot.monotonic_ns)
        self._marked_reason = reason

    def invalidate(self, reason: str) -> None:
        """Remove all files."""
        if self._store is not None:
            self._call(partial(self._store.invalidate, reason), None)

    def checkpoint(self, data: Callable[[], CheckpointData], run: Run) -> None:
        """Start to write a checkpoint after the last cycle; not while the disk is hung."""
        if self._store is not None and self._late is None:
            self._call(partial(self._store.checkpoint, self._number, data(), run), None)

    def close(self, data: Callable[[], CheckpointData], run: Run | None, timeout_s: float) -> None:
        """Write the last checkpoint, if there was a ``run``. The journal has what is not written in time."""
        if not self._responds() and self._is_removing and self._late is not None:
            with suppress(Unavailable):
                self._late.result(time.monotonic() + timeout_s)
        if self._responds():
            last = CheckpointData({}) if run is None else data()
            self._call(partial(self._close, last, run, timeout_s / 2), None, timeout_s)
        self._worker.close()

    # -- on the worker --------------------------------------------------------------

    def _open(self) -> None:
        try:
            self._store = self._open_store()
        except Unavailable as error:
            self._not_open = str(error)
            raise

    def _take_over(self) -> CheckpointStore | None:
        """Open the directory if that is possible by now. Its files do not match what this agent has exported."""
        with suppress(Unavailable):
            self._open()
        if self._store is not None:
            log.info("%s can be used now, counters are saved there from now on", self.path)
            self._store.invalidate(self._not_open)
        return self._store

    def _append(self, number: int, snapshot: Snapshot) -> bool:
        store = self._take_over() if self._store is None else self._store
        return store is not None and store.append(number, snapshot)

    def _remove(self) -> None:
        if self._store is not None:
            self._store.invalidate(self._hung_reason)

    def _close(self, last: CheckpointData, run: Run | None, wait_s: float) -> None:
        store = self._take_over() if self._store is None and run is not None else self._store
        if store is not None:
            store.close(self._number, last, run, wait_s)

    # -- deadlines ------------------------------------------------------------------

    def _call(self, call: Callable[[], T], otherwise: T, deadline_s: float | None = None) -> T:
        """Run a call on the worker; ``otherwise`` if it misses its deadline, or an earlier call has."""
        if self._late is not None:
            return otherwise
        try:
            pending = self._worker.start(call)
        except Unavailable:  # no thread can be started
            return call()
        try:
            return pending.result(time.monotonic() + (self.deadline_s if deadline_s is None else deadline_s))
        except TooLate:
            self._late = pending
            self._marked_reason = None  # what this call writes may be newer than the mark
            return otherwise

    def _responds(self) -> bool:
        """Whether the disk can be used. After a call that was late, the files are removed first."""
        if self._late is None:
            return True
        if not self._late.finished:
            return False
        if self._is_removing:
            self._late, self._is_removing = None, False
            return True
        self._is_removing = True
        self._late = self._worker.start(self._remove)
        return False


class NullStore:
    """Saves nothing; marks the gap at the first export."""

    path: Final = None
    state: Final = None
    gap_ns: Final = None
    is_checkpoint_due: Final = False

    def __init__(self, marker: GapMarker) -> None:
        self._marker = marker
        self._is_marked = False

    def recover(self, options: AttributionOptions) -> None:
        """No state."""

    def discard(self) -> None:
        """Do nothing."""

    def begin(self, number: int, run: Run, *, resumed_ns: int | None = None, new_driver: bool = False) -> None:
        """Do nothing."""

    def append(self, snapshot: Snapshot) -> None:
        """Mark the first cycle."""
        if not self._is_marked:
            self._is_marked = True
            self._marker.mark(snapshot.monotonic_ns)

    def invalidate(self, reason: str) -> None:
        """Do nothing."""

    def checkpoint(self, data: Callable[[], CheckpointData], run: Run) -> None:
        """Do nothing."""

    def close(self, data: Callable[[], CheckpointData], run: Run | None, timeout_s: float) -> None:
        """Do nothing."""
