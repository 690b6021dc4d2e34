"""Signals: pure functions of time with the specified averages."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from otel_gpu.sources.sim.signals import (
    Alternating,
    Bursty,
    OnOff,
    Points,
    Product,
    Signal,
    Steady,
    Wander,
    hash64,
    seed_for,
    uniform,
)


def mean(signal: Signal, seconds: float, step_s: float = 0.05) -> float:
    count = int(seconds / step_s)
    return sum(signal.at(i * step_s) for i in range(count)) / count


def test_the_hash_is_uniform_and_depends_on_each_argument() -> None:
    values = [uniform(7, 3, index) for index in range(20_000)]
    assert abs(sum(values) / len(values) - 0.5) < 0.01
    assert abs(sum(value * value for value in values) / len(values) - 1 / 3) < 0.01
    neighbours = sum((a - 0.5) * (b - 0.5) for a, b in pairwise(values)) / len(values)
    assert abs(neighbours) < 0.002
    assert len({hash64(seed, stream, index) for seed in range(9) for stream in range(9) for index in range(9)}) == 729


def test_the_hash_never_changes() -> None:
    """Recorded worlds and published accuracy figures depend on these numbers."""
    assert [hash64(1, 2, 3), hash64(0, 0, 0), hash64(-5, 0, -9)] == [
        0xB938944317636FBD,
        0x6DB6CA64564DAEAA,
        0xFC268F9A5DA02E24,
    ]
    assert seed_for(1, "gpu 0") != seed_for(1, "gpu 1") != seed_for(2, "gpu 1")


def test_points_are_interpolated_and_two_at_one_time_are_a_step() -> None:
    signal = Points(((10.0, 0.0), (20.0, 100.0), (20.0, 40.0), (30.0, 40.0)))
    assert [signal.at(t) for t in (-5.0, 10.0, 15.0, 19.99, 20.0, 25.0, 99.0)] == pytest.approx(
        [0.0, 0.0, 50.0, 99.9, 40.0, 40.0, 40.0]
    )


def test_points_repeat_with_their_period() -> None:
    signal = Points(((0.0, 1.0), (5.0, 1.0), (5.0, 0.0)), repeat_s=8.0)
    assert [signal.at(t) for t in (0.0, 4.9, 5.0, 7.9, 8.0, 800_001.0, -0.5)] == [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]


def test_a_bursty_signal_is_on_for_its_duty_and_its_bursts_differ() -> None:
    signal = Bursty(level=0.8, duty=0.3, period_s=5.0, seed=4, rest=0.1)
    assert mean(signal, 5_000.0) == pytest.approx(0.8 * 0.3 + 0.1 * 0.7, abs=0.01)
    lengths = {sum(signal.at(5.0 * k + i / 50) == 0.8 for i in range(250)) for k in range(50)}
    assert len(lengths) > 10


@pytest.mark.parametrize(("duty", "level"), [(0.0, 0.0), (1.0, 0.9)])
def test_a_bursty_signal_can_be_always_off_or_always_on(duty: float, level: float) -> None:
    signal = Bursty(level=0.9, duty=duty, period_s=3.0, seed=1)
    assert {signal.at(i * 0.01) for i in range(3_000)} == {level}


def test_an_on_off_signal_is_on_in_its_share_of_slots() -> None:
    signal = OnOff(level=1.0, duty=0.2, slot_s=2.0, seed=5)
    assert mean(signal, 10_000.0, 2.0) == pytest.approx(0.2, abs=0.02)
    assert all(signal.at(2.0 * k) == signal.at(2.0 * k + 1.99) for k in range(200))


def test_exactly_one_of_alternating_signals_is_on() -> None:
    turns = [Alternating(level=1.0, turn_s=7.0, turn=turn, turns=3) for turn in range(3)]
    assert all(sum(signal.at(i * 0.1) for signal in turns) == 1.0 for i in range(1_000))


def test_a_wandering_signal_stays_within_its_bounds() -> None:
    phases = Wander(low=0.2, high=0.6, knot_s=10.0, seed=3)
    drift = Wander(low=0.2, high=0.6, knot_s=10.0, seed=3, smooth=True)
    for signal in (phases, drift):
        values = [signal.at(i * 0.1) for i in range(20_000)]
        assert 0.2 <= min(values) < 0.23
        assert 0.57 < max(values) <= 0.6
    assert phases.at(11.0) == phases.at(19.9) != phases.at(20.1)
    steps = [abs(drift.at(i * 0.1 + 0.1) - drift.at(i * 0.1)) for i in range(5_000)]
    assert max(steps) <= 0.4 * 0.1 / 10.0 + 1e-9


def test_a_product_multiplies() -> None:
    assert Product(Steady(0.5), Points(((0.0, 0.0), (10.0, 1.0)))).at(4.0) == pytest.approx(0.2)


def test_a_signal_does_not_depend_on_the_order_of_evaluation() -> None:
    signal = Bursty(level=1.0, duty=0.5, period_s=1.0, seed=9)
    times = [math.sin(k) * 1e7 for k in range(200)]
    assert [signal.at(t) for t in times] == [signal.at(t) for t in reversed(times)][::-1]


@pytest.mark.parametrize(
    "build",
    [
        lambda: Points(()),
        lambda: Points(((2.0, 0.0), (1.0, 0.0))),
        lambda: Points(((0.0, 0.0),), repeat_s=0.0),
        lambda: Bursty(1.0, 1.5, 1.0, 0),
        lambda: Bursty(1.0, 0.5, 0.0, 0),
        lambda: OnOff(1.0, 0.5, 0.0, 0),
        lambda: Alternating(1.0, 1.0, 2, 2),
        lambda: Wander(0.0, 1.0, 0.0, 0),
    ],
)
def test_an_invalid_signal_is_refused(build: object) -> None:
    assert callable(build)
    with pytest.raises(ValueError, match=r"must|needs"):
        build()
