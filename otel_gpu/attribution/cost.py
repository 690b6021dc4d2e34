"""Billed time and cost: a GPU's time divided among its holders, and totals times prices."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from otel_gpu.attribution.keys import AccountKey, DeviceKey
from otel_gpu.model import Cost, CostBasis, GpuState, Totals

_US_PER_HOUR: Final = 3_600_000_000
_MJ_PER_KWH: Final = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in one currency. ``gpu_hour`` is by a word in the GPU's name; the longest match counts.

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
    """The cost of these totals by state; empty without prices. Undecided time costs when its state is decided."""
    if prices is None:
        return ()
    found: list[Cost] = []
    if (hour := prices.of_gpu(gpu_name)) is not None:
        times = {
            GpuState.BUSY: totals.billed_busy_us,
            GpuState.IDLE: totals.billed_idle_us,
            GpuState.ALLOCATED: totals.billed_allocated_us,
            GpuState.UNKNOWN: totals.billed_unknown_us,
        }
        found += [Cost(state, CostBasis.TIME, time_us * hour / _US_PER_HOUR) for state, time_us in times.items()]
    if prices.kwh is not None:
        energies = {
            GpuState.BUSY: totals.busy_mj,
            GpuState.IDLE: totals.idle_mj,
            GpuState.UNKNOWN: totals.unknown_mj,
        }
        found += [Cost(state, CostBasis.ENERGY, mj * prices.kwh / _MJ_PER_KWH) for state, mj in energies.items()]
    return tuple(found)


def billed_us(
    window_us: int, holders: Mapping[DeviceKey, Collection[AccountKey]], sm_counts: Mapping[str, int]
) -> dict[AccountKey, int]:
    """Divide a GPU's time among its holders: equally on a device, between MIG instances by their SMs.

    ``sm_counts`` has the SMs of every MIG instance; without MIG it is empty and devices share equally. The time of an
    instance without holders is not billed, and a holder of no known instance is billed nothing.
    """
    weights = sm_counts or dict.fromkeys((device.mig_uuid for device in holders), 1)
    whole = max(1, sum(weights.values()))
    billed: dict[AccountKey, int] = {}
    for device, keys in holders.items():
        share_us = window_us * weights.get(device.mig_uuid, 0) // whole
        each_us, rest_us = divmod(share_us, len(keys))
        billed |= {key: each_us + (place < rest_us) for place, key in enumerate(sorted(keys))}
    return billed
