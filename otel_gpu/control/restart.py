"""Restart of the agent in place: exec of the same program in the same process, after a driver upgrade."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from otel_gpu.clock import Clock
from otel_gpu.errors import Unavailable

_LAST_RESTART: Final = "_OTEL_GPU_RENEWED"
"""Environment variable: seconds of the monotonic clock at the last restart. exec does not reset this clock."""

_MIN_INTERVAL_S: Final = 600.0


def may_restart(environment: Mapping[str, str], clock: Clock) -> bool:
    """Whether the last restart is long enough ago. A problem that one restart does not fix needs no second one."""
    last = environment.get(_LAST_RESTART, "")
    if not (last.isascii() and last.isdecimal()):
        return True
    return not 0 <= clock.monotonic_ns() / 1e9 - int(last) < _MIN_INTERVAL_S


def was_restarted(environment: Mapping[str, str]) -> bool:
    """Whether this process is the result of a restart in place."""
    return _LAST_RESTART in environment


def restart(environment: Mapping[str, str], clock: Clock, arguments: Sequence[str] | None = None) -> NoReturn:
    """Replace this process by a new run of the same program, with the same pid. Unavailable if that fails.

    exec closes every descriptor that Python has opened (PEP 446), so the addresses can be bound again.
    """
    original = list(sys.orig_argv if arguments is None else arguments)
    marked = {**environment, _LAST_RESTART: str(int(clock.monotonic_ns() / 1e9))}
    try:
        os.execve(sys.executable, [sys.executable, *original[1:]], marked)  # noqa: S606 - the agent itself
    except OSError as error:
        raise Unavailable(f"the agent cannot restart itself: {error}; restart it") from None
