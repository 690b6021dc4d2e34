"""Points of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from otel_gpu.metrics import points_use
from otel_gpu.metrics.points_reading import Point, Reading, Row
from otel_gpu.model import ProcessAttribution

_Row: TypeAlias = Row[ProcessAttribution]


def _memory(row: _Row) -> Iterator[Point]:
    held_bytes = row.use.memory_bytes if row.use.active else 0
    if held_bytes is not None:
        yield row.point(held_bytes, {"gpu.attribution.method": "measured"})


def _start_time(row: _Row) -> Iterator[Point]:
    if row.use.start_time_s is not None:
        yield row.point(row.use.start_time_s)


def _active(row: _Row) -> Iterator[Point]:
    """That it has ended, /proc tells; that it is still on the GPU, nobody while it is not watched."""
    if row.watched or not row.use.active:
        yield row.point(int(row.use.active))


_OF_ROW: Final[Mapping[str, Callable[[_Row], Iterator[Point]]]] = MappingProxyType(
    {
        "gpu.process.memory.usage": _memory,
        "gpu.process.utilization": points_use.utilization,
        "gpu.process.memory.bandwidth.utilization": points_use.bandwidth,
        "gpu.process.compute.time": points_use.compute_time,
        "gpu.process.energy": points_use.energy,
        "gpu.process.idle.duration": points_use.idle_duration,
        "gpu.process.idle.memory": points_use.idle_memory,
        "gpu.process.start_time": _start_time,
        "gpu.process.active": _active,
    }
)


def process_points(name: str, reading: Reading) -> Iterator[Point]:
    """The points of a metric of processes; none where that level is switched off."""
    of_row = _OF_ROW[name]
    for row in reading.processes:
        yield from of_row(row)
