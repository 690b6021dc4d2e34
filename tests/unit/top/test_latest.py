from __future__ import annotations

from otel_gpu.clock import ManualClock
from otel_gpu.errors import Unavailable
from otel_gpu.top.latest import Latest, LatestView
from tests.unit.top.views import view_of


def test_the_newest_view_is_read_and_the_callback_runs() -> None:
    changes: list[int] = []
    latest = LatestView(ManualClock())
    assert latest.read() == Latest()
    latest.on_change(lambda: changes.append(1))
    shown = view_of()
    latest.put(shown)
    assert latest.read().view is shown
    assert latest.read().outage is None
    assert changes == [1]


def test_an_outage_begins_with_the_first_loss_and_has_the_latest_reason() -> None:
    clock = ManualClock(wall_ns=100 * 10**9)
    latest, shown = LatestView(clock), view_of()
    latest.put(shown)
    latest.lose("it closed the connection")
    clock.advance(60)
    latest.lose("connection refused")
    outage = latest.read().outage
    assert outage is not None
    assert (outage.since_s, outage.reason) == (100.0, "connection refused")
    assert latest.read().view is shown
    latest.put(shown)
    assert latest.read().outage is None


def test_silence_is_an_outage_after_three_intervals_and_a_grace_period() -> None:
    clock = ManualClock(wall_ns=100 * 10**9)
    latest = LatestView(clock)
    latest.put(view_of())  # one every 5 s
    clock.advance(25)
    assert latest.read().outage is None
    clock.advance(0.1)
    outage = latest.read().outage
    assert outage is not None
    assert round(outage.since_s, 3) == 100.0
    latest.put(view_of())
    assert latest.read().outage is None


def test_an_outage_keeps_its_beginning_when_the_reason_changes() -> None:
    clock = ManualClock(wall_ns=100 * 10**9)
    latest = LatestView(clock)
    latest.put(view_of())  # one every 5 s
    clock.advance(30)
    missed = latest.read().outage
    clock.advance(30)
    latest.lose("it closed the connection")
    outage = latest.read().outage
    assert missed is not None
    assert outage is not None
    assert outage.since_s == missed.since_s == 100.0
    assert outage.reason == "it closed the connection"


def test_silence_counts_from_the_last_view_without_reads_in_between() -> None:
    clock = ManualClock(wall_ns=100 * 10**9)
    latest = LatestView(clock)
    latest.put(view_of())
    clock.advance(60)
    latest.lose("connection refused")
    outage = latest.read().outage
    assert outage is not None
    assert outage.since_s == 100.0


def test_a_failure_is_kept() -> None:
    latest, error = LatestView(ManualClock()), Unavailable("no driver")
    latest.fail(error)
    assert latest.failure is error
