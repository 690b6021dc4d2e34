"""Points of processes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from otel_gpu.metrics import points_use
from otel_gpu.metrics.columns import OfRows
from otel_gpu.metrics.points_use import PER_JOULE, PER_SECOND, Values
from otel_gpu.metrics.rows import Rows
from otel_gpu.model import ProcessReport

_Rows: TypeAlias = Rows[ProcessReport]


def _memory(rows: _Rows) -> Values:
    return [use.memory_bytes if use.active else 0 for use in rows.uses]


def _start_time(rows: _Rows) -> Values:
    return [use.start_time_s for use in rows.uses]


def _active(rows: _Rows) -> Values:
    """That it has ended, /proc tells; that it is still on the GPU, nobody while it is not watched."""
    return [
        int(use.active) if watched or not use.active else None
        for use, watched in zip(rows.uses, rows.watched, strict=True)
    ]


PROCESS_VALUES: Final[Mapping[str, OfRows[ProcessReport]]] = MappingProxyType(
    {
        "gpu.process.memory.usage": OfRows(_memory, ({"gpu.attribution.method": "measured"},)),
        "gpu.process.utilization": OfRows(points_use.utilization),
        "gpu.process.memory.bandwidth.utilization": OfRows(points_use.bandwidth),
        "gpu.process.compute.time": OfRows(points_use.compute_us, per=PER_SECOND),
        "gpu.process.energy": OfRows(points_use.energy_mj, points_use.METHODS, per=PER_JOULE),
        "gpu.process.idle.duration": OfRows(points_use.idle_duration),
        "gpu.process.idle.memory": OfRows(points_use.idle_memory),
        "gpu.process.start_time": OfRows(_start_time),
        "gpu.process.active": OfRows(_active),
    }
)
