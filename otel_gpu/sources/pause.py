"""Pauses, in which the agent releases the driver: an open driver blocks GPU resets, MIG changes and upgrades."""

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
_READ_TIMEOUT_S: Final = 5.0
"""How long ``pause`` waits for a read in progress."""

_RELEASE_TIMEOUT_S: Final = 5.0
"""How long ``pause`` waits for a call that holds the driver."""

_POLL_S: Final = 0.05

_THE_DRIVER: Final = "the driver"


@dataclass(frozen=True, slots=True)
class Pause:
    """A requested pause with its start and end (Unix time). Without ``until_s`` it lasts until resumed.

    It ends at ``until_ns`` of the monotonic clock. ``held`` names device nodes that this process still has open, or the
    driver if a call has not returned.
    """

    since_s: float
    until_s: float | None
    held: tuple[str, ...] = ()
    until_ns: int | None = None

    def __str__(self) -> str:
        until = "it is resumed" if self.until_s is None else time_text(self.until_s)
        return f"paused at {time_text(self.since_s)} until {until}"


class PauseStore(Protocol):
    """Saves a pause beyond the life of the agent. Never raises."""

    def load(self) -> Pause | None:
        """The pause of an earlier run, if it is not over."""

    def save(self, pause: Pause | None) -> None:
        """Save this pause, or that there is none."""


class PausableGpus:
    """A GPU source that can be paused. While paused it is closed, and its GPUs are listed without figures.

    ``holds`` returns whether the closed source still holds the driver because a call has not returned.
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
        self._read_lock = threading.Lock()
        self._pause_lock = threading.Lock()
        self._store: PauseStore | None = None
        self._pause: Pause | None = None
        self._last = GpuRead()
        """The last read of the source. While paused, its GPUs are still listed."""

    @property
    def name(self) -> str:
        """The name of the source."""
        return self._source.name

    def recall(self, gpus: Sequence[GpuIdentity]) -> None:
        """List GPUs of an earlier run of the agent: an agent that starts paused reads none."""
        now_ns = self._clock.monotonic_ns()
        with self._read_lock:
            self._last = GpuRead(tuple(GpuReading(gpu, now_ns) for gpu in gpus))

    def use_store(self, store: PauseStore) -> None:
        """Continue the pause in this store, and save each pause there from now on."""
        with self._pause_lock:
            self._store = store
            self._pause = store.load()

    def read(self) -> GpuRead:
        """Read the source, or list its GPUs without figures while paused. Not paused before the driver is released."""
        with self._read_lock:
            paused = self._current()
            if paused is None:
                self._last = self._source.read()
                return self._last
            self._source.close()  # again: a call that hung may have returned
            now_ns = self._clock.monotonic_ns()
            state, health, reason = SourceState.PAUSED, GpuHealth.PAUSED, str(paused)
            if self._holds():
                state, health = SourceState.UNAVAILABLE, GpuHealth.FAILED
                reason = f"to be {paused}, but the driver is not released yet: a call to it has not returned"
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
        """Release the driver for this many seconds, or until resumed. The last request counts.

        Waits a limited time for calls that have not returned: ``held`` names what they keep open. Unavailable if a read
        in progress does not end; the driver is released when it does.
        """
        with self._pause_lock:
            now_s = self._clock.wall_ns() / 1e9
            since_s = now_s if self._pause is None else self._pause.since_s
            paused = Pause(since_s, None)
            if for_s is not None:
                until_ns = self._clock.monotonic_ns() + round(for_s * 1e9)
                paused = Pause(since_s, now_s + for_s, until_ns=until_ns)
            self._set(paused)
        deadline_s = time.monotonic() + _RELEASE_TIMEOUT_S
        self._close()
        while self._holds() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
            self._close()
        held = held_nodes(self._own_proc)
        return replace(paused, held=(_THE_DRIVER,) if self._holds() and not held else held)

    def resume(self) -> Pause | None:
        """Read again from the next cycle on. Returns the pause that this ends, if any."""
        with self._pause_lock:
            ended = self._pause
            if ended is not None:
                self._set(None)
            return ended

    def close(self) -> None:
        """Release the driver."""
        self._source.close()

    def _close(self) -> None:
        if not self._read_lock.acquire(timeout=_READ_TIMEOUT_S):
            raise Unavailable("paused, but a read of the GPUs has not ended: the driver is released when it does")
        try:
            self._source.close()
        finally:
            self._read_lock.release()

    def _current(self) -> Pause | None:
        with self._pause_lock:
            until_ns = None if self._pause is None else self._pause.until_ns
            if until_ns is not None and self._clock.monotonic_ns() >= until_ns:
                self._set(None)
            return self._pause

    def _set(self, pause: Pause | None) -> None:
        self._pause = pause
        if self._store is not None:
            self._store.save(pause)


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
    """Unix time as ISO 8601 text, to the second."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
