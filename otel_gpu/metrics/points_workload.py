"""Points of workloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from otel_gpu.metrics import points_use
from otel_gpu.metrics.points_reading import Point, Reading, Row
from otel_gpu.model import GpuState, WorkloadGpu

_Row: TypeAlias = Row[WorkloadGpu]


def _memory(row: _Row) -> Iterator[Point]:
    part = row.use
    found = {"measured": part.measured_bytes, "inferred": part.inferred_bytes}
    for method, held_bytes in found.items():
        if not part.active:
            held_bytes = 0  # noqa: PLW2901 - what has ended holds nothing
        if held_bytes is not None:
            yield row.point(held_bytes, {"gpu.attribution.method": method})


def _confidence(row: _Row) -> Iterator[Point]:
    part = row.use
    if part.active and part.inferred_bytes is not None and part.confidence is not None:
        yield row.point(part.confidence)


def _time(row: _Row) -> Iterator[Point]:
    totals = row.use.totals
    if totals is None:
        return
    times_us = {
        GpuState.BUSY: totals.busy_us,
        GpuState.IDLE: totals.idle_us,
        GpuState.ALLOCATED: totals.allocated_us,
        GpuState.UNKNOWN: totals.unknown_us,
    }
    for state, time_us in times_us.items():
        yield row.point(time_us / 1e6, {"gpu.state": state.value}, start_ns=totals.since_ns)


def _idle_memory_time(row: _Row) -> Iterator[Point]:
    totals = row.use.totals
    if totals is not None:
        yield row.point(totals.idle_byte_us / 1e6, start_ns=totals.since_ns)


def _idle_energy(row: _Row) -> Iterator[Point]:
    totals = row.use.totals
    if totals is not None and row.tells_energy:
        yield row.point(totals.idle_mj / 1e3, start_ns=totals.since_ns)


def _access(row: _Row) -> Iterator[Point]:
    """What was granted, those who granted it tell; who only had it open, nobody while the GPU is not watched."""
    part = row.use
    if row.watched or not part.active or part.allocation is not None:
        yield row.point(int(part.active or part.possible))


def _allocation(row: _Row) -> Iterator[Point]:
    """Absent where nobody tells what was granted."""
    if row.use.allocation is not None:
        yield row.point(row.use.allocation)


_OF_ROW: Final[Mapping[str, Callable[[_Row], Iterator[Point]]]] = MappingProxyType(
    {
        "gpu.workload.memory.usage": _memory,
        "gpu.workload.memory.confidence": _confidence,
        "gpu.workload.utilization": points_use.utilization,
        "gpu.workload.memory.bandwidth.utilization": points_use.bandwidth,
        "gpu.workload.compute.time": points_use.compute_time,
        "gpu.workload.energy": points_use.energy,
        "gpu.workload.time": _time,
        "gpu.workload.idle.duration": points_use.idle_duration,
        "gpu.workload.idle.memory": points_use.idle_memory,
        "gpu.workload.idle.memory.time": _idle_memory_time,
        "gpu.workload.idle.energy": _idle_energy,
        "gpu.workload.access": _access,
        "gpu.workload.allocation": _allocation,
    }
)


def workload_points(name: str, reading: Reading) -> Iterator[Point]:
    """The points of a metric of workloads."""
    if name == "gpu.workload.cost":
        yield from _cost(reading)
        return
    of_row = _OF_ROW[name]
    for row in reading.workloads:
        if not row.use.possible or name == "gpu.workload.access":
            yield from of_row(row)


def _cost(reading: Reading) -> Iterator[Point]:
    for row in reading.workloads:
        totals = row.use.totals
        for cost in row.use.costs:
            own = {
                "gpu.state": cost.state.value,
                "gpu.cost.basis": cost.basis.value,
                "gpu.cost.currency": reading.currency,
            }
            yield row.point(cost.amount, own, start_ns=totals.since_ns if totals is not None else None)
