"""Pauses after failures."""

from __future__ import annotations

from otel_gpu.clock import ManualClock
from otel_gpu.sources.backoff import Backoff, TimedBackoff


def test_pauses_double_up_to_the_maximum_until_a_success() -> None:
    backoff = Backoff(5.0)
    assert [backoff.failed() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.worked()
    assert backoff.failed() == 1.0


def test_another_first_pause_is_doubled() -> None:
    backoff = Backoff(15.0, 5.0)
    assert [backoff.failed() for _ in range(3)] == [5.0, 10.0, 15.0]


def test_a_timed_pause_passes_on_the_clock_and_ends_with_a_success() -> None:
    clock = ManualClock()
    backoff = TimedBackoff(clock)
    assert backoff.remaining_s == 0.0
    backoff.failed()
    backoff.failed()
    assert backoff.remaining_s == 2.0
    clock.advance(1.5)
    assert backoff.remaining_s == 0.5
    clock.advance(1.0)
    assert backoff.remaining_s == 0.0
    backoff.failed()
    backoff.worked()
    assert backoff.remaining_s == 0.0


def test_after_a_success_a_timed_pause_is_the_shortest_one() -> None:
    backoff = TimedBackoff(ManualClock())
    for _ in range(8):
        backoff.failed()
    backoff.worked()
    backoff.failed()
    assert backoff.remaining_s == 1.0
