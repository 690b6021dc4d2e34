"""Runs of an agent on a host with one GPU, for tests of what persists."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from otel_gpu.model import DriverFacts, GpuReading, Report, Snapshot, SourceState
from otel_gpu.state.persistent import PersistentAttributor
from tests.builders import DRIVER, listed, snapshot
from tests.state_dirs import StatefulAgent, counters
from tests.unit.attribution.played import CYCLE_MJ, JOB, WEB, gpu_with, old

TWO: Final = gpu_with(listed(1), listed(2))
ONE: Final = gpu_with(listed(1))
OTHER_BOOT: Final = "99999999-2222-3333-4444-555555555555"


def world(at_s: float, reading: GpuReading = TWO, driver: DriverFacts | None = DRIVER) -> Snapshot:
    """A GPU that draws 200 W, at a time."""
    counter_mj = round(at_s / 5 * CYCLE_MJ) + 1
    gpus = () if driver is None else (replace(reading, energy_mj=counter_mj, power_limit_w=400.0),)
    return replace(snapshot(*gpus, processes=[old(1, WEB), old(2, JOB)], at_s=at_s), driver=driver)


def run(agent: PersistentAttributor, *at_s: float, reading: GpuReading = TWO) -> Report:
    """The last Report of several cycles, on a disk that is done with each before the next."""
    for each in at_s:
        report = agent.observe(world(each, reading))
        if isinstance(agent, StatefulAgent):
            agent.settle()
    return report


def outcome(report: Report) -> tuple[SourceState, str | None]:
    """What a Report says about the state directory."""
    (found,) = (source for source in report.sources if source.name == "state")
    return found.state, found.reason


def files(path: Path) -> list[str]:
    """Names in a state directory, but for the lock."""
    return sorted(each.name for each in path.iterdir() if each.name != "lock")


def is_fresh(report: Report) -> bool:
    """Whether all counters start at 0 with this Report."""
    assert len({key[-1] for key in counters(report) if key[0] == "gpu"}) == 1
    return report.epoch_ns == report.wall_ns and not any(sum(sums) for sums in counters(report).values())


def full(*_: Any) -> int:
    """Fail as on a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_only(*_: Any) -> None:
    """Fail as on a read-only file system."""
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))
