"""What can be chosen about attribution."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from otel_gpu.attribution.cost import Prices
from otel_gpu.attribution.energy import EnergyPolicy

__all__ = ["AttributionOptions", "EnergyModel", "EnergyPolicy", "Prices"]


class EnergyModel(StrEnum):
    """How the energy of work is divided: by SM share, or by SM share times the watts each process was seen to draw."""

    SM = "sm"
    LEARNED = "learned"


@dataclass(frozen=True, slots=True)
class AttributionOptions:
    """Choices, with their defaults. Idle power that was never seen is taken to be this fraction of the power limit."""

    energy_policy: EnergyPolicy = EnergyPolicy.RESIDENT
    energy_model: EnergyModel = EnergyModel.LEARNED
    retention_s: float = 300.0
    max_processes: int = 2000
    max_workloads: int = 2000
    assumed_idle_fraction: float = 0.2
    prices: Prices | None = None
