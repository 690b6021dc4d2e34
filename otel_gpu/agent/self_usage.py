"""CPU time and memory of the agent itself. The only use of psutil, for systems without ``/proc/self/statm``."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from typing import Final

_STATM: Final = "/proc/self/statm"
_MAX_BYTES: Final = 256


class SelfUsage:
    """CPU time and memory of this process."""

    def __init__(self) -> None:
        self._read_memory_bytes = _open_statm(self) or _open_psutil()

    def cpu_s(self) -> float | None:
        """User and system time of all threads, in seconds."""
        return time.process_time()

    def memory_bytes(self) -> int | None:
        """Resident memory in bytes; ``None`` if the system does not report it."""
        try:
            return self._read_memory_bytes()
        except (OSError, ValueError, IndexError):
            return None


def _open_statm(owner: object) -> Callable[[], int] | None:
    """A reader of the second field of ``statm`` (proc(5)), in pages. The file stays open as long as ``owner`` exists.

    It is read in every cycle, and opening it takes four times as long as reading it.
    """
    try:
        descriptor = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    weakref.finalize(owner, os.close, descriptor)
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    return lambda: int(os.pread(descriptor, _MAX_BYTES, 0).split()[1]) * page_bytes


def _open_psutil() -> Callable[[], int]:
    import psutil  # noqa: PLC0415 - not needed where /proc has statm

    process = psutil.Process()

    def memory_bytes() -> int:
        try:
            return int(process.memory_info().rss)
        except psutil.Error as error:
            raise OSError(str(error)) from None

    return memory_bytes
