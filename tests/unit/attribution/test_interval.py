"""Energy between two readings."""

from __future__ import annotations

from otel_gpu.attribution.interval import EnergyMeter, Metered
from otel_gpu.model import GpuIdentity, GpuReading

IDENTITY = GpuIdentity(0, "GPU-0", "GPU")


def reading(
    at_s: float, *, energy_mj: int | None = None, power_w: float | None = None, limit_w: float | None = 400.0
) -> GpuReading:
    return GpuReading(IDENTITY, round(at_s * 1e9), energy_mj=energy_mj, power_w=power_w, power_limit_w=limit_w)


def test_the_first_reading_gives_no_energy_and_the_second_the_difference() -> None:
    meter = EnergyMeter()
    assert meter.read(reading(0, energy_mj=1_000)) is None
    assert meter.read(reading(5, energy_mj=251_000)) == Metered(250_000, 5.0)
    assert meter.source == "counter"


def test_a_counter_that_went_down_was_reset_and_has_a_new_base() -> None:
    meter = EnergyMeter()
    meter.read(reading(0, energy_mj=9_000))
    assert meter.read(reading(5, energy_mj=100)) == Metered(0, 5.0, reset=True)
    assert meter.read(reading(10, energy_mj=700)) == Metered(600, 5.0)


def test_a_missing_reading_is_covered_by_the_next_one() -> None:
    meter = EnergyMeter()
    meter.read(reading(0, energy_mj=0))
    assert meter.read(reading(5, power_w=100)) is None
    assert meter.read(reading(10, energy_mj=1_000)) == Metered(1_000, 10.0)


def test_more_than_the_board_can_draw_is_an_anomaly() -> None:
    meter = EnergyMeter()
    meter.read(reading(0, energy_mj=0))
    assert meter.read(reading(1, energy_mj=600_000)) == Metered(600_000, 1.0)
    assert meter.read(reading(2, energy_mj=600_000 + 600_001)) == Metered(600_001, 1.0, anomalous=True)
    found = meter.read(reading(3, energy_mj=1 << 63))
    assert found is not None
    assert found.anomalous


def test_no_time_between_two_readings_leaves_their_energy_to_the_next() -> None:
    meter = EnergyMeter()
    meter.read(reading(5, energy_mj=0))
    assert meter.read(reading(5, energy_mj=10)) is None
    assert meter.read(reading(3, energy_mj=20)) is None
    assert meter.read(reading(6, energy_mj=30)) == Metered(30, 1.0)


def test_without_a_counter_power_is_integrated_and_no_fraction_lost() -> None:
    meter = EnergyMeter()
    meter.read(reading(0, power_w=0.0001))
    total = sum(found.delta_mj for s in range(1, 101) if (found := meter.read(reading(s, power_w=0.0001))) is not None)
    assert meter.source == "power"
    assert total in (9, 10)  # 0.1 mJ a second for 100 s


def test_power_is_the_mean_of_both_ends() -> None:
    meter = EnergyMeter()
    meter.read(reading(0, power_w=100))
    assert meter.read(reading(2, power_w=200)) == Metered(300_000, 2.0)


def test_absurd_figures_give_no_energy() -> None:
    meter = EnergyMeter()
    for bad in (reading(0, power_w=float("nan")), reading(1, power_w=float("inf")), reading(2, power_w=-5.0)):
        assert meter.read(bad) is None
    assert meter.read(reading(3, energy_mj=-1)) is None
