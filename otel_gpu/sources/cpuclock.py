"""Whether a process has run, by its CPU clock: who has not run has changed nothing.

Linux tells anybody how long a process of his own pid namespace has run, to the nanosecond, and no file is opened for it
(clock_getcpuclockid(3); kernel/time/posix-cpu-timers.c). One that has run no longer than before has opened, closed and
mapped nothing since, has not ended, and nobody has taken its place: what was read of it after its clock still is so.
Time on a CPU may be counted only as the process leaves it, or at the next tick: then a change is noticed in a later
cycle, and never missed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from otel_gpu.sources.hostfacts import own_pids

CpuClock = Callable[[int], int | None]
"""How long the process of this pid has run, nanoseconds; ``None`` if it cannot be told."""

_CPUCLOCK_SCHED: Final = 2
"""Linux, include/linux/posix-timers_types.h: a process's CPU clock is ``(~pid << 3) | CPUCLOCK_SCHED``."""

_COARSE_NS: Final = 1_000_000
_ATTEMPTS: Final = 3


def _clock_id(pid: int) -> int:
    return (~pid << 3) | _CPUCLOCK_SCHED


def cpu_time_ns(pid: int) -> int | None:
    """The CPU time of a process of the agent's own pid namespace."""
    try:
        return time.clock_gettime_ns(_clock_id(pid))
    except OSError:  # there is none, or a sandbox does not have it told
        return None


def not_told(_: int) -> int | None:
    """The CPU time of whoever has none that counts."""
    return None


class CpuClocks:
    """The CPU clocks of some processes, read together, in cycle after cycle."""

    def __init__(self, clock: CpuClock, pids: Sequence[int]) -> None:
        self._clock = clock
        self._pids = tuple(pids)
        self._ids = [_clock_id(pid) for pid in pids] if clock is cpu_time_ns else None

    def read(self) -> list[int | None]:
        """How long each has run, in their order."""
        if self._ids is not None:
            try:
                return list(map(time.clock_gettime_ns, self._ids))
            except OSError:  # one of them cannot be told: each by itself
                pass
        return list(map(self._clock, self._pids))


def cpu_clock_for(root: Path, clock: CpuClock = cpu_time_ns) -> CpuClock:
    """The CPU clock for pids as ``root`` gives them: of use only where those are the agent's own namespace's.

    And where it counts nanoseconds: in a sandbox, or without a clock of the processor, time may pass in ticks, between
    which a process can open a GPU and be said not to have run.
    """
    me = os.getpid()
    if own_pids(root) != (me,):
        return not_told
    for _ in range(_ATTEMPTS):
        before_ns, after_ns = clock(me), clock(me)
        if before_ns is not None and after_ns is not None and 0 < after_ns - before_ns < _COARSE_NS:
            return clock
    return not_told
