"""Garbage collection and memory allocation, tuned for a process that runs for months next to other workloads.

``limit_malloc_arenas`` and ``tune_gc`` are for the owner of the process: inside another service the agent does not call
them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from typing import Final

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
    """Return free memory to the system. For use after a large task, not in every cycle, which would need it again."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)  # glibc only
