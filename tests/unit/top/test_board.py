from __future__ import annotations

from otel_gpu.clock import ManualClock
from otel_gpu.errors import Unavailable
from otel_gpu.top.board import Board, Seen
from tests.unit.top.cycles import cycle


def test_the_newest_cycle_is_seen_and_who_waits_is_told() -> None:
    told: list[int] = []
    board = Board(ManualClock())
    assert board.look() == Seen()
    board.on_news(lambda: told.append(1))
    shown = cycle()
    board.put(shown)
    assert board.look().cycle is shown
    assert board.look().lost is None
    assert told == [1]


def test_what_was_lost_is_so_since_the_first_time_and_for_the_latest_reason() -> None:
    clock = ManualClock(wall_ns=100 * 10**9)
    board, shown = Board(clock), cycle()
    board.put(shown)
    board.lose("it has ended the connection")
    clock.advance(60)
    board.lose("connection refused")
    lost = board.look().lost
    assert lost is not None
    assert (lost.since_s, lost.why) == (100.0, "connection refused")
    assert board.look().cycle is shown
    board.put(shown)
    assert board.look().lost is None


def test_cycles_that_cease_to_come_are_missed_after_three_and_some_grace() -> None:
    clock = ManualClock(wall_ns=100 * 10**9)
    board = Board(clock)
    board.put(cycle())  # one every 5 s
    clock.advance(25)
    assert board.look().lost is None
    clock.advance(0.1)
    lost = board.look().lost
    assert lost is not None
    assert round(lost.since_s, 3) == 100.0
    board.put(cycle())
    assert board.look().lost is None


def test_since_when_it_is_lost_stays_when_another_reason_is_found() -> None:
    clock = ManualClock(wall_ns=100 * 10**9)
    board = Board(clock)
    board.put(cycle())  # one every 5 s
    clock.advance(30)
    missed = board.look().lost
    clock.advance(30)
    board.lose("it has ended the connection")
    lost = board.look().lost
    assert missed is not None
    assert lost is not None
    assert lost.since_s == missed.since_s == 100.0
    assert lost.why == "it has ended the connection"


def test_silence_counts_from_the_last_cycle_though_nobody_looked_meanwhile() -> None:
    clock = ManualClock(wall_ns=100 * 10**9)
    board = Board(clock)
    board.put(cycle())
    clock.advance(60)
    board.lose("connection refused")
    lost = board.look().lost
    assert lost is not None
    assert lost.since_s == 100.0


def test_a_failure_is_there_for_who_asks() -> None:
    board, error = Board(ManualClock()), Unavailable("no driver")
    board.fail(error)
    assert board.failure is error
