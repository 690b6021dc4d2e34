"""An agent that starts while /proc cannot be read: known processes have not ended because of that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from otel_gpu.agent.engine import Engine
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.clock import ManualClock
from otel_gpu.model import UNIDENTIFIED_WORKLOAD, GpuReading, Report, SourceState
from otel_gpu.sources.base import ProcessRead
from tests.builders import FakeGpus, FakeProcesses, gpu_read, listed, process_read
from tests.state_dirs import StatefulAgent, counters, fallen, killed
from tests.unit.attribution.played import CYCLE_MJ, JOB, WEB, gpu_with, old

OPTIONS = AttributionOptions(retention_s=60.0)
THERE = process_read(old(1, WEB), old(2, JOB))
AWAY = ProcessRead(state=SourceState.UNAVAILABLE, reason="not a readable procfs", errors=1, all_visible=False)
CYCLE_S = 5.0


class Run:
    """One run of the agent. Its GPU draws 200 W."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self.path, self.clock = path, clock
        self.agent: StatefulAgent = StatefulAgent(path, OPTIONS)
        self._gpus, self._processes = FakeGpus(), FakeProcesses()
        self._engine = Engine(gpus=self._gpus, processes=self._processes, clock=clock, rules=self.agent)

    def cycles(self, number: int, read: ProcessRead, *pids: int) -> Report:
        """The last Report of so many cycles."""
        for _ in range(number):
            self.clock.advance(CYCLE_S)
            self._gpus._answers = [gpu_read(self._gpu(*pids))]
            self._processes._answers = [read]
            report = self._engine.sample()
        self.agent.settle()
        return report

    def _gpu(self, *pids: int) -> GpuReading:
        now_ns = self.clock.monotonic_ns()
        counter_mj = round(now_ns / 1e9 / CYCLE_S * CYCLE_MJ)
        reading = gpu_with(*map(listed, pids or (1, 2)))
        return replace(reading, taken_at_ns=now_ns, energy_mj=counter_mj, power_limit_w=400.0)


@pytest.mark.parametrize("how", ["killed", "killed after a checkpoint", "stopped"])
def test_known_processes_continue_however_long_proc_is_unreadable_after_a_restart(tmp_path: Path, how: str) -> None:
    clock = ManualClock()
    first = Run(tmp_path / "state", clock)
    before = counters(first.cycles(10 if "checkpoint" in how else 3, THERE))
    path = killed(first.path, first.agent) if "killed" in how else first.path
    first.agent.close()
    second = Run(path, clock)
    assert second.agent.known_processes == THERE.processes
    last = before
    for report in (second.cycles(1, AWAY), second.cycles(40, AWAY), second.cycles(1, THERE), second.cycles(20, THERE)):
        now = counters(report)
        assert fallen(last, now) == []
        assert now.keys() == before.keys(), "the same series with the same start, and no unidentified workload"
        assert not [one for one in report.workloads if one.ref == UNIDENTIFIED_WORKLOAD]
        assert all(process.active for process in report.processes)
        last = now


def test_a_process_that_is_no_longer_in_the_lists_of_the_driver_has_ended(tmp_path: Path) -> None:
    clock = ManualClock()
    first = Run(tmp_path / "state", clock)
    first.cycles(3, THERE)
    first.agent.close()
    second = Run(first.path, clock)
    report = second.cycles(30, AWAY, 1)
    assert {process.key.pid for process in report.processes} == {1}


def test_a_process_that_the_driver_still_lists_after_a_restart_is_the_same_process(tmp_path: Path) -> None:
    """The driver lists a process for a while after its exit, and the agent may start in between."""
    clock = ManualClock()
    first = Run(tmp_path / "state", clock)
    before = counters(first.cycles(3, THERE))
    first.agent.close()
    second = Run(first.path, clock)
    report = second.cycles(1, process_read(old(1, WEB)))
    assert counters(report).keys() == before.keys()


def test_a_process_that_proc_never_showed_is_unidentified(tmp_path: Path) -> None:
    report = Run(tmp_path / "state", ManualClock()).cycles(2, AWAY)
    assert {one.ref for one in report.workloads} == {UNIDENTIFIED_WORKLOAD}
