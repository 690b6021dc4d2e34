"""An agent that starts while /proc cannot be read: whoever was there before has not left because nobody could look."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.clock import ManualClock
from otel_gpu.engine import Engine
from otel_gpu.model import UNIDENTIFIED_WORKLOAD, GpuReading, Report, SourceState
from otel_gpu.sources.base import ProcessRead
from otel_gpu.state.keeper import Keeper
from tests.builders import FakeGpus, FakeProcesses, gpu_read, listed, process_read
from tests.state_dirs import counters, fallen, killed, open_keeper, settle
from tests.unit.attribution.played import CYCLE_MJ, JOB, WEB, gpu_with, old

OPTIONS = AttributionOptions(retention_s=60.0)
THERE = process_read(old(1, WEB), old(2, JOB))
AWAY = ProcessRead(state=SourceState.UNAVAILABLE, reason="no readable procfs", errors=1, everybody=False)
CYCLE_S = 5.0


class Life:
    """One run of the agent. Its GPU draws 200 W."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self.path, self.clock = path, clock
        self.keeper: Keeper = open_keeper(path, OPTIONS)
        self._gpus, self._processes = FakeGpus(), FakeProcesses()
        self._engine = Engine(gpus=self._gpus, processes=self._processes, clock=clock, rules=self.keeper)

    def cycles(self, number: int, read: ProcessRead, *pids: int) -> Report:
        """The last answer of so many cycles."""
        for _ in range(number):
            self.clock.advance(CYCLE_S)
            self._gpus._answers = [gpu_read(self._gpu(*pids))]
            self._processes._answers = [read]
            answer = self._engine.sample()
        settle(self.keeper)
        return answer

    def _gpu(self, *pids: int) -> GpuReading:
        now_ns = self.clock.monotonic_ns()
        counter_mj = round(now_ns / 1e9 / CYCLE_S * CYCLE_MJ)
        reading = gpu_with(*map(listed, pids or (1, 2)))
        return replace(reading, taken_at_ns=now_ns, energy_mj=counter_mj, power_limit_w=400.0)


@pytest.mark.parametrize("how", ["killed", "killed after it has saved", "stopped"])
def test_who_was_there_goes_on_however_long_proc_is_away_after_a_restart(tmp_path: Path, how: str) -> None:
    clock = ManualClock()
    first = Life(tmp_path / "state", clock)
    before = counters(first.cycles(10 if "saved" in how else 3, THERE))
    path = killed(first.path, first.keeper) if "killed" in how else first.path
    first.keeper.close()
    second = Life(path, clock)
    assert second.keeper.known_processes == THERE.processes
    told = before
    for answer in (second.cycles(1, AWAY), second.cycles(40, AWAY), second.cycles(1, THERE), second.cycles(20, THERE)):
        now = counters(answer)
        assert fallen(told, now) == []
        assert now.keys() == before.keys(), "the same series with the same start, and nobody unidentified beside them"
        assert not [one for one in answer.workloads if one.ref == UNIDENTIFIED_WORKLOAD]
        assert all(process.active for process in answer.processes)
        told = now


def test_who_left_the_drivers_lists_meanwhile_has_left(tmp_path: Path) -> None:
    clock = ManualClock()
    first = Life(tmp_path / "state", clock)
    first.cycles(3, THERE)
    first.keeper.close()
    second = Life(first.path, clock)
    answer = second.cycles(30, AWAY, 1)
    assert {process.key.pid for process in answer.processes} == {1}


def test_a_process_that_the_driver_still_lists_after_a_restart_is_who_it_was(tmp_path: Path) -> None:
    """Exiting takes the driver a while, and the agent may start in between."""
    clock = ManualClock()
    first = Life(tmp_path / "state", clock)
    before = counters(first.cycles(3, THERE))
    first.keeper.close()
    second = Life(first.path, clock)
    answer = second.cycles(1, process_read(old(1, WEB)))
    assert counters(answer).keys() == before.keys()


def test_who_was_never_shown_is_nobody_known(tmp_path: Path) -> None:
    answer = Life(tmp_path / "state", ManualClock()).cycles(2, AWAY)
    assert {one.ref for one in answer.workloads} == {UNIDENTIFIED_WORKLOAD}
