from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.engine import Engine
from otel_gpu.sampler import Sampler
from tests.builders import FakeGpus, FakeProcesses, gpu, gpu_read, nothing

PATIENCE_S = 30.0
NEVER_S = 3600.0
"""An interval that no test lives to see the end of."""


class Gate:
    """A driver that lets nobody through while it is shut."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        self.open.wait(PATIENCE_S)


class Bench:
    """A sampler on an engine on a driver that does as it is told, with a clock that stands still unless told."""

    def __init__(self, interval_s: float, on_read: Callable[[], None], clock: ManualClock) -> None:
        self.clock = clock
        self.gpus = FakeGpus(gpu_read(gpu(0)), on_read=on_read)
        self.engine = Engine(gpus=self.gpus, processes=FakeProcesses(), clock=self.clock)
        self.sampler = Sampler(self.engine, interval_s)

    def passes(self, count: int) -> bool:
        """Wait until so many samples were taken."""
        while (taken := self.sampler.wait_for_pass(self.sampler.passes, PATIENCE_S)) < count:
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
        assert not bench.sampler._thread.is_alive()


def test_the_first_sample_is_taken_at_once() -> None:
    with started() as bench:
        assert bench.sampler.wait_for_pass(0, PATIENCE_S) == 1
        assert bench.engine.latest is not None


def test_samples_follow_each_other_without_anybody_asking() -> None:
    with started(interval_s=0.01) as bench:
        for seen in range(3):
            assert bench.sampler.wait_for_pass(seen, PATIENCE_S) > seen


def test_the_interval_counts_from_start_to_start_however_long_a_sample_takes() -> None:
    """A sample takes an hour less 10 ms, so the next one is due 10 ms after it ends."""
    clock = ManualClock()
    with started(interval_s=3600, on_read=lambda: clock.advance(3600 - 0.01), clock=clock) as bench:
        assert bench.sampler.wait_for_pass(1, 5.0) >= 2


def test_samples_missed_while_one_took_too_long_are_not_made_up_for() -> None:
    """A sample takes five hours and 10 s, so the next one is due in an hour less 10 s."""
    clock = ManualClock()
    with started(interval_s=3600, on_read=lambda: clock.advance(5 * 3600 + 10), clock=clock) as bench:
        assert bench.sampler.wait_for_pass(0, PATIENCE_S) == 1
        assert bench.sampler.wait_for_pass(1, 0.1) == 1


def test_waiting_for_a_pass_ends_when_the_time_is_up() -> None:
    with started() as bench:
        assert bench.sampler.wait_for_pass(0, PATIENCE_S) == 1
        assert bench.sampler.wait_for_pass(1, 0.01) == 1


def test_waiting_for_a_pass_ends_when_there_is_something_else_to_do_and_who_waits_is_told() -> None:
    with started() as bench:
        assert bench.sampler.wait_for_pass(0, PATIENCE_S) == 1
        other = threading.Event()
        looked = threading.Event()

        def look() -> bool:
            looked.set()
            return other.is_set()

        waiting = threading.Thread(target=bench.sampler.wait_for_pass, args=(1, NEVER_S, look))
        waiting.start()
        assert looked.wait(PATIENCE_S)
        other.set()
        bench.sampler.wake()
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()
        assert bench.sampler.wait_for_pass(1, NEVER_S, look) == 1


def test_a_signal_wakes_the_thread_that_waits_for_a_pass_and_handles_it() -> None:
    stop = threading.Event()

    def end(*_: object) -> None:
        stop.set()
        bench.sampler.wake()

    with started() as bench:
        assert bench.sampler.wait_for_pass(0, PATIENCE_S) == 1
        before = signal.signal(signal.SIGUSR1, end)
        try:
            for _ in range(20):
                stop.clear()
                threading.Timer(0.002, os.kill, (os.getpid(), signal.SIGUSR1)).start()
                assert bench.sampler.wait_for_pass(1, PATIENCE_S, stop.is_set) == 1
                assert stop.is_set()
        finally:
            signal.signal(signal.SIGUSR1, before)


def test_who_wants_a_sample_wakes_nobody_who_waits_for_one() -> None:
    gate = Gate()
    with started(on_read=gate) as bench:
        assert gate.reached.wait(PATIENCE_S)
        looks: list[None] = []
        looked = threading.Event()

        def look() -> bool:
            looks.append(None)
            looked.set()
            return False

        waiting = threading.Thread(target=bench.sampler.wait_for_pass, args=(0, PATIENCE_S, look))
        waiting.start()
        assert looked.wait(PATIENCE_S)
        for _ in range(5):
            bench.sampler.fresh(wait_s=0.01)
        assert len(looks) == 1
        gate.open.set()
        waiting.join(PATIENCE_S)


def test_an_answer_young_enough_is_given_without_a_new_sample() -> None:
    with started() as bench:
        bench.sampler.wait_for_pass(0, PATIENCE_S)
        bench.clock.advance(1.0)
        assert bench.sampler.fresh() is bench.engine.latest
        assert bench.gpus.reads == 1


def test_an_answer_too_old_makes_for_a_new_sample_at_once() -> None:
    with started() as bench:
        bench.sampler.wait_for_pass(0, PATIENCE_S)
        bench.clock.advance(2.0)
        answer = bench.sampler.fresh(wait_s=PATIENCE_S)
        assert answer is not None
        assert answer.window_s == 2.0
        assert bench.gpus.reads == 2


def test_a_reader_before_the_first_sample_gets_it() -> None:
    gate = Gate()
    with started(on_read=gate) as bench:
        assert gate.reached.wait(PATIENCE_S)
        threading.Timer(0.01, gate.open.set).start()
        answer = bench.sampler.fresh(wait_s=PATIENCE_S)
        assert answer is not None


def test_a_reader_does_not_wait_for_a_driver_that_hangs() -> None:
    """That both calls return at all shows it: the driver is let go only afterwards."""
    gate = Gate()
    with started(on_read=gate) as bench:
        assert gate.reached.wait(PATIENCE_S)
        assert bench.sampler.fresh() is None
        assert bench.sampler.fresh(wait_s=0) is None
        assert not gate.open.is_set()
        assert bench.gpus.reads == 1


def test_a_reader_takes_the_last_answer_when_the_next_one_is_late() -> None:
    gate = Gate()
    gate.open.set()
    with started(on_read=gate) as bench:
        bench.sampler.wait_for_pass(0, PATIENCE_S)
        first = bench.engine.latest
        assert first is not None
        gate.open.clear()
        bench.clock.advance(60)
        assert bench.sampler.fresh(wait_s=0.05) is first


def test_many_readers_at_once_share_one_sample() -> None:
    with started() as bench:
        bench.sampler.wait_for_pass(0, PATIENCE_S)
        bench.clock.advance(5)
        answers: list[object] = []
        readers = [
            threading.Thread(target=lambda: answers.append(bench.sampler.fresh(wait_s=PATIENCE_S))) for _ in range(8)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(PATIENCE_S)
        assert len(answers) == 8
        assert set(map(id, answers)) == {id(bench.engine.latest)}
        assert bench.gpus.reads == 2


def test_a_pass_that_raises_is_logged_in_one_line_and_the_next_one_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    failures = iter([RuntimeError("a bug"), RuntimeError("the same"), ValueError("another")])

    def read() -> None:
        if (failure := next(failures, None)) is not None:
            raise failure

    with caplog.at_level(logging.INFO), started(interval_s=0.01, on_read=read) as bench:
        assert bench.passes(4)
        assert bench.engine.latest is not None
    assert [record.getMessage() for record in caplog.records] == [
        "sampling failed: RuntimeError: a bug",
        "sampling failed: ValueError: another",
        "sampling works again",
    ]
    assert not any(record.exc_info for record in caplog.records)


def test_the_traceback_of_a_pass_that_raises_is_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    def read() -> None:
        raise RuntimeError("a bug")

    with caplog.at_level(logging.DEBUG), started(on_read=read) as bench:
        bench.sampler.wait_for_pass(0, PATIENCE_S)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [RuntimeError]


def test_stopping_does_not_wait_for_a_driver_that_hangs() -> None:
    gate = Gate()
    with started(on_read=gate) as bench:
        assert gate.reached.wait(PATIENCE_S)
        bench.sampler.stop(timeout_s=0.01)
        assert bench.sampler._thread.is_alive()  # still in the driver, and no longer waited for
        assert bench.sampler.fresh(wait_s=PATIENCE_S) is None  # nor does a reader wait for what will not come
        assert bench.sampler.wait_for_pass(0, PATIENCE_S) == 0


def test_a_stopped_sampler_takes_no_more_samples() -> None:
    with started(interval_s=0.01) as bench:
        bench.passes(2)
        bench.sampler.stop(PATIENCE_S)
        taken = bench.sampler.passes
        assert bench.sampler.wait_for_pass(taken, 0.05) == taken
