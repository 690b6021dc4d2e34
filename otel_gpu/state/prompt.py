"""A store that keeps no cycle waiting: a thread of its own writes, and a disk that hangs is not waited for twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.errors import Unavailable
from otel_gpu.model import Snapshot, SourceState
from otel_gpu.sources.workers import Pending, TooLate, Worker
from otel_gpu.state.awaited import AwaitedStore
from otel_gpu.state.recovery import Recovered
from otel_gpu.state.saved import Kept
from otel_gpu.state.store import Run, Store
from otel_gpu.state.unjournalled import Unjournalled

T = TypeVar("T")

DEADLINE_S: Final = 1.0
"""What a cycle waits for the disk, once: from then on no cycle waits until the disk has answered."""

START_S: Final = 10.0
"""What a start waits for it: the journal of half a minute, or of a disk that was full for hours, is told again."""


class PromptStore:
    """A Store, or one that is awaited. Used by one thread, which is never kept for longer than the deadline.

    Whenever a cycle is told that is in no journal after one that was, that is noted (``unjournalled``) before anybody
    sees it. When a disk that hung answers again, what it has is given up, and the next time the books are saved whole.
    """

    def __init__(
        self,
        store: Store | AwaitedStore,
        unjournalled: Unjournalled,
        *,
        deadline_s: float = DEADLINE_S,
        start_s: float = START_S,
    ) -> None:
        self._store = store
        self._unjournalled = unjournalled
        self._deadline_s, self._start_s = deadline_s, start_s
        self._worker = Worker("otel-gpu-journal")
        self._late: Pending[object] | None = None
        """What the disk has not answered in time, or what has to be done about that since."""
        self._given_up = False
        self._missed = 0
        self._noted: str | None = None
        """Why the last cycle is in no journal, if it is in none, and nothing later than the note can be on disk."""

    @property
    def path(self) -> Path:
        """The directory."""
        return self._store.path

    @property
    def state(self) -> tuple[SourceState, str | None]:
        """Whether a restart would lose nothing by now, and why not."""
        if self._late is not None:
            return SourceState.UNAVAILABLE, f"nothing is saved: {self._hangs}"
        return self._store.state

    @property
    def unjournalled_ns(self) -> int | None:
        """Since when anybody in this boot tells figures that no journal has (monotonic)."""
        return self._unjournalled.since_ns()

    @property
    def _hangs(self) -> str:
        return f"{self.path}: the disk does not answer"

    # -- beginning ------------------------------------------------------------------

    def recover(self, options: AttributionOptions) -> Recovered | None:
        """What an earlier run left, if it can be trusted."""
        return self._asked(partial(self._store.recover, options), None, self._start_s)

    def discard(self) -> None:
        """Remove what was saved."""
        self._asked(self._store.discard, "")

    def begin(self, number: int, run: Run, *, resumed_ns: int | None = None, new_driver: bool = False) -> None:
        """Journal from here on: after cycle ``number`` of an earlier run that is taken up, or from the first one."""
        self._asked(partial(self._store.begin, number, run, resumed_ns=resumed_ns, new_driver=new_driver), None)

    # -- every cycle ----------------------------------------------------------------

    def append(self, snapshot: Snapshot) -> None:
        """Journal a cycle, or note that it is in no journal."""
        journalled = False
        if self._answers():
            missed, self._missed = self._missed, 0
            journalled = self._asked(partial(self._store.append, snapshot, missed), otherwise=False)
        else:
            self._missed += 1
        because = None if journalled else self.state[1] or ""
        # Not only the first time: an agent that is waited for has saved cycles since, and may have ended.
        if because is not None and because != self._noted:
            self._unjournalled.note(snapshot.monotonic_ns)
        self._noted = because

    def give_up(self, reason: str) -> None:
        """Remove all that was saved."""
        self._asked(partial(self._store.give_up, reason), None)

    def save(self, kept: Callable[[], Kept], run: Run) -> None:
        """Save the books whole, as of the last cycle appended; not while the disk does not answer."""
        if self._late is None:
            self._asked(partial(self._store.save, kept(), run), None)

    def close(self, kept: Callable[[], Kept], run: Run | None, timeout_s: float) -> None:
        """Save the books for the last time, if there are any; what takes too long is in the journal as well."""
        if not self._answers() and self._given_up and self._late is not None:
            with suppress(Unavailable):  # it has come back, and what arrived late is being removed
                self._late.result(time.monotonic() + timeout_s)
        if self._answers():
            last = kept() if run is not None else Kept({})
            self._asked(partial(self._store.close, last, run, timeout_s), None, 2 * timeout_s)
        self._worker.close()

    # -- the disk -------------------------------------------------------------------

    def _asked(self, call: Callable[[], T], otherwise: T, deadline_s: float | None = None) -> T:
        """What a call gives; ``otherwise`` if it is not done in time, and while an earlier one is not."""
        if self._late is not None:
            return otherwise
        try:
            pending = self._worker.start(call)
        except Unavailable:  # no room for a thread
            return call()
        try:
            return pending.result(time.monotonic() + (self._deadline_s if deadline_s is None else deadline_s))
        except TooLate:
            self._late = pending  # type: ignore[assignment]  # only whether it is done is of interest
            self._noted = None  # books may be on their way that are later than the note
            return otherwise

    def _answers(self) -> bool:
        """Whether the disk can be asked. One that has come back first removes what it has: cycles were told since."""
        if self._late is None:
            return True
        if not self._late.finished:
            return False
        if self._given_up:
            self._late, self._given_up = None, False
            return True
        self._given_up = True
        self._late = self._worker.start(partial(self._store.give_up, self._hangs))
        return False


class Nowhere:
    """No store: nothing is kept, which is noted before the first figures are told."""

    path: Final = None
    state: Final = None
    unjournalled_ns: Final = None

    def __init__(self, unjournalled: Unjournalled) -> None:
        self._unjournalled = unjournalled
        self._noted = False

    def recover(self, options: AttributionOptions) -> None:
        """There is nothing."""

    def discard(self) -> None:
        """There is nothing."""

    def begin(self, number: int, run: Run, *, resumed_ns: int | None = None, new_driver: bool = False) -> None:
        """Nothing is journalled."""

    def append(self, snapshot: Snapshot) -> None:
        """Note that this cycle, and every later one, is in no journal."""
        if not self._noted:
            self._noted = True
            self._unjournalled.note(snapshot.monotonic_ns)

    def give_up(self, reason: str) -> None:
        """There is nothing."""

    def save(self, kept: Callable[[], Kept], run: Run) -> None:
        """Nothing is saved."""

    def close(self, kept: Callable[[], Kept], run: Run | None, timeout_s: float) -> None:
        """Nothing is saved."""
