from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from otel_gpu.errors import Gone, Unavailable
from otel_gpu.sources.workers import Pending, Round, Worker

PATIENCE_S = 30.0


def soon() -> float:
    """A deadline that a call which returns does not miss."""
    return time.monotonic() + PATIENCE_S


def at_once() -> float:
    """A deadline that a call which hangs misses."""
    return time.monotonic() + 0.02


def until(condition: Callable[[], bool]) -> bool:
    """Wait for a condition."""
    deadline_s = soon()
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.001)
    return condition()


class Driver:
    """Answers calls at once, or after it is released, and counts them."""

    def __init__(self) -> None:
        self.calls = 0
        self._free = threading.Event()

    def hang(self) -> str:
        """Answer after the release."""
        self.calls += 1
        self._free.wait(PATIENCE_S)
        return "late"

    def answer(self) -> str:
        """Answer."""
        self.calls += 1
        return f"answer {self.calls}"

    def release(self) -> None:
        """Release hanging calls."""
        self._free.set()


@pytest.fixture
def driver() -> Iterator[Driver]:
    ready = Driver()
    yield ready
    ready.release()


@pytest.fixture
def worker() -> Iterator[Worker]:
    ready = Worker("test-worker")
    yield ready
    ready.close()


def stuck_in(worker: Worker, driver: Driver) -> Pending[str]:
    """A worker whose call hangs and has missed its deadline."""
    hung = worker.start(driver.hang)
    assert until(lambda: driver.calls > 0)
    with pytest.raises(Unavailable, match=r"^no answer within \d+\.\d s$"):
        hung.result(at_once())
    assert worker.stuck
    return hung


def test_a_call_returns_its_value(worker: Worker, driver: Driver) -> None:
    assert [worker.start(driver.answer).result(soon()) for _ in range(3)] == ["answer 1", "answer 2", "answer 3"]
    assert not worker.stuck


def test_none_is_a_value(worker: Worker) -> None:
    assert worker.start(lambda: None).result(soon()) is None


def test_all_calls_are_made_on_one_daemon_thread(worker: Worker) -> None:
    threads = {worker.start(threading.current_thread).result(soon()) for _ in range(3)}
    (thread,) = threads
    assert thread is not threading.current_thread()
    assert thread.daemon  # a thread stuck in the driver must not keep the process alive
    assert thread.name == "test-worker"


def test_a_call_that_hangs_is_unavailable_at_its_deadline(worker: Worker, driver: Driver) -> None:
    stuck_in(worker, driver)
    assert driver.calls == 1


def test_no_second_call_is_queued_behind_one_that_has_not_returned(worker: Worker, driver: Driver) -> None:
    hung = stuck_in(worker, driver)
    for _ in range(5):
        with pytest.raises(Unavailable, match="has not returned"):
            worker.start(driver.answer)
    driver.release()
    assert hung.result(soon()) == "late"
    assert worker.start(lambda: driver.calls).result(soon()) == 1  # rejected calls were never made


def test_after_a_late_return_the_next_call_gets_its_own_value(worker: Worker, driver: Driver) -> None:
    stuck_in(worker, driver)
    driver.release()
    assert until(lambda: not worker.stuck)
    assert worker.start(lambda: "mine").result(soon()) == "mine"


def test_with_a_deadline_in_the_past_only_a_finished_call_has_a_value(worker: Worker, driver: Driver) -> None:
    done = worker.start(driver.answer)
    assert until(lambda: done.finished)
    assert done.result(time.monotonic() - 1) == "answer 1"
    hung = worker.start(driver.hang)
    with pytest.raises(Unavailable):
        hung.result(time.monotonic() - 1)


def test_all_waiting_threads_get_a_late_value(worker: Worker, driver: Driver) -> None:
    hung = stuck_in(worker, driver)
    others = [Worker(f"test-other-{number}") for number in range(3)]
    waiting = [other.start(lambda: hung.result(soon())) for other in others]
    with pytest.raises(Unavailable):
        hung.result(at_once())
    driver.release()
    assert [each.result(soon()) for each in waiting] == ["late"] * 3
    assert [hung.result(soon()) for _ in range(2)] == ["late"] * 2
    for other in others:
        other.close()


def test_a_started_call_is_made_even_if_its_worker_is_closed_at_once(driver: Driver) -> None:
    worker = Worker("test-worker")
    taken = worker.start(driver.answer)
    worker.close()
    worker.close()
    assert taken.result(soon()) == "answer 1"


def test_an_error_of_a_source_is_raised_to_the_caller(worker: Worker) -> None:
    def gone() -> None:
        raise Gone("it has left")

    with pytest.raises(Gone, match="it has left"):
        worker.start(gone).result(soon())


def test_a_bug_fails_one_call_and_does_not_end_the_thread(worker: Worker, driver: Driver) -> None:
    def bug() -> None:
        raise KeyError("oops")

    with pytest.raises(Unavailable, match="internal error: KeyError: 'oops'"):
        worker.start(bug).result(soon())
    assert worker.start(driver.answer).result(soon()) == "answer 1"


def test_a_worker_does_not_keep_the_arguments_of_its_last_call(worker: Worker) -> None:
    data = Data()
    kept = weakref.ref(data)
    worker.start(partial(id, data)).result(time.monotonic() + 10)
    del data
    ends_s = time.monotonic() + 10
    while kept() is not None and time.monotonic() < ends_s:
        time.sleep(0.001)  # the thread returns from the call after its result is there
    assert kept() is None


class Data:
    """Something large."""


def test_a_closed_worker_rejects_calls_and_its_thread_ends(driver: Driver) -> None:
    worker = Worker("test-worker")
    thread = worker.start(threading.current_thread).result(soon())
    worker.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    with pytest.raises(Unavailable, match="closed"):
        worker.start(driver.answer)


def test_closing_does_not_wait_for_a_call_and_the_thread_ends_when_it_returns(driver: Driver) -> None:
    worker = Worker("test-worker")
    thread = worker.start(threading.current_thread).result(soon())
    stuck_in(worker, driver)
    worker.close()  # returns: the call is still under way
    assert thread.is_alive()
    driver.release()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_worker_without_calls_has_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("no thread is needed yet"))
    worker = Worker("test-worker")
    assert not worker.stuck
    worker.close()


def test_a_thread_that_cannot_start_fails_one_call(
    worker: Worker, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Unavailable, match="can't start new thread"):
            worker.start(driver.answer)
        assert not worker.stuck
    assert worker.start(driver.answer).result(soon()) == "answer 1"


# ---------------------------------------------------------------------------- rounds


def test_the_calls_of_a_round_are_made_in_order_on_one_thread(worker: Worker, driver: Driver) -> None:
    together = Round()
    assert not together
    calls = [together.add(driver.answer) for _ in range(3)]
    threads = [together.add(threading.current_thread) for _ in range(2)]
    worker.start(together.run).result(soon())
    assert [call.result(soon()) for call in calls] == ["answer 1", "answer 2", "answer 3"]
    assert len({thread.result(soon()) for thread in threads}) == 1
    assert together.cut() == (None, frozenset())


def test_an_error_in_a_round_concerns_one_call(worker: Worker, driver: Driver) -> None:
    def fails() -> str:
        raise Gone("not here")

    together = Round()
    failing, fine = together.add(fails), together.add(driver.answer)
    worker.start(together.run).result(soon())
    with pytest.raises(Gone, match="not here"):
        failing.result(soon())
    assert fine.result(soon()) == "answer 1"


def test_a_round_that_is_cut_short_returns_the_call_in_progress_and_starts_no_other(
    worker: Worker, driver: Driver
) -> None:
    together = Round()
    hung, waiting = together.add(driver.hang), together.add(driver.answer)
    made = worker.start(together.run)
    assert until(lambda: driver.calls > 0)
    assert together.cut() == (hung, frozenset({waiting}))
    other = Worker("test-other")
    other.take(waiting)
    assert waiting.result(soon()) == "answer 2"
    other.close()
    driver.release()
    made.result(soon())
    assert hung.result(soon()) == "late"
    assert driver.calls == 2
