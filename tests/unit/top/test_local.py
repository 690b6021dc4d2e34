from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from otel_gpu.agent.host import Host, open_host
from otel_gpu.clock import Clock, SystemClock
from otel_gpu.config import Config, load
from otel_gpu.errors import OtelGpuError, Unavailable, UsageError
from otel_gpu.model import SourceState
from otel_gpu.top.board import Board
from otel_gpu.top.local import LocalCycles
from tests.builders import FakeGpus, FakeProcesses, gpu_read

PATIENCE_S = 30.0


def config() -> Config:
    return load({"source": "sim", "interval": "1s", "price-kwh": "0.3"}, {}).config


@contextmanager
def running(opened: object = open_host) -> Iterator[Board]:
    board = Board(SystemClock())
    cycles = LocalCycles(config(), SystemClock(), board, "node-1", opened)  # type: ignore[arg-type]
    cycles.start()
    try:
        yield board
    finally:
        cycles.close()


def wait_for(board: Board) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while board.look().cycle is None and board.failure is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_this_host_is_sampled_and_shown_with_its_name_and_prices() -> None:
    with running() as board:
        wait_for(board)
        shown = board.look().cycle
    assert shown is not None
    assert (shown.host, shown.interval_s, shown.currency) == ("node-1", 1.0, "USD")
    assert shown.simulated == "requested with --source sim"
    assert len(shown.gpus) == 4


@pytest.mark.parametrize("error", [UsageError("no such pod"), Unavailable("no driver")], ids=["usage", "driver"])
def test_a_host_that_cannot_be_opened_is_told(error: OtelGpuError) -> None:
    def fail(_config: Config, _clock: Clock) -> Host:
        raise error

    with running(fail) as board:
        wait_for(board)
    assert board.failure is error


def test_a_bug_is_told_in_a_line() -> None:
    def fail(_config: Config, _clock: Clock) -> Host:
        raise RuntimeError("oops")

    with running(fail) as board:
        wait_for(board)
    assert str(board.failure) == "internal error: RuntimeError: oops"


def test_a_driver_that_has_no_gpu_to_begin_with_ends_it_with_the_reason() -> None:
    blind = FakeGpus(gpu_read(state=SourceState.UNAVAILABLE, reason="NVML: no driver"))
    with running(lambda _config, _clock: Host(blind, FakeProcesses(), ())) as board:
        wait_for(board)
    assert str(board.failure) == "NVML: no driver"


def test_an_upgraded_driver_is_a_reason_to_start_again() -> None:
    outdated = threading.Event()
    outdated.set()

    def opened(settings: Config, clock: Clock) -> Host:
        return replace(open_host(settings, clock), outdated=outdated)

    with running(opened) as board:
        wait_for(board)
    assert "start it again" in str(board.failure)
