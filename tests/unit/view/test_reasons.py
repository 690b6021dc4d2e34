"""How figures were obtained, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.model import EnergyBasis, EnergySplit, GpuTotals, MethodEnergy
from otel_gpu.view import reasons
from tests.builders import GIB, gpu
from tests.unit.metrics.builders import device, split

SINCE_NS = 1_700_000_000_000_000_000
SINCE = "since 2023-11-14 22:13 UTC"


def test_memory_is_measured_or_inferred_with_a_confidence() -> None:
    assert reasons.memory(2 * GIB, GIB, 0.9) == (
        "2.0 GiB measured, by the driver's process lists; "
        "1.0 GiB inferred (confidence 90 %), from open devices, grants and growth"
    )
    assert reasons.memory(None, None, None) == "unknown: the driver reports no figure"


def test_energy_is_given_by_method() -> None:
    energy = MethodEnergy(measured_mj=5000, estimated_mj=0, inferred_mj=2000)
    assert reasons.energy(energy, SINCE_NS) == (
        f"5 J measured (alone on the GPU); 2 J inferred (hidden, the only possible user); 0.0019 Wh in total {SINCE}"
    )
    assert reasons.energy(MethodEnergy(measured_mj=0), SINCE_NS) == f"none yet; 0 Wh in total {SINCE}"
    assert reasons.energy(MethodEnergy(), SINCE_NS) == "unknown: no energy data"


def test_power_is_the_mean_of_the_window() -> None:
    assert (
        reasons.power(MethodEnergy(estimated_mj=1000), 5.0)
        == "mean of the last 5.0 s: 1 J estimated (shared with others)"
    )
    assert reasons.power(MethodEnergy(measured_mj=0), 5.0) == "mean of the last 5.0 s: no energy"
    assert reasons.power(MethodEnergy(), 5.0).startswith("unknown: ")
    assert reasons.power(MethodEnergy(measured_mj=1), None).startswith("unknown: ")


def test_sm_utilisation_is_summed_over_places() -> None:
    assert reasons.sm(0.5) == "share of the SMs: mean of the driver's samples in the last window"
    assert "summed over 2 GPUs or MIG instances" in reasons.sm(0.5, 2)
    assert reasons.sm(None).startswith("unknown: ")


@pytest.mark.parametrize(
    ("idle_s", "places", "now_s", "energy_mj", "text"),
    [
        (None, 0, None, None, "unknown: no utilisation data"),
        (0.0, 1, None, None, f"not idle {SINCE}"),
        (300.0, 1, 30.0, None, f"held memory without work for 5 m; idle for 30 s now ({SINCE})"),
        (300.0, 1, None, 2000, f"held memory without work for 5 m, using 2 J ({SINCE})"),
        (
            1800.0, 3, None, None,
            f"held memory without work for 30 m of GPU time, summed over 3 GPUs or MIG instances ({SINCE})",
        ),
    ],
)  # fmt: skip
def test_idle_time_says_for_how_long_and_whether_now(
    idle_s: float | None, places: int, now_s: float | None, energy_mj: int | None, text: str
) -> None:
    assert reasons.idle(idle_s, places=places, now_s=now_s, energy_mj=energy_mj, since_ns=SINCE_NS) == text


@pytest.mark.parametrize("state", ["busy", "idle", "allocated", "unknown"])
def test_every_state_has_a_meaning(state: str) -> None:
    assert len(reasons.state(state)) > 10


def test_the_memory_of_a_gpu_is_a_sum() -> None:
    memory = split(
        limit=80 * GIB, reserved=GIB, measured=60 * GIB, overcount=2 * GIB, inferred=3 * GIB, unattributed=GIB
    )
    assert reasons.gpu(device(memory=memory))[0] == (
        "Memory: 80.0 GiB = 60.0 GiB measured − 2.0 GiB counted twice by the lists + 3.0 GiB inferred"
        " + 1.0 GiB unattributed + 1.0 GiB reserved by the driver + 17.0 GiB free, exact to the byte."
    )
    assert reasons.gpu(device(memory=split(reserved=None)))[1].startswith("This driver does not report the memory")
    assert reasons.gpu(device())[0] == "Memory: unknown; the driver reports no figure."


def test_the_energy_of_a_gpu_has_its_source_and_its_baselines() -> None:
    basis = EnergyBasis("counter", "resident", "sm", 66.0, "assumed", 66.4, "observed")
    lines = reasons.gpu(device(gpu(0, power_w=70), totals=GpuTotals(5000, 1000, 2000), basis=basis))
    assert "Energy so far: 8 J = 5 J attributed to workloads + 1 J idle, without workloads + 2 J unattributed." in lines
    assert (
        "Energy: the GPU's own counter; divided by policy resident, model sm."
        " Idle power 66 W (assumed); with contexts loaded 66 W (observed)."
    ) in lines
    other = reasons.gpu(device(basis=basis._replace(source="power")))
    assert any(line.startswith("Energy: power, integrated; ") for line in other)


def test_the_power_of_a_gpu_is_that_of_the_window() -> None:
    reading = gpu(0, power_w=70)
    assert reasons.gpu_power(device(reading)) == "as the driver reports it"
    assert reasons.gpu_power(device()) == "unknown"
    metered = device(reading)._replace(energy=EnergySplit(1000))
    assert reasons.gpu_power(metered) == "the mean since the last sample; the driver reports 70 W now"
    assert (
        reasons.gpu_power(metered._replace(reading=replace(reading, power_w=None))) == "the mean since the last sample"
    )
