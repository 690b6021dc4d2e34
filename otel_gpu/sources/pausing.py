"""Letting go of the driver for a while: whoever holds it holds up GPU resets, changes of MIG and upgrades."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from otel_gpu.clock import Clock
from otel_gpu.errors import Unavailable
from otel_gpu.model import GpuHealth, GpuIdentity, GpuReading, SourceState
from otel_gpu.sources.base import GpuRead, GpuSource

_OWN_PROC: Final = Path("/proc")
_NODE: Final = re.compile(r"/dev/nvidia[^/]*|/dev/nvidia-caps/.*")
_PASS_S: Final = 5.0
"""How long a pass under way is waited for."""

_LET_GO_S: Final = 5.0
_LOOK_AGAIN_S: Final = 0.05
"""How long a call that keeps hold of the driver is waited for, and how often that is looked at."""

_THE_DRIVER: Final = "the driver"


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause that was asked for: since when and until when (Unix time); ``until_s`` is ``None`` for until resumed.

    ``until_ns`` is the same by the monotonic clock, which counts. ``held`` are device nodes of the driver that this
    process has open all the same, or the driver as such: a call has not returned.
    """

    since_s: float
    until_s: float | None
    held: tuple[str, ...] = ()
    until_ns: int | None = None

    def __str__(self) -> str:
        until = "it is resumed" if self.until_s is None else time_text(self.until_s)
        return f"paused at {time_text(self.since_s)} until {until}"


class Pauses(Protocol):
    """Where a pause outlives the agent. Never raises."""

    def load(self) -> Pause | None:
        """The pause that an earlier run was in, if it is not over."""

    def save(self, pause: Pause | None) -> None:
        """Keep this one, or none."""


class PausableGpus:
    """Another source, which can be paused: then it is closed, and its GPUs keep their places without figures.

    ``holds`` tells whether that, closed, still has hold of the driver because a call has not returned.
    """

    def __init__(
        self,
        source: GpuSource,
        clock: Clock,
        *,
        own_proc: Path = _OWN_PROC,
        holds: Callable[[], bool] = lambda: False,
    ) -> None:
        self._source = source
        self._clock = clock
        self._own_proc = own_proc
        self._holds = holds
        self._pass = threading.Lock()
        self._asked = threading.Lock()
        self._pauses: Pauses | None = None
        self._pause: Pause | None = None
        self._last = GpuRead()
        """What the other source said last: whom it told of keeps its place while paused."""

    @property
    def name(self) -> str:
        """The other source's name."""
        return self._source.name

    def recall(self, gpus: Sequence[GpuIdentity]) -> None:
        """Know GPUs from an earlier run of the agent: paused from the start, there is nobody else to tell of."""
        now_ns = self._clock.monotonic_ns()
        with self._pass:
            self._last = GpuRead(tuple(GpuReading(gpu, now_ns) for gpu in gpus))

    def keep(self, pauses: Pauses) -> None:
        """Go on with the pause that was kept there, and keep each there from now on."""
        with self._asked:
            self._pauses = pauses
            self._pause = pauses.load()

    def read(self) -> GpuRead:
        """The other source's answer; while paused, that it is, and no figure. Nobody is paused who has not let go."""
        with self._pass:
            paused = self._current()
            if paused is None:
                self._last = self._source.read()
                return self._last
            self._source.close()  # again: what was stuck may have returned
            now_ns = self._clock.monotonic_ns()
            state, health, reason = SourceState.PAUSED, GpuHealth.PAUSED, str(paused)
            if self._holds():
                state, health = SourceState.UNAVAILABLE, GpuHealth.FAILED
                reason = f"to be {paused}, but the driver is not let go of yet: a call to it has not returned"
            gpus = (
                GpuReading(
                    gpu.identity,
                    now_ns,
                    xid_errors=gpu.xid_errors,  # the agent's own count
                    last_xid=gpu.last_xid,
                    health=health,
                    reason=reason,
                )
                for gpu in self._last.gpus
            )
            return GpuRead(tuple(gpus), self._last.driver, state, reason, int(state is not SourceState.PAUSED))

    def pause(self, for_s: float | None) -> Pause:
        """Let go of the driver, for so long or until resumed; what was asked for last counts.

        A call that has not returned is waited for, not for ever: ``held`` tells what it keeps. Unavailable if a pass
        under way does not end: then nothing is let go of before it does.
        """
        with self._asked:
            now_s = self._clock.wall_ns() / 1e9
            since_s = now_s if self._pause is None else self._pause.since_s
            paused = Pause(since_s, None)
            if for_s is not None:
                until_ns = self._clock.monotonic_ns() + round(for_s * 1e9)
                paused = Pause(since_s, now_s + for_s, until_ns=until_ns)
            self._set(paused)
        let_go_s = time.monotonic() + _LET_GO_S
        self._close()
        while self._holds() and time.monotonic() < let_go_s:
            time.sleep(_LOOK_AGAIN_S)
            self._close()
        held = held_nodes(self._own_proc)
        return replace(paused, held=(_THE_DRIVER,) if self._holds() and not held else held)

    def resume(self) -> Pause | None:
        """Read again from the next cycle on; the pause that this ends, if there is one."""
        with self._asked:
            ended = self._pause
            if ended is not None:
                self._set(None)
            return ended

    def close(self) -> None:
        """Let go of the driver."""
        self._source.close()

    def _close(self) -> None:
        if not self._pass.acquire(timeout=_PASS_S):
            raise Unavailable("paused, but a reading of the GPUs has not ended: the driver is let go of when it does")
        try:
            self._source.close()
        finally:
            self._pass.release()

    def _current(self) -> Pause | None:
        with self._asked:
            until_ns = None if self._pause is None else self._pause.until_ns
            if until_ns is not None and self._clock.monotonic_ns() >= until_ns:
                self._set(None)
            return self._pause

    def _set(self, pause: Pause | None) -> None:
        self._pause = pause
        if self._pauses is not None:
            self._pauses.save(pause)


def held_nodes(own_proc: Path) -> tuple[str, ...]:
    """Device nodes of the NVIDIA driver that this process has open."""
    directory = own_proc / "self/fd"
    found: set[str] = set()
    try:
        descriptors = os.listdir(directory)  # noqa: PTH208 - iterdir() fails later
    except OSError:
        return ()
    for descriptor in descriptors:
        try:
            target = str((directory / descriptor).readlink())
        except OSError:  # closed meanwhile
            continue
        if _NODE.fullmatch(target):
            found.add(target)
    return tuple(sorted(found))


def time_text(at_s: float) -> str:
    """Unix time for people, to the second."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
