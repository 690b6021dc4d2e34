"""Lives of an agent on a host with one GPU, for tests of what outlives them."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from otel_gpu.model import DriverFacts, GpuReading, Report, Snapshot, SourceState
from otel_gpu.state.keeper import Keeper
from otel_gpu.state.prompt import Nowhere
from tests.builders import DRIVER, listed, snapshot
from tests.state_dirs import counters, settle
from tests.unit.attribution.played import CYCLE_MJ, JOB, WEB, gpu_with, old

TWO: Final = gpu_with(listed(1), listed(2))
ONE: Final = gpu_with(listed(1))


def world(at_s: float, reading: GpuReading = TWO, driver: DriverFacts | None = DRIVER) -> Snapshot:
    """A GPU that draws 200 W, at a time."""
    counter_mj = round(at_s / 5 * CYCLE_MJ) + 1
    gpus = () if driver is None else (replace(reading, energy_mj=counter_mj, power_limit_w=400.0),)
    return replace(snapshot(*gpus, processes=[old(1, WEB), old(2, JOB)], at_s=at_s), driver=driver)


def run(keeper: Keeper, *at_s: float, reading: GpuReading = TWO) -> Report:
    """The last answer of several cycles."""
    for each in at_s:
        answer = keeper.observe(world(each, reading))
    if not isinstance(keeper._store, Nowhere):
        settle(keeper)
    return answer


def outcome(answer: Report) -> tuple[SourceState, str | None]:
    """What the answer says of the state."""
    (found,) = (source for source in answer.sources if source.name == "state")
    return found.state, found.reason


def files(path: Path) -> list[str]:
    """What is in a state directory."""
    return sorted(each.name for each in path.iterdir() if each.name != "lock")


def is_fresh(answer: Report) -> bool:
    """Whether everything starts at 0, now."""
    assert len({key[-1] for key in counters(answer) if key[0] == "gpu"}) == 1
    return answer.epoch_ns == answer.wall_ns and not any(sum(sums) for sums in counters(answer).values())


def full(*_: Any) -> int:
    """A disk that is."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_only(*_: Any) -> None:
    """A file system that is."""
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))
