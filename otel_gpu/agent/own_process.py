"""The agent's own process: its CPU time and memory, and the tuning of its garbage collection and allocator.

``tune_malloc`` and ``tune_gc`` are for the owner of the process: inside another service the agent does not call
them. psutil is for systems without ``/proc/self/statm``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
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


# ---------------------------------------------------------------------------- descriptors

_MAX_DESCRIPTORS: Final = 65_536
"""Enough for everything. A limit far above it would cost memory in programs that close all descriptors."""


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard limit: 1,024 is usual, and select(2) is not used here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptor_limit() -> int:
    """How many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


# ---------------------------------------------------------------------------- garbage collection and memory

_THRESHOLDS: Final = (20_000, 20, 20)
"""Allocations between collections, and the ratio for older generations. A cycle on a busy host allocates thousands of
objects, which reference counting frees. With Python's default of 700, looking for reference cycles among them costs as
much as attribution."""

_ARENA_MAX: Final = -8
_ARENAS: Final = 2
"""The option M_ARENA_MAX of mallopt(3) and its value. By default twenty threads get up to eight arenas for each core,
each as large as its largest response ever."""

_MMAP_THRESHOLD: Final = -3
_MMAP_BYTES: Final = 4 << 20
_TRIM_THRESHOLD: Final = -1
_TRIM_BYTES: Final = 16 << 20
"""M_MMAP_THRESHOLD and M_TRIM_THRESHOLD. Only responses of a large host reach the first: they grow in place, and their
memory returns to the system at once. For smaller ones the page faults would cost more than the response."""


def tune_malloc() -> None:
    """Limit what glibc's allocator keeps, before threads start. Does nothing with another allocator."""
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_ARENA_MAX, _ARENAS)
        libc.mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)


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
