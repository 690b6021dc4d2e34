"""A shorter memory than the agent's, for a listener that was told so."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TypeAlias

from otel_gpu.metrics.points_reading import Reading
from otel_gpu.metrics.rows import Row
from otel_gpu.model import ProcessKey, ProcessReport

_Ended: TypeAlias = tuple[ProcessKey, str, str | None, int]


class Retention:
    """Leaves out processes that ended more than ``longest_s`` ago.

    Counted from the first reading that showed the end, so that whoever asks seldom still sees the last value once. It
    remembers those that the newest reading has, and no others.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_ns = round(longest_s * 1e9)
        self._ended_ns: dict[_Ended, int] = {}
        self._lock = threading.Lock()

    def of(self, reading: Reading) -> Reading:
        """What is told of a cycle."""
        now_ns = reading.attribution.monotonic_ns
        ended = [_key(row) for row in reading.processes if not row.use.active]
        with self._lock:
            self._ended_ns = {key: self._ended_ns.get(key, now_ns) for key in ended}
            over = {key for key, since_ns in self._ended_ns.items() if now_ns - since_ns > self._longest_ns}
        return replace(reading, processes=reading.processes.only(lambda row: _key(row) not in over))


def _key(row: Row[ProcessReport]) -> _Ended:
    return row.use.key, row.use.gpu_uuid, row.use.mig_uuid, row.use.naming
