"""A process source that hangs costs its cycle nothing but freshness."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator

import pytest

from otel_gpu.model import HOST_WORKLOAD, ProcessFacts, ProcessKey, SourceState
from otel_gpu.sources.base import ProcessRead
from otel_gpu.sources.bounded import BoundedProcessSource


class Gate:
    """A source that answers while its gate is open, and counts how often it was asked."""

    name = "procfs"

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.asked = 0
        self.pids_complete = True

    def read(self, pids: Collection[int]) -> ProcessRead:
        self.asked += 1
        self.open.wait()
        known = {pid: ProcessFacts(ProcessKey(pid, 1), "x", 0.0, 0, HOST_WORKLOAD) for pid in pids}
        return ProcessRead(known, pids_complete=self.pids_complete, pids_are_own=self.pids_complete)


def finish(source: BoundedProcessSource) -> None:
    """Wait until the call that is late has returned."""
    deadline_s = time.monotonic() + 30
    while source._worker.stuck:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


def test_an_answer_in_time_is_passed_on(gate: Gate) -> None:
    read = BoundedProcessSource(gate, deadline_s=30).read([7, 8])
    assert read.state is SourceState.OK
    assert sorted(read.processes) == [7, 8]


def test_while_the_source_hangs_the_last_answer_stands_and_nothing_is_queued(gate: Gate) -> None:
    source = BoundedProcessSource(gate, deadline_s=30)
    source.read([7])
    asked = gate.asked
    gate.open.clear()
    source._deadline_s = 0.05
    for _ in range(3):
        late = source.read([7, 9])
        assert late.state is SourceState.DEGRADED
        assert late.reason is not None
        assert "no answer" in late.reason
        assert sorted(late.processes) == [7]
    assert gate.asked == asked + 1


def test_a_source_that_answers_again_is_heard_again(gate: Gate) -> None:
    source = BoundedProcessSource(gate, deadline_s=0.05)
    gate.open.clear()
    assert source.read([7]).state is SourceState.DEGRADED
    gate.open.set()
    finish(source)
    source._deadline_s = 30
    read = source.read([7, 9])
    assert (read.state, sorted(read.processes)) == (SourceState.OK, [7, 9])


def test_a_source_that_is_always_late_is_heard_one_cycle_late(gate: Gate) -> None:
    source = BoundedProcessSource(gate, deadline_s=0.02)
    heard = []
    for pid in (7, 8, 9):
        gate.open.clear()
        read = source.read([pid])
        assert read.state is SourceState.DEGRADED
        heard.append(sorted(read.processes))
        gate.open.set()
        finish(source)
    assert heard == [[], [7], [8]]
    assert gate.asked == 3


def test_an_answer_in_time_counts_more_than_the_late_one_before(gate: Gate) -> None:
    source = BoundedProcessSource(gate, deadline_s=0.02)
    gate.open.clear()
    source.read([7])
    gate.open.set()
    finish(source)
    source._deadline_s = 30
    read = source.read([8])
    assert (read.state, sorted(read.processes)) == (SourceState.OK, [8])
    gate.open.clear()
    source._deadline_s = 0.02
    assert sorted(source.read([9]).processes) == [8]


def test_a_late_call_that_fails_leaves_what_was_known_and_is_followed_by_another(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = BoundedProcessSource(gate, deadline_s=30)
    source.read([7])

    def fail(pids: Collection[int]) -> ProcessRead:
        gate.open.wait()
        raise RuntimeError("a bug")

    answer = gate.read
    monkeypatch.setattr(gate, "read", fail)
    gate.open.clear()
    source._deadline_s = 0.02
    assert sorted(source.read([8]).processes) == [7]
    gate.open.set()
    finish(source)
    monkeypatch.setattr(gate, "read", answer)
    source._deadline_s = 30
    read = source.read([9])
    assert (read.state, sorted(read.processes)) == (SourceState.OK, [9])


def test_what_the_last_answer_said_of_its_pids_stands_with_it(gate: Gate) -> None:
    gate.pids_complete = False
    source = BoundedProcessSource(gate, deadline_s=30)
    source.read([7])
    gate.open.clear()
    source._deadline_s = 0.02
    late = source.read([7])
    assert (late.state, late.pids_complete, late.pids_are_own) == (SourceState.DEGRADED, False, False)


def test_before_the_first_answer_nobody_may_rely_on_the_pids(gate: Gate) -> None:
    gate.open.clear()
    assert BoundedProcessSource(gate, deadline_s=0.02).read([7]).pids_complete is False
