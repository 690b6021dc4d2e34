"""A shorter retention than the agent's, for a listener that is configured so."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TypeAlias

from otel_gpu.metrics.rows import ReportRows, UseRow
from otel_gpu.model import ProcessKey, ProcessReport

_Ended: TypeAlias = tuple[ProcessKey, str, str | None, int]


class Retention:
    """Leaves out processes that ended more than ``longest_s`` ago.

    The time counts from the first report that shows the end, so that a scraper with a long interval still sees the last
    value once. Only processes of the newest report are remembered.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_ns = round(longest_s * 1e9)
        self._ended_ns: dict[_Ended, int] = {}
        self._lock = threading.Lock()

    def of(self, rows: ReportRows) -> ReportRows:
        """The rows of a cycle without those processes."""
        now_ns = rows.report.monotonic_ns
        ended = [_key(row) for row in rows.processes if not row.use.active]
        with self._lock:
            self._ended_ns = {key: self._ended_ns.get(key, now_ns) for key in ended}
            over = {key for key, since_ns in self._ended_ns.items() if now_ns - since_ns > self._longest_ns}
        return replace(rows, processes=tuple(row for row in rows.processes if _key(row) not in over))


def _key(row: UseRow[ProcessReport]) -> _Ended:
    return row.use.key, row.use.gpu_uuid, row.use.mig_uuid, row.use.naming
