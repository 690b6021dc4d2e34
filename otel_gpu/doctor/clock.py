"""Check of the system clock, which dates every point; receivers drop points that are far off."""

from __future__ import annotations

import ctypes
from datetime import UTC, datetime
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.doctor.findings import Finding, degraded, ok, unused

_EARLIEST_S: Final = 1_767_225_600
"""2026-01-01. No release of this program is older."""

_FIX: Final = (
    "on the host, as root: timedatectl set-ntp true; to see the state: timedatectl timesync-status, or chronyc tracking"
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
    """Whether the kernel considers its clock synchronised; ``None`` if adjtimex(2) is not available."""
    timex = _Timex()  # modes 0 changes nothing and needs no privilege
    try:
        state = int(ctypes.CDLL(None).adjtimex(ctypes.byref(timex)))
    except (OSError, AttributeError):
        return None
    if state < 0:  # a sandbox may forbid it
        return None
    return state != _TIME_ERROR and not timex.status & _STA_UNSYNC


def check_clock(clock: Clock, *, synchronised: bool | None) -> Finding:
    """Check the wall clock and the kernel's synchronisation status."""
    now_s = clock.wall_ns() / 1e9
    if now_s < _EARLIEST_S:
        now = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return degraded("clock", f"{now} is earlier than this release: receivers drop points of that date", _FIX)
    if synchronised is None:
        return unused("clock", "synchronisation is unknown: adjtimex is not available here")
    if synchronised:
        return ok("clock", "synchronised")
    found = "the kernel reports it as not synchronised: timestamps may drift, unless a hypervisor or PTP sets it"
    return degraded("clock", found, _FIX)
