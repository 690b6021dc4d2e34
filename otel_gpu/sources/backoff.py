"""Back-off after consecutive failures."""

from __future__ import annotations

from typing import Final

from otel_gpu.clock import Clock

FIRST_PAUSE_S: Final = 1.0


class Backoff:
    """Pauses of 1, 2, 4 … ``max_pause_s`` seconds, or of another first pause doubled."""

    def __init__(self, max_pause_s: float, first_pause_s: float = FIRST_PAUSE_S) -> None:
        self._max_pause_s = max_pause_s
        self._first_pause_s = first_pause_s
        self._pause_s = 0.0

    def failed(self) -> float:
        """Record a failure. Returns the pause before the next attempt."""
        self._pause_s = min(max(self._first_pause_s, self._pause_s * 2), self._max_pause_s)
        return self._pause_s

    def worked(self) -> None:
        """Record a success: the next failure starts with the shortest pause."""
        self._pause_s = 0.0


class TimedBackoff:
    """A back-off whose pauses pass on a clock, for a caller that does not wait."""

    def __init__(self, clock: Clock, max_pause_s: float = 60.0) -> None:
        self._clock = clock
        self._backoff = Backoff(max_pause_s)
        self._not_before_ns: int | None = None

    @property
    def remaining_s(self) -> float:
        """The rest of the pause; 0 if a new attempt is due."""
        if self._not_before_ns is None:
            return 0.0
        return max(0, self._not_before_ns - self._clock.monotonic_ns()) / 1e9

    def failed(self) -> None:
        """Record a failure: a pause starts, twice as long as the last one."""
        self._not_before_ns = self._clock.monotonic_ns() + round(self._backoff.failed() * 1e9)

    def worked(self) -> None:
        """Record a success: there is no pause."""
        self._backoff.worked()
        self._not_before_ns = None
