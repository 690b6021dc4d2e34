"""When something that failed may be tried again."""

from __future__ import annotations

from typing import Final

from otel_gpu.clock import Clock

_LONGEST_PAUSE_S: Final = 60.0


class Backoff:
    """Leaves alone what failed: for 1, 2, 4 … 60 s."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pause_s = 0.0
        self._not_before_ns = 0

    @property
    def remaining_s(self) -> float:
        """How long to leave it alone; 0 when it may be tried."""
        if self._not_before_ns == 0:
            return 0.0
        return max(0, self._not_before_ns - self._clock.monotonic_ns()) / 1e9

    def failed(self) -> None:
        """It failed again: wait twice as long as last time."""
        self._pause_s = min(max(1.0, self._pause_s * 2), _LONGEST_PAUSE_S)
        self._not_before_ns = self._clock.monotonic_ns() + round(self._pause_s * 1e9)

    def worked(self) -> None:
        """It works: the next failure starts from the shortest pause."""
        self._pause_s = 0.0
        self._not_before_ns = 0
