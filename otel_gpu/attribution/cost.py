"""What use has cost: totals times prices. Busy and idle apart, so that waste has a price of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
    places = sorted(payers)
    for place, share_us in zip(places, places_us(window_us, places, sm_counts), strict=True):
        lines = sorted(payers[place])
        parts.update(zip(lines, equal_parts(share_us, len(lines)), strict=True))
    return parts


def places_us(window_us: int, places: Collection[Place], sm_counts: Mapping[str, int]) -> list[int]:
    """A GPU's time divided among the places on it where anybody pays for it."""
    if not sm_counts and len(places) == 1:
        return [window_us]
    weights = sm_counts or dict.fromkeys((place.mig_uuid for place in places), 1)
    whole = max(1, sum(weights.values()))
    return [window_us * weights.get(place.mig_uuid, 0) // whole for place in places]


def equal_parts(total: int, count: int) -> list[int]:
    """A whole number in whole parts, of which the first are larger by one where it does not divide."""
    each, rest = divmod(total, max(1, count))
    return [each + 1] * rest + [each] * (count - rest)
