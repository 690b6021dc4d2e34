"""A process source that hangs costs its cycle nothing but freshness."""

from __future__ import annotations

import threading
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

    def read(self, pids: Collection[int]) -> ProcessRead:
        self.asked += 1
        self.open.wait()
        return ProcessRead({pid: ProcessFacts(ProcessKey(pid, 1), "x", 0.0, 0, HOST_WORKLOAD) for pid in pids})


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
    source._deadline_s = 30
    while (read := source.read([7, 9])).state is not SourceState.OK:
        pass
    assert sorted(read.processes) == [7, 9]
