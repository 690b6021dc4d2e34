"""Values of workloads and their processes: ``gpu.workload.*`` and ``gpu.process.*``.

A workload or process that has ended holds nothing, and keeps its counters. Every method and state of a counter is
exported from the first export on, at 0 while it is unused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from otel_gpu.metrics.labels import NO_ATTRIBUTES, Attributes
from otel_gpu.metrics.rows import MJ_PER_J, US_PER_S, Use, UseRow, Value
from otel_gpu.model import GpuState, ProcessReport, WorkloadGpu

_MEASURED: Final[Attributes] = {"gpu.attribution.method": "measured"}
_ESTIMATED: Final[Attributes] = {"gpu.attribution.method": "estimated"}
_INFERRED: Final[Attributes] = {"gpu.attribution.method": "inferred"}
_BUSY: Final[Attributes] = {"gpu.state": GpuState.BUSY.value}
_IDLE: Final[Attributes] = {"gpu.state": GpuState.IDLE.value}
_ALLOCATED: Final[Attributes] = {"gpu.state": GpuState.ALLOCATED.value}
_UNKNOWN: Final[Attributes] = {"gpu.state": GpuState.UNKNOWN.value}


def workload_values(row: UseRow[WorkloadGpu], currency: str) -> Iterator[Value]:
    """The values of a workload on one device. ``currency`` is that of its costs.

    A workload that could open a GPU, was not granted it and has not used it has a value of access only.
    """
    part, totals = row.use, row.use.totals
    # A grant is known from the runtime that gave it; an open GPU only while the GPU is watched.
    is_known = row.is_watched or not part.active or part.allocation is not None
    yield "gpu.workload.access", int(part.active or part.possible) if is_known else None, NO_ATTRIBUTES
    if part.possible:
        return
    yield "gpu.workload.info", None if row.declared is None else 1, row.declared or NO_ATTRIBUTES
    yield "gpu.workload.memory.usage", part.measured_bytes if part.active else 0, _MEASURED
    yield "gpu.workload.memory.usage", part.inferred_bytes if part.active else 0, _INFERRED
    has_confidence = part.active and part.inferred_bytes is not None
    yield "gpu.workload.memory.confidence", part.confidence if has_confidence else None, NO_ATTRIBUTES
    yield "gpu.workload.utilization", utilization(row), NO_ATTRIBUTES
    yield "gpu.workload.memory.bandwidth.utilization", bandwidth_utilization(row), NO_ATTRIBUTES
    yield "gpu.workload.idle.duration", idle_duration_s(row), NO_ATTRIBUTES
    yield "gpu.workload.idle.memory", idle_memory_bytes(row), NO_ATTRIBUTES
    yield "gpu.workload.allocation", part.allocation, NO_ATTRIBUTES
    for cost in part.costs:
        own = {"gpu.state": cost.state.value, "gpu.cost.basis": cost.basis.value, "gpu.cost.currency": currency}
        yield "gpu.workload.cost", cost.amount, own
    if totals is None:
        return
    if row.has_utilization:
        yield "gpu.workload.compute.time", totals.compute_us / US_PER_S, NO_ATTRIBUTES
    if row.has_energy:
        yield "gpu.workload.energy", (totals.energy.measured_mj or 0) / MJ_PER_J, _MEASURED
        yield "gpu.workload.energy", (totals.energy.estimated_mj or 0) / MJ_PER_J, _ESTIMATED
        yield "gpu.workload.energy", (totals.energy.inferred_mj or 0) / MJ_PER_J, _INFERRED
        yield "gpu.workload.idle.energy", totals.idle_mj / MJ_PER_J, NO_ATTRIBUTES
    yield "gpu.workload.time", totals.busy_us / US_PER_S, _BUSY
    yield "gpu.workload.time", totals.idle_us / US_PER_S, _IDLE
    yield "gpu.workload.time", totals.allocated_us / US_PER_S, _ALLOCATED
    yield "gpu.workload.time", totals.unknown_us / US_PER_S, _UNKNOWN
    yield "gpu.workload.idle.memory.time", totals.idle_byte_us / US_PER_S, NO_ATTRIBUTES


def process_values(row: UseRow[ProcessReport]) -> Iterator[Value]:
    """The values of a process on one device."""
    process, totals = row.use, row.use.totals
    yield "gpu.process.memory.usage", process_memory_bytes(row), _MEASURED
    yield "gpu.process.utilization", utilization(row), NO_ATTRIBUTES
    yield "gpu.process.memory.bandwidth.utilization", bandwidth_utilization(row), NO_ATTRIBUTES
    yield "gpu.process.idle.duration", idle_duration_s(row), NO_ATTRIBUTES
    yield "gpu.process.idle.memory", idle_memory_bytes(row), NO_ATTRIBUTES
    yield "gpu.process.start_time", process.start_time_s, NO_ATTRIBUTES
    # Only a GPU that is watched shows that a process is still on it.
    is_known = row.is_watched or not process.active
    yield "gpu.process.active", int(process.active) if is_known else None, NO_ATTRIBUTES
    if totals is None:
        return
    if row.has_utilization:
        yield "gpu.process.compute.time", totals.compute_us / US_PER_S, NO_ATTRIBUTES
    if row.has_energy:
        yield "gpu.process.energy", (totals.energy.measured_mj or 0) / MJ_PER_J, _MEASURED
        yield "gpu.process.energy", (totals.energy.estimated_mj or 0) / MJ_PER_J, _ESTIMATED
        yield "gpu.process.energy", (totals.energy.inferred_mj or 0) / MJ_PER_J, _INFERRED


# ---------------------------------------------------------------------------- what both have


def utilization(row: UseRow[Use]) -> float | None:
    """SM share in the last window, 0 to 1."""
    if row.use.active:
        return row.use.sm_ratio
    return 0.0 if row.has_utilization else None


def bandwidth_utilization(row: UseRow[Use]) -> float | None:
    """Share of the last window with memory traffic, 0 to 1."""
    if row.use.active:
        return row.use.bandwidth_ratio
    return 0.0 if row.has_utilization else None


def idle_duration_s(row: UseRow[Use]) -> float | None:
    """Seconds without work, 0 while busy; absent where the state is unknown, and once it has ended."""
    use = row.use
    if not use.active:
        return None
    if use.state is GpuState.BUSY:
        return 0.0
    return use.idle_s if use.state is GpuState.IDLE else None


def idle_memory_bytes(row: UseRow[Use]) -> int | None:
    """Bytes held while idle. Absent, not 0, where the state is unknown."""
    use = row.use
    if not use.active:
        return 0 if row.has_utilization else None
    return use.idle_bytes if use.idle_bytes or use.state is not GpuState.UNKNOWN else None


def process_memory_bytes(row: UseRow[ProcessReport]) -> int | None:
    """Bytes as the driver lists them."""
    return row.use.memory_bytes if row.use.active else 0
