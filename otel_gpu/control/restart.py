"""Starting the same process anew, with the same pid: for a driver that was upgraded under it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from otel_gpu.clock import Clock
from otel_gpu.errors import Unavailable

_MARK: Final = "_OTEL_GPU_RENEWED"
"""When this process was last started anew: seconds of the monotonic clock, which goes on over exec."""

_AT_MOST_EVERY_S: Final = 600.0


def may_renew(environment: Mapping[str, str], clock: Clock) -> bool:
    """Whether the last time was long enough ago: what a new process does not mend, a third will not."""
    last = environment.get(_MARK, "")
    if not (last.isascii() and last.isdecimal()):
        return True
    return not 0 <= clock.monotonic_ns() / 1e9 - int(last) < _AT_MOST_EVERY_S


def was_renewed(environment: Mapping[str, str]) -> bool:
    """Whether this process has become what it is in that way."""
    return _MARK in environment


def renew(environment: Mapping[str, str], clock: Clock, arguments: Sequence[str] | None = None) -> NoReturn:
    """Become the program that this process was started as. Unavailable if that fails.

    Every descriptor that Python opens is closed by that (PEP 446), so addresses are free to be listened at again.
    """
    given = list(sys.orig_argv if arguments is None else arguments)
    marked = {**environment, _MARK: str(int(clock.monotonic_ns() / 1e9))}
    try:
        os.execve(sys.executable, [sys.executable, *given[1:]], marked)  # noqa: S606 - itself, as it was started
    except OSError as error:
        raise Unavailable(f"the agent cannot start itself anew: {error}; restart it") from None
