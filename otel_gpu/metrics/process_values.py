"""Values of processes: ``gpu.process.*``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from otel_gpu.metrics import use_values
from otel_gpu.metrics.rows import UseRow
from otel_gpu.metrics.use_values import ESTIMATED, INFERRED, MEASURED, UseValue
from otel_gpu.model import ProcessReport

_Row: TypeAlias = UseRow[ProcessReport]


def memory_bytes(row: _Row) -> int | None:
    """Bytes as the driver lists them."""
    return row.use.memory_bytes if row.use.active else 0


def start_time_s(row: _Row) -> float | None:
    """When the process started, in Unix time."""
    return row.use.start_time_s


def active(row: _Row) -> int | None:
    """1 while on the GPU, 0 once ended. Only a GPU that is watched shows that a process is still on it."""
    return int(row.use.active) if row.is_watched or not row.use.active else None


PROCESS_VALUES: Final[Mapping[str, tuple[UseValue[ProcessReport], ...]]] = MappingProxyType(
    {
        "gpu.process.memory.usage": (UseValue(memory_bytes, MEASURED),),
        "gpu.process.utilization": (UseValue(use_values.utilization),),
        "gpu.process.memory.bandwidth.utilization": (UseValue(use_values.bandwidth_utilization),),
        "gpu.process.compute.time": (UseValue(use_values.compute_time_s),),
        "gpu.process.energy": (
            UseValue(use_values.measured_energy_j, MEASURED),
            UseValue(use_values.estimated_energy_j, ESTIMATED),
            UseValue(use_values.inferred_energy_j, INFERRED),
        ),
        "gpu.process.idle.duration": (UseValue(use_values.idle_duration_s),),
        "gpu.process.idle.memory": (UseValue(use_values.idle_memory_bytes),),
        "gpu.process.start_time": (UseValue(start_time_s),),
        "gpu.process.active": (UseValue(active),),
    }
)
