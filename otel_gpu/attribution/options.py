"""Options of attribution."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from otel_gpu.attribution.cost import Prices


class EnergyPolicy(StrEnum):
    """How static energy is divided: the idle power of the GPU, and the power of contexts without work."""

    RESIDENT = "resident"
    SM = "sm"
    MEMORY = "memory"
    NONE = "none"


class EnergyModel(StrEnum):
    """How the energy of work is divided: by SM share, or by SM share times the power learned for each process."""

    SM = "sm"
    LEARNED = "learned"


@dataclass(frozen=True, slots=True)
class AttributionOptions:
    """Options with their defaults. ``assumed_idle_fraction`` of the power limit is assumed as unobserved idle power."""

    energy_policy: EnergyPolicy = EnergyPolicy.RESIDENT
    energy_model: EnergyModel = EnergyModel.LEARNED
    retention_s: float = 300.0
    max_processes: int = 2000
    max_workloads: int = 2000
    assumed_idle_fraction: float = 0.2
    prices: Prices | None = None
