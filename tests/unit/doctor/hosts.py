"""A host without problems, for tests that break one thing."""

from __future__ import annotations

from dataclasses import replace

from otel_gpu.model import GpuReading, UtilizationRead
from tests.builders import gpu, listed, memory


def complete_gpu(index: int = 0, pids: tuple[int, ...] = (1,), *, persistent: bool | None = True) -> GpuReading:
    """A GPU with every figure."""
    reading = gpu(index, [listed(pid) for pid in pids], memory=memory(), energy_mj=1, power_w=60)
    return replace(reading, utilization=UtilizationRead(0, 0, ()), persistence_mode=persistent)
