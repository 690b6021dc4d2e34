"""Busy or idle: whether a process that holds memory on a GPU works there.

Every sample shows a process that works alone on a GPU, so two polls without work are enough to call it idle. Next to a
busy neighbour a sample credits only one of the two and can miss the lighter one for many polls. How many polls are
enough is learned from how often the process was seen there. Until it is decided the state is ``unknown`` and the time
is held back. Then all of it is posted at once: as idle; as busy if work shows after all; as unknown if utilisation is
no longer available or the process ends. So no counter ever has to be corrected.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple, Self

from otel_gpu.attribution.saved_values import amount, restoring, whole
from otel_gpu.model import GpuState

LONGEST_US: Final = 60_000_000
"""Time without work after which a process that holds memory is idle, whatever a neighbour hides."""

_MIN_POLLS: Final = 2
_MISSED: Final = 0.001
_MISSED_WINDOW_US: Final = 5_000_000
"""Accepted probability that work was missed when a process is called idle: 0.1 %, and proportionally less where polls
come faster than every 5 s. Each poll is a chance for a false alarm, and false alarms are counted per hour."""

_HALF_LIFE_US: Final = 600_000_000
_PRIOR_POLLS: Final = 2.0
"""Polls without work that every process starts with: a few polls do not prove that its work is always seen."""


class StateTime(NamedTuple):
    """Time whose state is decided, with the memory held (byte-microseconds) and the energy used in it.

    ``billed_us`` is the part of the GPU's time that is billed to this process or workload.
    """

    state: GpuState
    time_us: int
    byte_us: int
    energy_mj: int
    billed_us: int = 0


class ActivityStep(NamedTuple):
    """State after a poll. ``idle_s`` is 0 when busy and ``None`` when unknown.

    ``decided`` is the time that this poll decided, empty while it is undecided. ``idle_s`` counts from the first poll
    without work, because the work may have ended at any time before that poll. The window before that poll is posted
    as idle as well: no work was seen in it.
    """

    state: GpuState
    idle_s: float | None
    decided: tuple[StateTime, ...]


class ActivityTracker:
    """Activity of one process on one GPU, or of one workload as a whole. Its state has a fixed size."""

    __slots__ = (
        "_billed_us",
        "_byte_us",
        "_energy_mj",
        "_hidden_zeros",
        "_idle_us",
        "_polls",
        "_quiet_zeros",
        "_state",
        "_time_us",
        "_working_polls",
        "_zeros",
    )

    def __init__(self) -> None:
        self._state = GpuState.UNKNOWN
        # Polls next to a busy neighbour, and how many of these showed work; both decay.
        self._polls = 0.0
        self._working_polls = 0.0
        # Polls without work since the last one with work: all, those next to a busy neighbour, and the newest ones
        # without a busy neighbour.
        self._zeros = 0
        self._hidden_zeros = 0
        self._quiet_zeros = 0
        self._idle_us = 0
        # Undecided time, and the memory, energy and billed time in it.
        self._time_us = 0
        self._byte_us = 0
        self._energy_mj = 0
        self._billed_us = 0

    def observe(
        self,
        *,
        window_us: int,
        worked: bool | None,
        others_worked: bool,
        held_bytes: int | None,
        energy_mj: int = 0,
        billed_us: int = 0,
    ) -> ActivityStep:
        """Process one poll and the window before it.

        ``worked`` is ``None`` where utilisation is not available: without data a process is never idle. ``held_bytes``
        is ``None`` for a process that is listed without a figure: it has a context and so holds memory, but no bytes
        are counted. A process that holds 0 bytes is never idle. ``others_worked``: whether another process on this GPU
        showed work.
        """
        self._energy_mj += max(0, energy_mj)
        self._billed_us += max(0, billed_us)
        if window_us <= 0:
            return self._step(decided=self._zeros == 0 or self._state is GpuState.IDLE)
        self._time_us += window_us
        self._byte_us += window_us * max(0, held_bytes or 0)
        if worked:
            self._learn(beside=others_worked)
            self._end_run()
            self._state = GpuState.BUSY
        elif worked is None or held_bytes == 0:
            self._end_run()
            self._state = GpuState.UNKNOWN
        elif self._state is GpuState.IDLE:
            self._idle_us += window_us
        else:
            self._count_zero(window_us, beside=others_worked)
            self._state = GpuState.IDLE if self._has_enough_zeros(window_us) else GpuState.UNKNOWN
            return self._step(decided=self._state is GpuState.IDLE)
        return self._step(decided=True)

    def close(self) -> tuple[StateTime, ...]:
        """The process has ended: undecided time is posted as unknown."""
        self._end_run()
        self._state = GpuState.UNKNOWN
        return self._step(decided=True).decided

    def _count_zero(self, window_us: int, *, beside: bool) -> None:
        """Count a poll without work."""
        if self._zeros:
            self._idle_us += window_us
        self._zeros += 1
        self._hidden_zeros += beside
        self._quiet_zeros = 0 if beside else self._quiet_zeros + 1

    def _has_enough_zeros(self, window_us: int) -> bool:
        """Whether the polls without work so far mean that the process is idle."""
        return self._zeros >= _MIN_POLLS and (
            self._quiet_zeros >= _MIN_POLLS
            or self._time_us >= LONGEST_US
            or self._zeros >= self._zeros_needed(window_us)
        )

    def _zeros_needed(self, window_us: int) -> float:
        """Polls without work next to a busy neighbour after which missed work is unlikely enough.

        A process that is seen with probability p is missed n times in a row with probability (1 - p)ⁿ.
        """
        seen = min(self._working_polls / (self._polls + _PRIOR_POLLS), 0.999)
        if seen <= 0:
            return math.inf
        return math.log(_MISSED * min(1.0, window_us / _MISSED_WINDOW_US)) / math.log1p(-seen)

    def _learn(self, *, beside: bool) -> None:
        """Count how often this process is seen next to a busy neighbour; alone it is always seen.

        Earlier polls without work then count as missed work, up to the poll that called the process idle. Later ones do
        not count: a process that idles for hours is not seen more rarely when it works.
        """
        kept = 0.5 ** (self._time_us / _HALF_LIFE_US)
        self._polls = self._polls * kept + self._hidden_zeros + beside
        self._working_polls = self._working_polls * kept + beside

    def _end_run(self) -> None:
        self._zeros = self._hidden_zeros = self._quiet_zeros = self._idle_us = 0

    def _step(self, *, decided: bool) -> ActivityStep:
        times: tuple[StateTime, ...] = ()
        if decided and (self._time_us or self._energy_mj or self._billed_us):
            times = (StateTime(self._state, self._time_us, self._byte_us, self._energy_mj, self._billed_us),)
            self._time_us = self._byte_us = self._energy_mj = self._billed_us = 0
        idle_s = None
        if self._state is GpuState.BUSY:
            idle_s = 0.0
        elif self._state is GpuState.IDLE:
            idle_s = self._idle_us / 1e6
        return ActivityStep(self._state, idle_s, times)

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """All that is remembered and held back, as plain data."""
        return {
            "state": self._state.value,
            "polls": self._polls,
            "working_polls": self._working_polls,
            **{name: getattr(self, f"_{name}") for name in _COUNTS},
        }

    @classmethod
    def from_state(cls, data: Any) -> Self:
        """Restore what ``to_state`` returned; ValueError for anything else."""
        restored = cls()
        with restoring("activity"):
            restored._state = GpuState(data["state"])
            restored._polls, restored._working_polls = amount(data["polls"]), amount(data["working_polls"])
            for name in _COUNTS:
                setattr(restored, f"_{name}", whole(data[name]))
        if restored._state is GpuState.ALLOCATED:
            raise ValueError("activity: a process is never allocated")
        return restored


_COUNTS: Final = ("zeros", "hidden_zeros", "quiet_zeros", "idle_us", "time_us", "byte_us", "energy_mj", "billed_us")
