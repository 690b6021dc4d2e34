"""Processes known only from the driver's accounting records: they came and went between two cycles."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final, NamedTuple, Self

from otel_gpu.attribution.cycle import Cycle
from otel_gpu.attribution.keys import ProcessOnDevice
from otel_gpu.attribution.plain import number, text, whole
from otel_gpu.model import AccountingRecord

_REMEMBERED_DEPARTURES: Final = 4096
"""How many departed processes are remembered per GPU; the driver's buffer of records holds about as many."""


class ShortLivedProcess(NamedTuple):
    """A process that no cycle saw: when it started (Unix time) and its work in GPU-microseconds."""

    pid: int
    start_time_us: int
    compute_us: int


class ShortLivedProcesses:
    """Distinguishes records of processes that no cycle saw from those whose work is already in the ledger."""

    def __init__(self) -> None:
        self._departed_s: dict[str, dict[int, float]] = {}
        """By GPU and pid: when a process that was seen left (Unix time)."""

    def note_departure(self, at: ProcessOnDevice, cycle: Cycle) -> None:
        """A process that was seen has left a GPU: its record is not news."""
        departed_s = self._departed_s.setdefault(at.device.gpu_uuid, {})
        departed_s.pop(at.process.pid, None)
        departed_s[at.process.pid] = cycle.wall_s
        while len(departed_s) > _REMEMBERED_DEPARTURES:
            del departed_s[next(iter(departed_s))]

    def find(
        self,
        gpu_uuid: str,
        records: Iterable[AccountingRecord],
        present_pids: Collection[int],
        *,
        epoch_us: int,
        now_us: int,
    ) -> list[ShortLivedProcess]:
        """Processes that were never seen. A record that began after a pid's last owner left is another process's."""
        departed_s = self._departed_s.get(gpu_uuid, {})
        found = []
        for _, record in sorted({(record.pid, record.start_time_us): record for record in records}.items()):
            left_s = departed_s.get(record.pid)
            if record.pid in present_pids or (left_s is not None and record.start_time_us / 1e6 <= left_s):
                continue
            compute_us = _compute_us(record, epoch_us, now_us)
            found.append(ShortLivedProcess(record.pid, record.start_time_us, compute_us))
        return found

    # -- checkpoint -----------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """The departures, as plain data, the oldest first."""
        return {uuid: [list(item) for item in left.items()] for uuid, left in sorted(self._departed_s.items())}

    @classmethod
    def from_state(cls, data: Any) -> Self:
        """The counterpart of ``to_state``; ValueError for any other data."""
        restored = cls()
        try:
            for uuid, departed_s in data.items():
                restored._departed_s[text(uuid)] = {whole(pid): number(at_s) for pid, at_s in departed_s}
        except (AttributeError, TypeError) as error:
            raise ValueError("not a state of departures") from error
        return restored


def _compute_us(record: AccountingRecord, epoch_us: int, now_us: int) -> int:
    """Work in GPU-microseconds for the part of the process's life since the ledger began, up to now."""
    end_us = min(now_us, record.start_time_us + max(0, record.time_ms) * 1000)
    lived_us = max(0, end_us - max(epoch_us, record.start_time_us))
    return lived_us * min(100, max(0, record.gpu_percent or 0)) // 100
