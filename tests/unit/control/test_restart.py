from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.control.restart import may_renew, renew
from otel_gpu.errors import Unavailable


class Became(Exception):
    """The process would be another by now: a program, its arguments, its environment."""


@pytest.fixture(autouse=True)
def no_exec(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process stays what it is."""

    def execve(*given: Any) -> None:
        raise Became(*given)

    monkeypatch.setattr(os, "execve", execve)


def became(clock: ManualClock, environment: dict[str, str], *words: str) -> tuple[Any, ...]:
    """What the process would have become."""
    with pytest.raises(Became) as caught:
        renew(environment, clock, words)
    return caught.value.args


def test_the_process_becomes_what_it_was_started_as() -> None:
    clock = ManualClock(monotonic_ns=7_000_000_000)
    program, words, environment = became(clock, {"A": "b"}, "python3", "-m", "otel_gpu", "run", "--view")
    assert (program, words) == (sys.executable, [sys.executable, "-m", "otel_gpu", "run", "--view"])
    assert environment == {"A": "b", "_OTEL_GPU_RENEWED": "7"}


def test_it_does_so_once_in_ten_minutes_at_most() -> None:
    clock = ManualClock(monotonic_ns=7_000_000_000)
    assert may_renew({}, clock)
    environment = became(clock, {}, "python3")[2]
    clock.advance(599)
    assert not may_renew(environment, clock)
    clock.advance(2)
    assert may_renew(environment, clock)


@pytest.mark.parametrize("mark", ["", "soon", "-1", "²", "99999999"])
def test_a_mark_that_tells_nothing_or_of_another_boot_stops_nobody(mark: str) -> None:
    assert may_renew({"_OTEL_GPU_RENEWED": mark}, ManualClock(monotonic_ns=10**9))


def test_what_cannot_be_started_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(Unavailable, match="restart it"):
        renew({}, ManualClock(), ["python3"])
