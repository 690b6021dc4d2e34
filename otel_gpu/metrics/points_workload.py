"""Points of workloads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Final, TypeAlias

from otel_gpu.metrics import points_use
from otel_gpu.metrics.columns import OfRows
from otel_gpu.metrics.points_reading import Reading
from otel_gpu.metrics.points_use import PER_JOULE, PER_SECOND, Values
from otel_gpu.metrics.rows import Rows
from otel_gpu.metrics.series import Point
from otel_gpu.model import GpuState, WorkloadGpu

_Rows: TypeAlias = Rows[WorkloadGpu]

_STATES: Final = tuple(
    {"gpu.state": state.value} for state in (GpuState.BUSY, GpuState.IDLE, GpuState.ALLOCATED, GpuState.UNKNOWN)
)

_TIMES_US: Final = attrgetter("busy_us", "idle_us", "allocated_us", "unknown_us")
_NO_TIMES: Final = (None,) * len(_STATES)


def _memory(rows: _Rows) -> Values:
    measured: Values = [part.measured_bytes if part.active else 0 for part in rows.uses]
    return measured + [part.inferred_bytes if part.active else 0 for part in rows.uses]


def _confidence(rows: _Rows) -> Values:
    return [part.confidence if part.active and part.inferred_bytes is not None else None for part in rows.uses]


def _time_us(rows: _Rows) -> Values:
    told = [_NO_TIMES if totals is None else _TIMES_US(totals) for totals in rows.totals]
    return list(chain.from_iterable(zip(*told, strict=True)))


def _idle_memory_us(rows: _Rows) -> Values:
    return [None if totals is None else totals.idle_byte_us for totals in rows.totals]


def _idle_energy_mj(rows: _Rows) -> Values:
    return [
        totals.idle_mj if tells and totals is not None else None
        for totals, tells in zip(rows.totals, rows.tells_energy, strict=True)
    ]


def _access(rows: _Rows) -> Values:
    """What was granted, those who granted it tell; who only had it open, nobody while the GPU is not watched."""
    return [
        int(part.active or part.possible) if watched or not part.active or part.allocation is not None else None
        for part, watched in zip(rows.uses, rows.watched, strict=True)
    ]


def _allocation(rows: _Rows) -> Values:
    """Absent where nobody tells what was granted."""
    return [part.allocation for part in rows.uses]


WORKLOAD_VALUES: Final[Mapping[str, OfRows[WorkloadGpu]]] = MappingProxyType(
    {
        "gpu.workload.memory.usage": OfRows(_memory, (points_use.METHODS[0], points_use.METHODS[2])),
        "gpu.workload.memory.confidence": OfRows(_confidence),
        "gpu.workload.utilization": OfRows(points_use.utilization),
        "gpu.workload.memory.bandwidth.utilization": OfRows(points_use.bandwidth),
        "gpu.workload.compute.time": OfRows(points_use.compute_us, per=PER_SECOND),
        "gpu.workload.energy": OfRows(points_use.energy_mj, points_use.METHODS, per=PER_JOULE),
        "gpu.workload.time": OfRows(_time_us, _STATES, per=PER_SECOND),
        "gpu.workload.idle.duration": OfRows(points_use.idle_duration),
        "gpu.workload.idle.memory": OfRows(points_use.idle_memory),
        "gpu.workload.idle.memory.time": OfRows(_idle_memory_us, per=PER_SECOND),
        "gpu.workload.idle.energy": OfRows(_idle_energy_mj, per=PER_JOULE),
        "gpu.workload.access": OfRows(_access, of_possible=True),
        "gpu.workload.allocation": OfRows(_allocation),
    }
)


def cost_points(reading: Reading) -> Iterator[Point]:
    """What each part has cost; which states and bases there are, its own costs say."""
    rows = reading.workloads
    if not any(part.costs for part in rows.uses):  # as everywhere without prices
        return
    for part, identity, attributes in zip(rows.uses, *rows.seats, strict=True):
        start_ns = None if part.totals is None else part.totals.since_ns
        for cost in part.costs:
            own = {
                "gpu.state": cost.state.value,
                "gpu.cost.basis": cost.basis.value,
                "gpu.cost.currency": reading.currency,
            }
            yield Point(cost.amount, attributes.adding(own), identity, start_ns)
