"""Back-off after failures."""

from __future__ import annotations

from typing import Final

from otel_gpu.clock import Clock

_MAX_PAUSE_S: Final = 60.0


class Backoff:
    """Pauses of 1, 2, 4 … 60 s after consecutive failures."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pause_s = 0.0
        self._not_before_ns = 0

    @property
    def remaining_s(self) -> float:
        """The rest of the pause; 0 if a new try is due."""
        if self._not_before_ns == 0:
            return 0.0
        return max(0, self._not_before_ns - self._clock.monotonic_ns()) / 1e9

    def failed(self) -> None:
        """Record a failure: the pause is twice the last one."""
        self._pause_s = min(max(1.0, self._pause_s * 2), _MAX_PAUSE_S)
        self._not_before_ns = self._clock.monotonic_ns() + round(self._pause_s * 1e9)

    def worked(self) -> None:
        """Record a success: the next failure starts with the shortest pause."""
        self._pause_s = 0.0
        self._not_before_ns = 0
