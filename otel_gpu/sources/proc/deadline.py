"""A process source with a deadline: ``maps`` takes a lock that a process stuck in the driver may hold."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from otel_gpu.errors import Unavailable
from otel_gpu.model import SourceState
from otel_gpu.sources.base import ProcessRead, ProcessSource
from otel_gpu.sources.workers import Pending, Worker


class DeadlineProcessSource:
    """Reads another source on a thread of its own. After the deadline it returns the last answer, as degraded.

    A late answer is the last answer of the next read. A source that always takes longer than the deadline is one
    cycle late, and only a source that never answers has no effect.
    """

    def __init__(self, source: ProcessSource, deadline_s: float) -> None:
        self._source = source
        self._deadline_s = deadline_s
        self._worker = Worker(f"otel-gpu-{source.name}")
        self._late: Pending[ProcessRead] | None = None
        # Before the first answer it is unknown what is missing.
        self._last = ProcessRead(pids_complete=False, all_visible=False)

    @property
    def name(self) -> str:
        """The other source's name."""
        return self._source.name

    def read(self, pids: Collection[int], measured: Collection[int] = ()) -> ProcessRead:
        """The other source's answer, or its last one if it is late."""
        asked, with_figure = frozenset(pids), frozenset(measured)
        self._take_late()
        try:
            pending = self._late = self._worker.start(lambda: self._source.read(asked, with_figure))
            self._last = pending.result(time.monotonic() + self._deadline_s)
        except Unavailable as late:
            reason = f"{late}; processes are those of the last answer"
            return replace(self._last, state=SourceState.DEGRADED, reason=reason, errors=1)
        self._late = None
        return self._last

    def _take_late(self) -> None:
        late = self._late
        if late is not None and late.finished:
            self._late = None
            with suppress(Unavailable):
                self._last = late.result(0.0)
