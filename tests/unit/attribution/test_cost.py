"""Billed time and costs."""

from __future__ import annotations

import pytest

from otel_gpu.attribution.cost import Prices, billed_us, costs
from otel_gpu.attribution.keys import DeviceKey, WorkloadAccountKey, WorkloadOnDevice
from otel_gpu.model import CostBasis, GpuState, MethodEnergy, Totals

HOUR_US = 3_600_000_000
KWH_MJ = 3_600_000_000


def totals(*, busy_h: int = 0, idle_h: int = 0, drawn_kwh: int = 0, idle_kwh: int = 0) -> Totals:
    return Totals(
        since_ns=0,
        energy=MethodEnergy(drawn_kwh * KWH_MJ, 0, 0),
        compute_us=0,
        busy_us=0,
        idle_us=0,
        allocated_us=0,
        unknown_us=0,
        idle_byte_us=0,
        idle_mj=idle_kwh * KWH_MJ,
        busy_mj=(drawn_kwh - idle_kwh) * KWH_MJ,
        billed_busy_us=busy_h * HOUR_US,
        billed_idle_us=idle_h * HOUR_US,
    )


def test_without_prices_there_are_no_costs() -> None:
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
        (GpuState.UNKNOWN, CostBasis.ENERGY),
    ]
    assert [cost.amount for cost in found] == pytest.approx([3.5, 1.5, 0])


def test_workloads_that_share_a_gpu_share_its_time_to_the_microsecond() -> None:
    here = DeviceKey("GPU-0", "")
    keys = [WorkloadAccountKey(WorkloadOnDevice("container", name, here)) for name in "cab"]
    assert billed_us(10, {here: keys}, {}) == {keys[1]: 4, keys[2]: 3, keys[0]: 3}


def test_instances_share_a_gpus_time_by_their_sms_and_an_empty_one_is_billed_to_none() -> None:
    large, small = DeviceKey("GPU-0", "MIG-3g"), DeviceKey("GPU-0", "MIG-1g")
    first, second = (WorkloadAccountKey(WorkloadOnDevice("container", "a", device)) for device in (large, small))
    sm_counts = {"MIG-3g": 42, "MIG-1g": 14, "MIG-2g": 28}
    assert billed_us(84, {large: [first], small: [second]}, sm_counts) == {first: 42, second: 14}
