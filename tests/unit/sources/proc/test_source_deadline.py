"""With a process source that hangs, a cycle gets older facts and is not delayed."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator

import pytest

from otel_gpu.model import HOST_WORKLOAD, ProcessFacts, ProcessKey, SourceState
from otel_gpu.sources.base import ProcessRead
from otel_gpu.sources.proc.source import DeadlineProcessSource


class Gate:
    """A source that answers while its gate is open, and counts its calls."""

    name = "procfs"

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.calls = 0
        self.pids_complete = True

    def read(self, pids: Collection[int], measured: Collection[int] = ()) -> ProcessRead:
        self.calls += 1
        self.open.wait()
        known = {pid: ProcessFacts(ProcessKey(pid, 1), "x", 0.0, 0, HOST_WORKLOAD) for pid in pids}
        return ProcessRead(known, pids_complete=self.pids_complete, pids_are_own=self.pids_complete)


def finish(source: DeadlineProcessSource) -> None:
    """Wait until the late call has returned."""
    deadline_s = time.monotonic() + 30
    while source._worker.stuck:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


def test_an_answer_in_time_is_returned(gate: Gate) -> None:
    read = DeadlineProcessSource(gate, deadline_s=30).read([7, 8])
    assert read.state is SourceState.OK
    assert sorted(read.processes) == [7, 8]


def test_while_the_source_hangs_the_last_answer_is_returned_and_no_call_is_queued(gate: Gate) -> None:
    source = DeadlineProcessSource(gate, deadline_s=30)
    source.read([7])
    calls = gate.calls
    gate.open.clear()
    source._deadline_s = 0.05
    for _ in range(3):
        late = source.read([7, 9])
        assert late.state is SourceState.DEGRADED
        assert late.reason is not None
        assert "no answer" in late.reason
        assert sorted(late.processes) == [7]
    assert gate.calls == calls + 1


def test_a_source_that_answers_again_is_used_again(gate: Gate) -> None:
    source = DeadlineProcessSource(gate, deadline_s=0.05)
    gate.open.clear()
    assert source.read([7]).state is SourceState.DEGRADED
    gate.open.set()
    finish(source)
    source._deadline_s = 30
    read = source.read([7, 9])
    assert (read.state, sorted(read.processes)) == (SourceState.OK, [7, 9])


def test_a_source_that_is_always_late_is_one_cycle_late(gate: Gate) -> None:
    source = DeadlineProcessSource(gate, deadline_s=0.02)
    read_pids = []
    for pid in (7, 8, 9):
        gate.open.clear()
        read = source.read([pid])
        assert read.state is SourceState.DEGRADED
        read_pids.append(sorted(read.processes))
        gate.open.set()
        finish(source)
    assert read_pids == [[], [7], [8]]
    assert gate.calls == 3


def test_an_answer_in_time_replaces_the_late_one_before_it(gate: Gate) -> None:
    source = DeadlineProcessSource(gate, deadline_s=0.02)
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


def test_after_a_late_call_that_fails_the_last_answer_persists_and_another_call_follows(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = DeadlineProcessSource(gate, deadline_s=30)
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


def test_the_flags_of_the_last_answer_persist_with_it(gate: Gate) -> None:
    gate.pids_complete = False
    source = DeadlineProcessSource(gate, deadline_s=30)
    source.read([7])
    gate.open.clear()
    source._deadline_s = 0.02
    late = source.read([7])
    assert (late.state, late.pids_complete, late.pids_are_own) == (SourceState.DEGRADED, False, False)


def test_before_the_first_answer_pids_are_incomplete(gate: Gate) -> None:
    gate.open.clear()
    assert DeadlineProcessSource(gate, deadline_s=0.02).read([7]).pids_complete is False
