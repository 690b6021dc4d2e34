"""Processes that only the driver's accounting tells of: they came and went between two cycles."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, Self

from otel_gpu.attribution.cycle import Cycle
from otel_gpu.attribution.places import ProcessAt
from otel_gpu.attribution.plain import number, text, whole
from otel_gpu.model import AccountingRecord

_REMEMBERED: Final = 4096
"""How many that left a GPU are remembered; the driver's buffer of records holds about as many."""


@dataclass(frozen=True, slots=True)
class Life:
    """A process that nobody saw: when it started (Unix time) and what it did."""

    pid: int
    start_time_us: int
    compute_us: int


class ShortLived:
    """Tells records of processes nobody saw from those of processes whose work is already in the books."""

    def __init__(self) -> None:
        self._left: dict[str, dict[int, float]] = {}

    def ended(self, at: ProcessAt, cycle: Cycle) -> None:
        """A process has left a GPU: a record of it is not news."""
        left = self._left.setdefault(at.place.gpu_uuid, {})
        left.pop(at.key.pid, None)
        left[at.key.pid] = cycle.wall_s
        while len(left) > _REMEMBERED:
            del left[next(iter(left))]

    def new(
        self, gpu_uuid: str, records: Iterable[AccountingRecord], here: Collection[int], *, epoch_us: int, now_us: int
    ) -> list[Life]:
        """Who of these was never seen; a record that began after a pid's last owner had left is somebody else's."""
        left = self._left.get(gpu_uuid, {})
        lives = []
        for _, record in sorted({(record.pid, record.start_time_us): record for record in records}.items()):
            known_until_s = left.get(record.pid)
            if record.pid in here or (known_until_s is not None and record.start_time_us / 1e6 <= known_until_s):
                continue
            lives.append(Life(record.pid, record.start_time_us, _compute_us(record, epoch_us, now_us)))
        return lives

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Who left, as plain data, the longest gone first."""
        return {uuid: [list(item) for item in left.items()] for uuid, left in sorted(self._left.items())}

    @classmethod
    def from_state(cls, data: Any) -> Self:
        """The counterpart of ``to_state``; ValueError if it is not what that gave."""
        restored = cls()
        try:
            for uuid, left in data.items():
                restored._left[text(uuid)] = {whole(pid): number(at_s) for pid, at_s in left}
        except (AttributeError, TypeError) as error:
            raise ValueError("not a state of who left") from error
        return restored


def _compute_us(record: AccountingRecord, epoch_us: int, now_us: int) -> int:
    """Its work in GPU-microseconds, for the part of its life since the books began; nobody lives on after now."""
    end_us = min(now_us, record.start_time_us + max(0, record.time_ms) * 1000)
    lived_us = max(0, end_us - max(epoch_us, record.start_time_us))
    return lived_us * min(100, max(0, record.gpu_percent or 0)) // 100
