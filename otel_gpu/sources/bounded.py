"""A process source with a deadline: reading ``maps`` waits for a lock that a process stuck in the driver may hold."""

from __future__ import annotations

import time
from collections.abc import Collection

from otel_gpu.errors import Unavailable
from otel_gpu.model import SourceState
from otel_gpu.sources.base import ProcessRead, ProcessSource
from otel_gpu.sources.workers import Worker


class BoundedProcessSource:
    """Asks another source on a thread of its own. While that does not answer, the last answer stands, as degraded."""

    def __init__(self, source: ProcessSource, deadline_s: float) -> None:
        self._source = source
        self._deadline_s = deadline_s
        self._worker = Worker(f"otel-gpu-{source.name}")
        self._last = ProcessRead()

    @property
    def name(self) -> str:
        """The other source's name."""
        return self._source.name

    def read(self, pids: Collection[int]) -> ProcessRead:
        """The other source's answer, or its last one if it is late."""
        wanted = frozenset(pids)
        try:
            pending = self._worker.start(lambda: self._source.read(wanted))
            self._last = pending.result(time.monotonic() + self._deadline_s)
        except Unavailable as late:
            reason = f"{late}; what was known of processes before stands"
            return ProcessRead(self._last.processes, SourceState.DEGRADED, reason, errors=1)
        return self._last
