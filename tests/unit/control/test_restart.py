from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.control.restart import may_restart, restart
from otel_gpu.errors import Unavailable


class Executed(Exception):
    """Raised instead of exec, with program, arguments and environment."""


@pytest.fixture(autouse=True)
def no_exec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace exec, so that this process stays."""

    def execve(*given: Any) -> None:
        raise Executed(*given)

    monkeypatch.setattr(os, "execve", execve)


def executed(clock: ManualClock, environment: dict[str, str], *words: str) -> tuple[Any, ...]:
    """Program, arguments and environment of the restart."""
    with pytest.raises(Executed) as caught:
        restart(environment, clock, words)
    return caught.value.args


def test_a_restart_executes_the_original_command_line() -> None:
    clock = ManualClock(monotonic_ns=7_000_000_000)
    program, words, environment = executed(clock, {"A": "b"}, "python3", "-m", "otel_gpu", "run", "--view")
    assert (program, words) == (sys.executable, [sys.executable, "-m", "otel_gpu", "run", "--view"])
    assert environment == {"A": "b", "_OTEL_GPU_RENEWED": "7"}


def test_a_restart_happens_at_most_every_ten_minutes() -> None:
    clock = ManualClock(monotonic_ns=7_000_000_000)
    assert may_restart({}, clock)
    environment = executed(clock, {}, "python3")[2]
    clock.advance(599)
    assert not may_restart(environment, clock)
    clock.advance(2)
    assert may_restart(environment, clock)


@pytest.mark.parametrize("mark", ["", "soon", "-1", "²", "99999999"])
def test_an_invalid_mark_and_one_of_another_boot_are_ignored(mark: str) -> None:
    assert may_restart({"_OTEL_GPU_RENEWED": mark}, ManualClock(monotonic_ns=10**9))


def test_a_failed_restart_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(Unavailable, match="restart it"):
        restart({}, ManualClock(), ["python3"])
