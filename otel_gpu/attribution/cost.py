"""What use has cost: totals times prices. Busy and idle apart, so that waste has a price of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from otel_gpu.model import Cost, CostBasis, GpuState, Totals

_US_PER_HOUR: Final = 3_600_000_000
_MJ_PER_KWH: Final = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in one currency. ``gpu_hour`` is by the words a GPU's name must contain; the longest match counts.

    The empty word matches every GPU.
    """

    currency: str
    gpu_hour: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    kwh: float | None = None

    def of_gpu(self, name: str) -> float | None:
        """Price of an hour of this GPU; ``None`` where none is set."""
        matching = [word for word in self.gpu_hour if word.lower() in name.lower()]
        return self.gpu_hour[max(matching, key=lambda word: (len(word), word))] if matching else None


def costs(totals: Totals, gpu_name: str, prices: Prices | None) -> tuple[Cost, ...]:
    """What these totals come to; empty without prices. Energy drawn while not idle counts as busy."""
    if prices is None:
        return ()
    found: list[Cost] = []
    if (hour := prices.of_gpu(gpu_name)) is not None:
        times = {
            GpuState.BUSY: totals.busy_us,
            GpuState.IDLE: totals.idle_us,
            GpuState.ALLOCATED: totals.allocated_us,
            GpuState.UNKNOWN: totals.unknown_us,
        }
        found += [Cost(state, CostBasis.TIME, time_us * hour / _US_PER_HOUR) for state, time_us in times.items()]
    if prices.kwh is not None:
        drawn_mj = totals.energy.total_mj or 0
        idle_mj = min(totals.idle_mj, drawn_mj)
        energies = {GpuState.BUSY: drawn_mj - idle_mj, GpuState.IDLE: idle_mj}
        found += [Cost(state, CostBasis.ENERGY, mj * prices.kwh / _MJ_PER_KWH) for state, mj in energies.items()]
    return tuple(found)
