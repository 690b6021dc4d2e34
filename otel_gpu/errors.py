"""The few meanings an error can have. Each is chosen once, where the outside world is read."""

from __future__ import annotations


class OtelGpuError(Exception):
    """Base of everything this package raises on purpose; its text is one line a user can act on."""


class Unavailable(OtelGpuError):
    """Not available now, which is a fault: asking again later may work."""


class Unsupported(OtelGpuError):
    """Never available from this thing as it is: remember that, and do not ask again."""


class NoValue(OtelGpuError):
    """No value this time, and no fault: ask again next time."""


class Gone(OtelGpuError):
    """The thing asked about has ceased to exist: drop it."""


class UsageError(OtelGpuError):
    """The user asked for something impossible: bad flag, bad value, bad file."""
