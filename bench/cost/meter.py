"""What a process has used so far, as the kernel and the stub driver count it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.cost.tools import Running

_CPUCLOCK_SCHED: Final = 2
"""Linux, include/linux/posix-timers_types.h: a process's CPU clock is ``(~pid << 3) | CPUCLOCK_SCHED``."""

_CYCLE: Final = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")
"""Both tools ask each GPU for its memory once a cycle, by one of these."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The counts of one moment; differences of two are what was used between them."""

    time_s: float
    cpu_s: float
    cycles: float
    device_calls: int
    all_calls: int
    pushed_bytes: int
    requests: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process takes while it runs."""

    rss_bytes: int
    threads: int


def mark(running: Running, *, pushed_bytes: int, requests: int) -> Mark:
    """The counts of now."""
    calls = running.counts.calls()
    return Mark(
        time_s=time.monotonic(),
        cpu_s=time.clock_gettime((~running.pid << 3) | _CPUCLOCK_SCHED),
        cycles=sum(calls.get(name, 0) for name in _CYCLE) / running.size.gpus,
        device_calls=running.counts.device_calls(running.size.gpus),
        all_calls=sum(calls.values()),
        pushed_bytes=pushed_bytes,
        requests=requests,
    )


def footprint(pid: int) -> Footprint:
    """Resident memory and threads of now."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    return Footprint(_number("VmRSS", status) * 1024, _number("Threads", status))


def _number(name: str, status: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)
    return int(found[1]) if found else 0
