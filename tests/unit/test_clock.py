from __future__ import annotations

import time

import pytest

from otel_gpu.clock import Clock, ManualClock, SystemClock


def test_the_system_clock_has_unix_time_and_monotonic_time_in_nanoseconds() -> None:
    clock: Clock = SystemClock()
    wall_before, monotonic_before = time.time_ns(), time.monotonic_ns()
    wall, monotonic = clock.wall_ns(), clock.monotonic_ns()
    assert abs(wall - wall_before) < 600 * 10**9  # of the same epoch; the clock may be stepped while we look
    assert monotonic_before <= monotonic <= time.monotonic_ns()


def test_a_manual_clock_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(wall_ns=5, monotonic_ns=7)
    assert [(clock.wall_ns(), clock.monotonic_ns()) for _ in range(3)] == [(5, 7)] * 3


@pytest.mark.parametrize(("seconds", "nanoseconds"), [(1, 10**9), (0.1, 10**8), (1e-9, 1), (0, 0)])
def test_advancing_moves_both_times_alike(seconds: float, nanoseconds: int) -> None:
    clock = ManualClock(wall_ns=1000, monotonic_ns=0)
    clock.advance(seconds)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (1000 + nanoseconds, nanoseconds)


def test_a_stepped_wall_clock_leaves_monotonic_time_alone() -> None:
    clock = ManualClock(wall_ns=10 * 10**9, monotonic_ns=3)
    clock.step_wall(-7.5)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (2_500_000_000, 3)
