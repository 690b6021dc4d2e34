"""What the doctor says of the clock: every point is dated by it, and receivers drop what is far off."""

from __future__ import annotations

import ctypes
from datetime import UTC, datetime
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.doctor.findings import Finding, degraded, ok, unused

_WRITTEN_S: Final = 1_767_225_600
"""2026-01-01: before this program."""

_FIX: Final = (
    "on the host, as root: timedatectl set-ntp true; what it says: timedatectl timesync-status, or chronyc tracking"
)
_STA_UNSYNC: Final = 0x0040
_TIME_ERROR: Final = 5
"""linux/timex.h, adjtimex(2): the clock is not synchronised."""


class _Timex(ctypes.Structure):
    """The beginning of ``struct timex`` of linux/timex.h, with room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 512),
    )


def read_synchronised() -> bool | None:
    """Whether the kernel takes its clock for synchronised; ``None`` where it cannot be asked."""
    timex = _Timex()  # no modes: nothing is changed, and nobody has to be allowed to
    try:
        state = int(ctypes.CDLL(None).adjtimex(ctypes.byref(timex)))
    except (OSError, AttributeError):
        return None
    if state < 0:  # a sandbox may forbid it
        return None
    return state != _TIME_ERROR and not timex.status & _STA_UNSYNC


def examine_clock(clock: Clock, *, synchronised: bool | None) -> Finding:
    """Judge the wall clock, and what the kernel says of it."""
    now_s = clock.wall_ns() / 1e9
    if now_s < _WRITTEN_S:
        now = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return degraded("clock", f"{now}, which is before this program was written: points would be dated so", _FIX)
    if synchronised is None:
        return unused("clock", "whether it is synchronised cannot be asked for here (adjtimex)")
    if synchronised:
        return ok("clock", "synchronised")
    found = "not synchronised, says the kernel: it may drift, and points with it (a hypervisor may set it unseen)"
    return degraded("clock", found, _FIX)
