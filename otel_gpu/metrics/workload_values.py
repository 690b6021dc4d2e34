"""Values of workloads: ``gpu.workload.*``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from otel_gpu.metrics import use_values
from otel_gpu.metrics.rows import UseRow
from otel_gpu.metrics.series import Point
from otel_gpu.metrics.use_values import ESTIMATED, INFERRED, MEASURED, MJ_PER_J, US_PER_S, UseValue
from otel_gpu.model import GpuState, Totals, WorkloadGpu

_Row: TypeAlias = UseRow[WorkloadGpu]

ACCESS: Final = "gpu.workload.access"
"""The one metric of a workload that could open a GPU, was not granted it, and has not used it."""

COST: Final = "gpu.workload.cost"


def _measured_memory_bytes(row: _Row) -> int | None:
    return row.use.measured_bytes if row.use.active else 0


def _inferred_memory_bytes(row: _Row) -> int | None:
    return row.use.inferred_bytes if row.use.active else 0


def _confidence(row: _Row) -> float | None:
    """Confidence of the inferred memory, 0 to 1."""
    return row.use.confidence if row.use.active and row.use.inferred_bytes is not None else None


def _time_s(state: GpuState, microseconds: Callable[[Totals], int]) -> UseValue[WorkloadGpu]:
    """Seconds spent in a state. Every state is exported from the first export on, at 0 while it is unused."""

    def value(row: _Row) -> float | None:
        totals = row.use.totals
        return None if totals is None else microseconds(totals) / US_PER_S

    return UseValue(value, {"gpu.state": state.value})


def _idle_memory_time(row: _Row) -> float | None:
    """Byte-seconds held while idle."""
    totals = row.use.totals
    return None if totals is None else totals.idle_byte_us / US_PER_S


def _idle_energy_j(row: _Row) -> float | None:
    totals = row.use.totals
    return totals.idle_mj / MJ_PER_J if row.has_energy and totals is not None else None


def _access(row: _Row) -> int | None:
    """1 while the workload has the GPU granted or open.

    A grant is known from the runtime that gave it; an open GPU only while the GPU is watched.
    """
    part = row.use
    is_known = row.is_watched or not part.active or part.allocation is not None
    return int(part.active or part.possible) if is_known else None


def _allocation(row: _Row) -> float | None:
    """GPUs granted; absent where no runtime reports grants."""
    return row.use.allocation


WORKLOAD_VALUES: Final[Mapping[str, tuple[UseValue[WorkloadGpu], ...]]] = MappingProxyType(
    {
        "gpu.workload.memory.usage": (
            UseValue(_measured_memory_bytes, MEASURED),
            UseValue(_inferred_memory_bytes, INFERRED),
        ),
        "gpu.workload.memory.confidence": (UseValue(_confidence),),
        "gpu.workload.utilization": (UseValue(use_values.utilization),),
        "gpu.workload.memory.bandwidth.utilization": (UseValue(use_values.bandwidth_utilization),),
        "gpu.workload.compute.time": (UseValue(use_values.compute_time_s),),
        "gpu.workload.energy": (
            UseValue(use_values.measured_energy_j, MEASURED),
            UseValue(use_values.estimated_energy_j, ESTIMATED),
            UseValue(use_values.inferred_energy_j, INFERRED),
        ),
        "gpu.workload.time": (
            _time_s(GpuState.BUSY, lambda totals: totals.busy_us),
            _time_s(GpuState.IDLE, lambda totals: totals.idle_us),
            _time_s(GpuState.ALLOCATED, lambda totals: totals.allocated_us),
            _time_s(GpuState.UNKNOWN, lambda totals: totals.unknown_us),
        ),
        "gpu.workload.idle.duration": (UseValue(use_values.idle_duration_s),),
        "gpu.workload.idle.memory": (UseValue(use_values.idle_memory_bytes),),
        "gpu.workload.idle.memory.time": (UseValue(_idle_memory_time),),
        "gpu.workload.idle.energy": (UseValue(_idle_energy_j),),
        ACCESS: (UseValue(_access),),
        "gpu.workload.allocation": (UseValue(_allocation),),
    }
)


def cost_points(rows: Sequence[_Row], currency: str) -> Iterator[Point]:
    """The cost of each workload. Its states and bases follow from the prices configured."""
    for row in rows:
        part = row.use
        start_ns = None if part.totals is None else part.totals.since_ns
        for cost in part.costs:
            own = {"gpu.state": cost.state.value, "gpu.cost.basis": cost.basis.value, "gpu.cost.currency": currency}
            yield Point(cost.amount, {**row.attributes, **own}, row.workload, start_ns)
