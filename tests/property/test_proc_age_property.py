"""Facts of processes are never older than the read intervals allow."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.clock import ManualClock
from otel_gpu.model import ProcessFacts
from otel_gpu.sources.proc.source import ProcfsSource
from otel_gpu.sources.proc.table import STEADY
from tests.proc_tree import UVM, ProcTree, maps_line

DESCRIPTORS_S, RARE_S = 11, 31
"""Maximum age in cycles of 1 s: descriptors and exits of processes with a GPU open, and everything else."""

PIDS = (16, 17, 23)
ASKED = 16


@dataclass(frozen=True)
class State:
    """The present state of a process."""

    start_ticks: int
    gpus: frozenset[int] = frozenset()
    mapped_pages: int = 1
    cgroup: int = 0
    alive: bool = True


class Host:
    """A host whose processes change."""

    def __init__(self, root: Path) -> None:
        self.tree = ProcTree(root)
        self.states: dict[int, State] = {}
        self._starts = 1_000
        for pid in PIDS:
            self.start(pid)

    def start(self, pid: int) -> None:
        self._starts += 7
        if pid in self.states:
            self.tree.release(pid)
        self.states[pid] = State(self._starts)
        self._write(pid)

    def move(self, pid: int, cgroup: int) -> None:
        if pid in self.states:
            self._set(pid, replace(self.states[pid], cgroup=cgroup))

    def change(self, pid: int, gpus: frozenset[int], mapped_pages: int) -> None:
        if pid in self.states and self.states[pid].alive:
            self._set(pid, replace(self.states[pid], gpus=gpus, mapped_pages=mapped_pages))

    def end(self, pid: int) -> None:
        """Make a running process a zombie, and remove a zombie."""
        if pid not in self.states:
            return
        if self.states[pid].alive:
            self._set(pid, replace(self.states[pid], gpus=frozenset(), alive=False))
        else:
            self.tree.release(pid)
            del self.states[pid]

    def _set(self, pid: int, state: State) -> None:
        if state != self.states[pid]:
            self.states[pid] = state
            self._write(pid)

    def _write(self, pid: int) -> None:
        state = self.states[pid]
        nodes = [UVM, *(f"/dev/nvidia{gpu}" for gpu in sorted(state.gpus))] if state.gpus else []
        self.tree.add(
            pid,
            start_ticks=state.start_ticks,
            state="S" if state.alive else "Z",
            cgroup=f"0::/system.slice/docker-{state.cgroup:064x}.scope\n",
            fds=["/dev/null", *nodes],
            maps=maps_line(0x10000, 4096 * state.mapped_pages),
        )


class Law:
    """A source that reads a host, and a check of what it returns."""

    def __init__(self, host: Host, clock: ManualClock) -> None:
        root = host.tree.root
        self._source = ProcfsSource(root, clock, own_proc=root, ticks_per_second=100, intervals=STEADY)
        self._past: defaultdict[int, list[State | None]] = defaultdict(list)

    def check(self, host: Host) -> None:
        for pid in PIDS:
            self._past[pid].append(host.states.get(pid))
        found = self._source.read([ASKED]).processes
        for pid in PIDS:
            now = host.states.get(pid)
            if pid in found:
                assert now is not None
                self._check(found[pid], now, self._past[pid])
            else:
                lately = self._past[pid][-RARE_S - 1 :]
                assert now is None or pid != ASKED
                assert now is None or len(lately) <= RARE_S or not all(state and state.gpus for state in lately)

    def _check(self, facts: ProcessFacts, now: State, past: list[State | None]) -> None:
        def within(seconds: int) -> list[State]:
            return [state for state in past[-seconds - 1 :] if state and state.start_ticks == now.start_ticks]

        assert facts.key.start_ticks == now.start_ticks
        assert facts.alive in {state.alive for state in within(DESCRIPTORS_S)}
        assert facts.gpu_minors_open in {state.gpus for state in within(DESCRIPTORS_S)}
        mapped_bytes = {4096 * state.mapped_pages for state in within(RARE_S)}
        assert facts.uvm_mapping_bytes in (mapped_bytes if facts.uvm_open else {None})
        assert facts.workload.id in {f"{state.cgroup:064x}" for state in within(RARE_S)}


pids = st.sampled_from(PIDS)
gpus = st.frozensets(st.integers(0, 1))
events = st.one_of(
    st.tuples(st.just("change"), pids, gpus, st.integers(1, 3)),
    st.tuples(st.just("move"), pids, st.integers(0, 2)),
    st.tuples(st.just("end"), pids),
    st.tuples(st.just("start"), pids),
)
steps = st.lists(st.tuples(st.sampled_from([1, 1, 2, 5, 10, 15, 40]), st.lists(events, max_size=3)), max_size=15)


@settings(max_examples=30, deadline=None)
@given(steps)
def test_no_process_facts_are_older_than_their_limit(history: list[tuple[int, list[tuple[object, ...]]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        host, clock = Host(Path(directory)), ManualClock()
        law = Law(host, clock)
        for wait_s, changes in [(70, []), *history]:
            for name, *arguments in changes:
                getattr(host, str(name))(*arguments)
            for _ in range(wait_s):
                clock.advance(1)
                law.check(host)
