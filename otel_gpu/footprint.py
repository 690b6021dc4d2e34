"""What a process that runs for months owes to the others on its host: little memory, and little time spent on it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

_THRESHOLDS: Final = (20_000, 20, 20)
"""New objects until the collector looks, and how much rarer it looks at older ones. A cycle of a busy host makes
thousands, which reference counting frees as the next one comes: looking for rings among them at every 700, as Python
does by default, costs as much as attributing."""

_ARENA_MAX: Final = -8
_HEAPS: Final = 2
"""mallopt(3): how many heaps threads allocate from. By default twenty threads have up to eight for each core, each with
room for the largest answer it ever made. (To give that room back after every answer, by M_MMAP_THRESHOLD, costs more
time for page faults than making the answer does.)"""


_GUESSERS: Final = ("chardet", "charset_normalizer")
"""What requests guesses the encoding of a text with that comes without one; where neither is there, it takes UTF-8.
Nobody who is asked here sends another. The tables of the second one take 3 MB."""
_OPTIONAL_SINCE: Final = (2, 32)
"""The version of requests from which on it does without them."""


def guess_no_encodings() -> None:
    """Have requests imported without what it guesses encodings with; before it is, and by whoever owns the process."""
    if not _can_do_without_guessing():
        return
    modules: dict[str, Any] = sys.modules
    for name in _GUESSERS:
        modules.setdefault(name, None)  # to import it raises ImportError
    warnings.filterwarnings("ignore", message="Unable to find acceptable character detection dependency")


def _can_do_without_guessing() -> bool:
    try:
        major, minor, *_ = map(int, version("requests").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return False
    return (major, minor) >= _OPTIONAL_SINCE


def settle() -> None:
    """Everything is imported and made that stays: do not look through it again. Once, by whoever owns the process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    give_back()  # what importing took for a while


def give_back() -> None:
    """Give memory that is free back to the system: after something large, not in every cycle, which needs it again."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)  # glibc's


def bound_heaps() -> None:
    """Keep the allocator from keeping what is freed; before threads start. Without effect where it is not glibc's."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, _HEAPS)
