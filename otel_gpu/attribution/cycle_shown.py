"""What one cycle showed of one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu.attribution.baseline import BaselineEstimate
from otel_gpu.attribution.compute import ComputeWindow
from otel_gpu.attribution.energy import Division
from otel_gpu.attribution.hidden import HiddenSplit
from otel_gpu.attribution.meter import Metered
from otel_gpu.attribution.places import ProcessAt
from otel_gpu.attribution.presence import Resident
from otel_gpu.model import MemorySplit


class GpuCycle(NamedTuple):
    """What one cycle showed of one GPU. ``memory`` and ``hidden`` are by MIG instance, "" for the GPU itself.

    ``crowded`` is true where processes that the agent cannot see may use the GPU: their number and work are unknown.
    """

    residents: Mapping[ProcessAt, Resident]
    memory: Mapping[str, MemorySplit | None]
    hidden: Mapping[str, HiddenSplit]
    compute: ComputeWindow | None
    metered: Metered | None
    division: Division | None
    baseline: BaselineEstimate | None
    anomalies: int
    lists_told: bool = True
    crowded: bool = False

    @property
    def infers(self) -> bool:
        """Whether anybody is thought to hold memory that no list tells."""
        return any(parts.inferred for parts in self.hidden.values())

    def held_bytes(self, at: ProcessAt) -> int | None:
        """Memory of a process by the driver's figure, or else as inferred; ``None`` where neither tells."""
        resident = self.residents.get(at)
        if resident is not None and resident.memory_bytes is not None:
            return resident.memory_bytes
        hidden = self.hidden.get(at.place.mig_uuid)
        held = hidden.inferred.get(at) if hidden is not None else None
        return None if held is None else held.bytes
