"""Who only sits on a GPU: holds memory, and shows no work for long enough to be believed.

Alone on a GPU, a process that works is seen by every sample, so two polls without work are enough. Beside a busy
neighbour a sample credits one of them only and can miss the lighter one for many polls; how many is learnt from how
often it was seen there. Until it is decided the state is unknown and the time is held back, to be booked as a whole:
as idle, as busy if work shows after all, as unknown if the driver stops telling or the process ends. So no counter ever
has to be taken back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Self

from otel_gpu.model import GpuState

LONGEST_US: Final = 60_000_000
"""Time without work after which anybody who holds memory is idle, whatever a neighbour hides."""

_FEWEST_POLLS: Final = 2
_MISSED: Final = 0.001
_MISSED_WINDOW_US: Final = 5_000_000
"""How likely work may have been missed when a process is called idle: 0.1 %, and as much less as polls come faster than
every 5 s. Each poll is a chance to be wrong, and false alarms are counted by the hour."""

_HALF_LIFE_US: Final = 600_000_000
_PRIOR_POLLS: Final = 2.0
"""Polls without work that everybody is thought to have had: a few polls prove no process to be seen every time."""


_tuple: Final = tuple.__new__
_BUSY: Final = GpuState.BUSY
_IDLE: Final = GpuState.IDLE
_UNKNOWN: Final = GpuState.UNKNOWN
"""A member of an enumeration is looked up anew each time that it is named."""


class Booked(NamedTuple):
    """Time that is decided, with the memory held (byte-microseconds) and the energy drawn in it.

    ``billed_us`` is the part of the GPU's time that is this one's to pay for.
    """

    state: GpuState
    time_us: int
    byte_us: int
    energy_mj: int
    billed_us: int = 0


class IdleStep(NamedTuple):
    """Where a process stands after a poll: ``idle_s`` is 0 when busy, ``None`` when unknown.

    ``booked`` is what this poll decided, nothing while it is undecided. Idle time is counted from the first poll that
    saw no work: the work may have ended at any time before that poll. The window before it, in which none was seen,
    is booked as idle too.
    """

    state: GpuState
    idle_s: float | None
    booked: tuple[Booked, ...]


class IdleState:
    """One process on one GPU, or one workload: whoever works, or not, as a whole. Its state does not grow."""

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
        # How often it was seen at work beside neighbours that work.
        self._polls = 0.0
        self._working_polls = 0.0
        # Polls without work since the last one with: all, those beside neighbours at work, the newest in their absence.
        self._zeros = 0
        self._hidden_zeros = 0
        self._quiet_zeros = 0
        self._idle_us = 0
        # What is not decided yet.
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
    ) -> IdleStep:
        """Take up one poll and the window before it.

        ``worked`` is ``None`` where the driver does not tell: nobody is idle for lack of data. ``held_bytes`` is
        ``None`` for a process listed without a figure; it has a context, so it holds memory, but no byte is counted.
        Zero bytes are nothing to sit on. ``others_worked``: whether anybody else on this GPU showed work.
        """
        if held_bytes is not None and held_bytes < 0:
            held_bytes = None
        if energy_mj > 0:
            self._energy_mj += energy_mj
        if billed_us > 0:
            self._billed_us += billed_us
        if window_us <= 0:
            return self._step(decided=self._zeros == 0 or self._state is _IDLE)
        self._time_us += window_us
        if held_bytes:
            self._byte_us += window_us * held_bytes
        if worked:
            self._learn(beside=others_worked)
            self._begin_run()
            self._state = _BUSY
        elif worked is None or held_bytes == 0:
            self._begin_run()
            self._state = _UNKNOWN
        elif self._state is _IDLE:
            self._idle_us += window_us
        else:
            return self._zero(window_us, beside=others_worked)
        state = self._state
        piece = _tuple(Booked, (state, self._time_us, self._byte_us, self._energy_mj, self._billed_us))
        self._time_us = self._byte_us = self._energy_mj = self._billed_us = 0
        idle_s = 0.0 if state is _BUSY else self._idle_us / 1e6 if state is _IDLE else None
        return _tuple(IdleStep, (state, idle_s, (piece,)))

    def close(self) -> tuple[Booked, ...]:
        """The process has ended: what is still undecided stays unknown for ever."""
        self._begin_run()
        self._state = GpuState.UNKNOWN
        return self._step(decided=True).booked

    def _zero(self, window_us: int, *, beside: bool) -> IdleStep:
        if self._zeros:
            self._idle_us += window_us
        self._zeros += 1
        self._hidden_zeros += beside
        self._quiet_zeros = 0 if beside else self._quiet_zeros + 1
        decided = self._zeros >= _FEWEST_POLLS and (
            self._quiet_zeros >= _FEWEST_POLLS
            or self._time_us >= LONGEST_US
            or self._zeros >= self._zeros_needed(window_us)
        )
        self._state = _IDLE if decided else _UNKNOWN
        return self._step(decided=decided)

    def _zeros_needed(self, window_us: int) -> float:
        """Polls without work beside a neighbour after which it is unlikely enough that work was missed."""
        seen = min(self._working_polls / (self._polls + _PRIOR_POLLS), 0.999)
        if seen <= 0:
            return math.inf
        return math.log(_MISSED * min(1.0, window_us / _MISSED_WINDOW_US)) / math.log1p(-seen)

    def _learn(self, *, beside: bool) -> None:
        """Count how often this process is seen beside neighbours that work; seen alone it is always.

        Polls without work count once work shows again, up to the one that called it idle: the run was missed work at
        least in part. A process that idles for hours in between is not seen more rarely when it works.
        """
        fading = 0.5 ** (self._time_us / _HALF_LIFE_US)
        self._polls = self._polls * fading + self._hidden_zeros + beside
        self._working_polls = self._working_polls * fading + beside

    def _begin_run(self) -> None:
        self._zeros = self._hidden_zeros = self._quiet_zeros = self._idle_us = 0

    def _step(self, *, decided: bool) -> IdleStep:
        booked: tuple[Booked, ...] = ()
        if decided and (self._time_us or self._energy_mj or self._billed_us):
            piece = (self._state, self._time_us, self._byte_us, self._energy_mj, self._billed_us)
            booked = (_tuple(Booked, piece),)
            self._time_us = self._byte_us = self._energy_mj = self._billed_us = 0
        state = self._state
        idle_s = self._idle_us / 1e6 if state is _IDLE else 0.0 if state is _BUSY else None
        return _tuple(IdleStep, (state, idle_s, booked))

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Everything remembered and held back, as plain data."""
        return {
            "state": self._state.value,
            "polls": self._polls,
            "working_polls": self._working_polls,
            **{name: getattr(self, f"_{name}") for name in _COUNTS},
        }

    @classmethod
    def from_state(cls, data: Any) -> Self:
        """The counterpart of ``to_state``; ValueError if it is not what that gave."""
        restored = cls()
        try:
            state = GpuState(data["state"])
            frequencies = [data["polls"], data["working_polls"]]
            counts = {name: data[name] for name in _COUNTS}
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError("not a state of idleness") from error
        if state is GpuState.ALLOCATED:
            raise ValueError("idleness: a process is never allocated")
        if not all(type(each) in (int, float) and 0 <= each < _ABSURD for each in frequencies):
            raise ValueError("idleness: a frequency that is none")
        if not all(type(each) is int and 0 <= each < _ABSURD for each in counts.values()):
            raise ValueError("idleness: a count that is none")
        restored._state = state
        restored._polls, restored._working_polls = map(float, frequencies)
        for name, count in counts.items():
            setattr(restored, f"_{name}", count)
        return restored


_ABSURD: Final = 1 << 100
_COUNTS: Final = ("zeros", "hidden_zeros", "quiet_zeros", "idle_us", "time_us", "byte_us", "energy_mj", "billed_us")


def workload_state(states: Iterable[GpuState]) -> GpuState:
    """What a workload does, from its processes that hold memory on the GPU: busy if any is, idle if all are.

    Without a process it is for the grants to say whether it is ``allocated``; here it is unknown.
    """
    found = set(states)
    if _BUSY in found:
        return _BUSY
    return _IDLE if found == {_IDLE} else _UNKNOWN
