"""Prices of use."""

from __future__ import annotations

import pytest

from otel_gpu.attribution.cost import Prices, costs
from otel_gpu.model import CostBasis, GpuState, MethodEnergy, Totals

HOUR_US = 3_600_000_000
KWH_MJ = 3_600_000_000


def totals(*, busy_h: int = 0, idle_h: int = 0, drawn_kwh: int = 0, idle_kwh: int = 0) -> Totals:
    energy = MethodEnergy(drawn_kwh * KWH_MJ, 0, 0)
    return Totals(0, energy, 0, busy_h * HOUR_US, idle_h * HOUR_US, 0, 0, 0, idle_kwh * KWH_MJ)


def test_without_prices_nothing_costs_anything() -> None:
    assert costs(totals(busy_h=5), "NVIDIA A100", None) == ()


def test_time_costs_by_the_gpus_model_busy_and_idle_apart() -> None:
    prices = Prices("EUR", {"": 1.0, "A100": 2.0, "A100-SXM4-80GB": 3.0})
    found = costs(totals(busy_h=2, idle_h=4), "NVIDIA A100-SXM4-80GB", prices)
    assert {cost.state: cost.amount for cost in found} == {
        GpuState.BUSY: 6.0,
        GpuState.IDLE: 12.0,
        GpuState.ALLOCATED: 0.0,
        GpuState.UNKNOWN: 0.0,
    }
    assert {cost.basis for cost in found} == {CostBasis.TIME}


def test_a_model_without_a_price_costs_nothing() -> None:
    assert costs(totals(busy_h=2), "NVIDIA L4", Prices("EUR", {"A100": 2.0})) == ()


def test_energy_costs_by_the_kilowatt_hour() -> None:
    found = costs(totals(drawn_kwh=10, idle_kwh=3), "NVIDIA L4", Prices("EUR", kwh=0.5))
    assert [(cost.state, cost.basis) for cost in found] == [
        (GpuState.BUSY, CostBasis.ENERGY),
        (GpuState.IDLE, CostBasis.ENERGY),
    ]
    assert [cost.amount for cost in found] == pytest.approx([3.5, 1.5])
