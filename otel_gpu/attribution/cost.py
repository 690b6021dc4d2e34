"""What use has cost: totals times prices. Busy and idle apart, so that waste has a price of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from otel_gpu.attribution.places import Place, WorkloadLine
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
    """What these totals come to, by what was done; empty without prices. What is undecided costs when it is decided."""
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
    window_us: int, payers: Mapping[Place, Sequence[WorkloadLine]], sm_counts: Mapping[str, int]
) -> dict[WorkloadLine, int]:
    """A GPU's time divided among those who pay for it: equally in a place, between MIG instances by their SMs.

    The part of an instance that nobody is in is nobody's, and who is in no instance that is known pays for none.
    ``sm_counts`` are those of all instances there are; without them places share alike.
    """
    parts: dict[WorkloadLine, int] = {}
    weights = sm_counts or dict.fromkeys((place.mig_uuid for place in payers), 1)
    whole = sum(weights.values())
    for place, lines in sorted(payers.items()):
        share_us = window_us * weights.get(place.mig_uuid, 0) // max(1, whole)
        each_us, rest_us = divmod(share_us, max(1, len(lines)))
        for rank, line in enumerate(sorted(lines)):
            parts[line] = each_us + (rank < rest_us)
    return parts
