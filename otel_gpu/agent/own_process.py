"""The agent's own process: its CPU time and memory, and the tuning of its garbage collection and allocator.

``limit_malloc_arenas`` and ``tune_gc`` are for the owner of the process: inside another service the agent does not call
them. psutil is for systems without ``/proc/self/statm``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
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


# ---------------------------------------------------------------------------- garbage collection and memory

_THRESHOLDS: Final = (20_000, 20, 20)
"""Allocations between collections, and the ratio for older generations. A cycle on a busy host allocates thousands of
objects, which reference counting frees. With Python's default of 700, looking for reference cycles among them costs as
much as attribution."""

_ARENA_MAX: Final = -8
_ARENAS: Final = 2
"""The option M_ARENA_MAX of mallopt(3) and its value. By default twenty threads get up to eight arenas for each core,
each as large as its largest response ever. M_MMAP_THRESHOLD would return that memory after each response, but then the
page faults cost more than the response."""


def limit_malloc_arenas() -> None:
    """Limit the arenas of glibc's allocator, before threads start. Does nothing with another allocator."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, _ARENAS)


def tune_gc() -> None:
    """Exclude every object that exists now from garbage collection, and collect less often. Call once, after start."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    release_free_memory()  # importing modules needed more


def release_free_memory() -> None:
    """Return free memory to the system.

    For use after a large task, not every cycle: the next would allocate it again.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)  # glibc only
