"""Use of resources by a process so far, as counted by the kernel, the stub driver and the sink."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.cost.sink import Sink
from bench.cost.tools import Running

_CPUCLOCK_SCHED: Final = 2
"""Linux, include/linux/posix-timers_types.h: the CPU clock of a process is ``(~pid << 3) | CPUCLOCK_SCHED``."""

_CYCLE: Final = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")
"""Both tools call one of these once per GPU and cycle."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Running counts at one moment; the difference of two is the use between them."""

    cpu_s: float
    cycles: float
    device_calls: int
    pushes: int
    pushed_bytes: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory and threads of a running process."""

    rss_bytes: int
    threads: int


def mark(running: Running, sink: Sink) -> Mark:
    """The counts as of now."""
    calls = running.counts.calls()
    return Mark(
        cpu_s=time.clock_gettime((~running.pid << 3) | _CPUCLOCK_SCHED),
        cycles=sum(calls.get(name, 0) for name in _CYCLE) / running.size.gpus,
        device_calls=running.counts.device_calls(running.size.gpus),
        pushes=sink.pushes,
        pushed_bytes=sink.body_bytes,
    )


def footprint(pid: int) -> Footprint:
    """Resident memory and threads as of now."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    return Footprint(_number("VmRSS", status) * 1024, _number("Threads", status))


def _number(name: str, status: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)
    return int(found[1]) if found else 0
