"""The log of sources and the background sampler."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from otel_gpu.agent.engine import Engine
from otel_gpu.agent.sampling import Sampler, StateLog
from otel_gpu.clock import ManualClock
from otel_gpu.model import SourceOutcome, SourceState
from otel_gpu.sources.names.poller import NO_ANSWER_YET
from tests.builders import FakeGpus, FakeProcesses, gpu, gpu_read, nothing


def logged(caplog: pytest.LogCaptureFixture, *cycles: SourceOutcome) -> list[str]:
    caplog.set_level(logging.INFO)
    state_log = StateLog()
    for cycle in cycles:
        state_log.observe((cycle,))
    return [f"{record.levelname} {record.getMessage()}" for record in caplog.records]


NOT_ANSWERED = SourceOutcome("docker", SourceState.DEGRADED, NO_ANSWER_YET)
OK = SourceOutcome("docker", SourceState.OK)


def test_a_state_is_logged_once_and_again_only_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    ok, lost = SourceOutcome("nvml", SourceState.OK), SourceOutcome("nvml", SourceState.DEGRADED, "GPU 1: lost")
    away = [SourceOutcome("nvml", SourceState.UNAVAILABLE, f"no driver for {n} s") for n in range(3)]
    other = SourceOutcome("procfs", SourceState.DEGRADED, "b")
    assert logged(caplog, NOT_ANSWERED, ok, *away, lost, other, lost, ok, ok, lost) == [
        "WARNING nvml is unavailable: no driver for 0 s",
        "WARNING nvml is degraded: GPU 1: lost",
        "WARNING procfs is degraded: b",
        "INFO nvml is ok again",
        "WARNING nvml is degraded: GPU 1: lost",
    ]


@pytest.mark.parametrize("cycles", [1, 2])
def test_a_source_that_answers_while_workloads_are_held_is_not_logged(
    caplog: pytest.LogCaptureFixture, cycles: int
) -> None:
    assert logged(caplog, *[NOT_ANSWERED] * cycles, OK) == []


def test_a_source_that_takes_longer_is_logged_once_and_again_when_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, *[NOT_ANSWERED] * 5, OK) == [
        "WARNING docker is degraded: has not answered yet",
        "INFO docker is ok again",
    ]


def test_the_patience_is_configurable(caplog: pytest.LogCaptureFixture) -> None:
    state_log = StateLog(patience_cycles=10)
    for _ in range(10):
        state_log.observe((NOT_ANSWERED,))
    assert not caplog.records
    state_log.observe((NOT_ANSWERED,))
    assert len(caplog.records) == 1


def test_a_source_that_answers_is_ok_and_its_failed_gpus_are_logged_apart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    away = SourceOutcome("nvml", SourceState.UNAVAILABLE, "the driver is not loaded")
    partly = SourceOutcome("nvml", SourceState.DEGRADED, "GPU 1: GPU is lost", by_gpu=True)
    assert logged(caplog, away, partly, partly) == [
        "WARNING nvml is unavailable: the driver is not loaded",
        "INFO nvml is ok again",
    ]
    assert caplog.records[-1].fields["state"] == "ok"  # type: ignore[attr-defined]  # a field of ours


# ---------------------------------------------------------------------------- the background sampler


PATIENCE_S = 30.0
NEVER_S = 3600.0
"""An interval longer than any test."""


class Gate:
    """A driver whose calls hang until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        self.open.wait(PATIENCE_S)


class Bench:
    """A sampler on an engine with a scripted driver and a manual clock."""

    def __init__(self, interval_s: float, on_read: Callable[[], None], clock: ManualClock) -> None:
        self.clock = clock
        self.gpus = FakeGpus(gpu_read(gpu(0)), on_read=on_read)
        self.engine = Engine(gpus=self.gpus, processes=FakeProcesses(), clock=self.clock)
        self.sampler = Sampler(self.engine, interval_s)
        self._other_threads = set(threading.enumerate())

    @property
    def is_running(self) -> bool:
        """Whether the sampler's thread is alive."""
        return any(each.name == "otel-gpu-sampler" for each in set(threading.enumerate()) - self._other_threads)

    def wait_for_cycles(self, count: int) -> bool:
        """Wait until there were so many cycles."""
        while (taken := self.sampler.wait_for_cycle(self.sampler.cycles, PATIENCE_S)) < count:
            assert taken
        return True


@contextmanager
def started(
    interval_s: float = NEVER_S, on_read: Callable[[], None] = nothing, clock: ManualClock | None = None
) -> Iterator[Bench]:
    bench = Bench(interval_s, on_read, clock or ManualClock())
    bench.sampler.start()
    try:
        yield bench
    finally:
        if isinstance(on_read, Gate):
            on_read.open.set()
        bench.sampler.stop(PATIENCE_S)
        assert not bench.is_running


def test_the_interval_counts_from_start_to_start_however_long_a_cycle_takes() -> None:
    """A cycle takes an hour less 10 ms, so the next one is due 10 ms after it ends."""
    clock = ManualClock()
    with started(interval_s=3600, on_read=lambda: clock.advance(3600 - 0.01), clock=clock) as bench:
        assert bench.sampler.wait_for_cycle(1, 5.0) >= 2


def test_cycles_missed_during_a_long_one_are_not_made_up_for() -> None:
    """A cycle takes five hours and 10 s, so the next one is due in an hour less 10 s."""
    clock = ManualClock()
    with started(interval_s=3600, on_read=lambda: clock.advance(5 * 3600 + 10), clock=clock) as bench:
        assert bench.sampler.wait_for_cycle(0, PATIENCE_S) == 1
        assert bench.sampler.wait_for_cycle(1, 0.1) == 1


def test_waiting_for_a_cycle_ends_when_unless_is_true_after_wake() -> None:
    with started() as bench:
        assert bench.sampler.wait_for_cycle(0, PATIENCE_S) == 1
        other = threading.Event()
        checked = threading.Event()

        def check() -> bool:
            checked.set()
            return other.is_set()

        waiting = threading.Thread(target=bench.sampler.wait_for_cycle, args=(1, NEVER_S, check))
        waiting.start()
        assert checked.wait(PATIENCE_S)
        other.set()
        bench.sampler.wake()
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()
        assert bench.sampler.wait_for_cycle(1, NEVER_S, check) == 1


def test_a_signal_handler_can_wake_its_own_waiting_thread() -> None:
    stop = threading.Event()

    def handle(*_: object) -> None:
        stop.set()
        bench.sampler.wake()

    with started() as bench:
        assert bench.sampler.wait_for_cycle(0, PATIENCE_S) == 1
        before = signal.signal(signal.SIGUSR1, handle)
        try:
            for _ in range(20):
                stop.clear()
                threading.Timer(0.002, os.kill, (os.getpid(), signal.SIGUSR1)).start()
                assert bench.sampler.wait_for_cycle(1, PATIENCE_S, stop.is_set) == 1
                assert stop.is_set()
        finally:
            signal.signal(signal.SIGUSR1, before)


def test_asking_for_a_fresh_report_does_not_wake_other_waiting_threads() -> None:
    gate = Gate()
    with started(on_read=gate) as bench:
        assert gate.reached.wait(PATIENCE_S)
        checks: list[None] = []
        checked = threading.Event()

        def check() -> bool:
            checks.append(None)
            checked.set()
            return False

        waiting = threading.Thread(target=bench.sampler.wait_for_cycle, args=(0, PATIENCE_S, check))
        waiting.start()
        assert checked.wait(PATIENCE_S)
        for _ in range(5):
            bench.sampler.fresh(wait_s=0.01)
        assert len(checks) == 1
        gate.open.set()
        waiting.join(PATIENCE_S)


def test_a_fresh_report_is_returned_without_a_new_cycle() -> None:
    with started() as bench:
        bench.sampler.wait_for_cycle(0, PATIENCE_S)
        bench.clock.advance(1.0)
        assert bench.sampler.fresh() is bench.engine.latest
        assert bench.gpus.reads == 1


def test_a_stale_report_starts_a_new_cycle_at_once() -> None:
    with started() as bench:
        bench.sampler.wait_for_cycle(0, PATIENCE_S)
        bench.clock.advance(2.0)
        report = bench.sampler.fresh(wait_s=PATIENCE_S)
        assert report is not None
        assert report.window_s == 2.0
        assert bench.gpus.reads == 2


def test_a_reader_before_the_first_cycle_waits_for_it() -> None:
    gate = Gate()
    with started(on_read=gate) as bench:
        assert gate.reached.wait(PATIENCE_S)
        threading.Timer(0.01, gate.open.set).start()
        report = bench.sampler.fresh(wait_s=PATIENCE_S)
        assert report is not None


def test_a_reader_does_not_wait_for_a_driver_that_hangs() -> None:
    """Both calls return while the driver still hangs."""
    gate = Gate()
    with started(on_read=gate) as bench:
        assert gate.reached.wait(PATIENCE_S)
        assert bench.sampler.fresh() is None
        assert bench.sampler.fresh(wait_s=0) is None
        assert not gate.open.is_set()
        assert bench.gpus.reads == 1


def test_a_reader_takes_the_last_report_when_the_next_one_is_late() -> None:
    gate = Gate()
    gate.open.set()
    with started(on_read=gate) as bench:
        bench.sampler.wait_for_cycle(0, PATIENCE_S)
        first = bench.engine.latest
        assert first is not None
        gate.open.clear()
        bench.clock.advance(60)
        assert bench.sampler.fresh(wait_s=0.05) is first


def test_readers_of_a_late_cycle_wait_together_and_not_one_after_the_other() -> None:
    gate = Gate()
    gate.open.set()
    with started(on_read=gate) as bench:
        bench.sampler.wait_for_cycle(0, PATIENCE_S)
        gate.open.clear()
        bench.clock.advance(60)
        started_s = time.monotonic()
        reports = [bench.sampler.fresh(wait_s=0.5) for _ in range(100)]
        assert time.monotonic() - started_s < 100 * 0.5 / 2
        assert set(map(id, reports)) == {id(bench.engine.latest)}


def test_a_reader_during_a_cycle_waits_for_it_and_asks_for_no_other() -> None:
    gate = Gate()
    with started(on_read=gate) as bench:
        assert gate.reached.wait(PATIENCE_S)
        for _ in range(3):
            bench.sampler.fresh(max_age_s=PATIENCE_S, wait_s=0)
        gate.open.set()
        bench.sampler.wait_for_cycle(0, PATIENCE_S)
        assert not bench.sampler.wait_for_cycle(1, 0.2) > 1
        assert bench.gpus.reads == 1


def test_concurrent_readers_share_one_cycle() -> None:
    with started() as bench:
        bench.sampler.wait_for_cycle(0, PATIENCE_S)
        bench.clock.advance(5)
        reports: list[object] = []
        readers = [
            threading.Thread(target=lambda: reports.append(bench.sampler.fresh(wait_s=PATIENCE_S))) for _ in range(8)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(PATIENCE_S)
        assert len(reports) == 8
        assert set(map(id, reports)) == {id(bench.engine.latest)}
        assert bench.gpus.reads == 2


def test_a_cycle_that_raises_is_logged_in_one_line_and_the_next_one_runs(caplog: pytest.LogCaptureFixture) -> None:
    failures = iter([RuntimeError("a bug"), RuntimeError("the same"), ValueError("another")])

    def read() -> None:
        if (failure := next(failures, None)) is not None:
            raise failure

    with caplog.at_level(logging.INFO), started(interval_s=0.01, on_read=read) as bench:
        assert bench.wait_for_cycles(4)
        assert bench.engine.latest is not None
    assert [record.getMessage() for record in caplog.records] == [
        "sampling failed: RuntimeError: a bug",
        "sampling failed: ValueError: another",
        "sampling works again",
    ]
    assert not any(record.exc_info for record in caplog.records)


def test_the_traceback_of_a_cycle_that_raises_is_logged_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:
    def read() -> None:
        raise RuntimeError("a bug")

    with caplog.at_level(logging.DEBUG), started(on_read=read) as bench:
        bench.sampler.wait_for_cycle(0, PATIENCE_S)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [RuntimeError]


def test_stopping_does_not_wait_for_a_driver_that_hangs() -> None:
    gate = Gate()
    with started(on_read=gate) as bench:
        assert gate.reached.wait(PATIENCE_S)
        bench.sampler.stop(timeout_s=0.01)
        assert bench.is_running  # its call has not returned
        assert bench.sampler.fresh(wait_s=PATIENCE_S) is None  # and a reader does not wait for it
        assert bench.sampler.wait_for_cycle(0, PATIENCE_S) == 0


def test_a_stopped_sampler_runs_no_more_cycles() -> None:
    with started(interval_s=0.01) as bench:
        bench.wait_for_cycles(2)
        bench.sampler.stop(PATIENCE_S)
        taken = bench.sampler.cycles
        assert bench.sampler.wait_for_cycle(taken, 0.05) == taken
