"""What the agent itself costs. The only use of psutil, where ``/proc`` does not tell."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from typing import Final

_STATM: Final = "/proc/self/statm"
_LONGEST: Final = 256


class SelfCost:
    """CPU time and memory of this process; ``None`` where the system does not tell."""

    def __init__(self) -> None:
        self._memory_bytes = _resident(self) or _psutil()

    def cpu_s(self) -> float | None:
        """User and system time of all threads, in seconds."""
        return time.process_time()

    def memory_bytes(self) -> int | None:
        """Resident memory."""
        try:
            return self._memory_bytes()
        except (OSError, ValueError, IndexError):
            return None


def _resident(owner: object) -> Callable[[], int] | None:
    """Reads the second figure of ``statm`` (proc(5)), pages, from a file that is open as long as its owner is there.

    To open it takes four times as long as to read it, and it is read in every cycle.
    """
    try:
        descriptor = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    weakref.finalize(owner, os.close, descriptor)
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    return lambda: int(os.pread(descriptor, _LONGEST, 0).split()[1]) * page_bytes


def _psutil() -> Callable[[], int]:
    import psutil  # noqa: PLC0415 - most hosts do without

    process = psutil.Process()

    def memory_bytes() -> int:
        try:
            return int(process.memory_info().rss)
        except psutil.Error as error:
            raise OSError(str(error)) from None

    return memory_bytes
