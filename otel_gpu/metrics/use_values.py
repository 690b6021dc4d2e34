"""Values that workloads and processes have alike. An ended use holds nothing, and keeps its counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, NamedTuple

from otel_gpu.metrics.labels import NO_ATTRIBUTES, Attributes
from otel_gpu.metrics.rows import Use, UseRow
from otel_gpu.model import GpuState

MJ_PER_J: Final = 1e3
US_PER_S: Final = 1e6
"""The ledger counts millijoules and microseconds."""

MEASURED: Final[Attributes] = {"gpu.attribution.method": "measured"}
ESTIMATED: Final[Attributes] = {"gpu.attribution.method": "estimated"}
INFERRED: Final[Attributes] = {"gpu.attribution.method": "inferred"}


class UseValue(NamedTuple, Generic[Use]):
    """One value of each row, ``None`` where the row has no point, and the attributes that its points add."""

    value: Callable[[UseRow[Use]], int | float | None]
    attributes: Attributes = NO_ATTRIBUTES


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


def compute_time_s(row: UseRow[Use]) -> float | None:
    """GPU-seconds of work."""
    totals = row.use.totals
    return totals.compute_us / US_PER_S if row.has_utilization and totals is not None else None


def measured_energy_j(row: UseRow[Use]) -> float | None:
    """Joules measured. Every method is exported from the first export on, at 0 while it is unused."""
    totals = row.use.totals
    return (totals.energy.measured_mj or 0) / MJ_PER_J if row.has_energy and totals is not None else None


def estimated_energy_j(row: UseRow[Use]) -> float | None:
    """Joules estimated."""
    totals = row.use.totals
    return (totals.energy.estimated_mj or 0) / MJ_PER_J if row.has_energy and totals is not None else None


def inferred_energy_j(row: UseRow[Use]) -> float | None:
    """Joules inferred."""
    totals = row.use.totals
    return (totals.energy.inferred_mj or 0) / MJ_PER_J if row.has_energy and totals is not None else None


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
