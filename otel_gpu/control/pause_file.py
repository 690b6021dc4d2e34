"""A pause that persists over a restart of the agent, so that a restart does not take the GPUs again."""

from __future__ import annotations

import json
import logging
import math
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from otel_gpu.bounded_io import parse_json
from otel_gpu.clock import Clock
from otel_gpu.control.protocol import MAX_PAUSE_S
from otel_gpu.control.server import open_directory
from otel_gpu.errors import Unavailable
from otel_gpu.sources.pause import Pause
from otel_gpu.sources.proc.host import read_boot_id
from otel_gpu.sources.proc.source import OWN_PROC

log = logging.getLogger(__name__)

_NAME: Final = "paused"
_DRAFT: Final = "paused.new"
_MAX_BYTES: Final = 4096
_CLOCK_END_NS: Final = 2**63
"""Range of the kernel's clock in nanoseconds. A larger number may not fit a float."""

_OPEN_FLAGS: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY


class PauseFile:
    """The file ``paused`` beside the control socket: the boot id and the end of the pause on the monotonic clock.

    A reboot ends a pause, because whatever needed the GPU has ended as well.
    """

    def __init__(self, directory: Path, clock: Clock, *, own_proc: Path = OWN_PROC) -> None:
        self._directory = directory
        self._clock = clock
        self._own_proc = own_proc

    def load(self) -> Pause | None:
        """The pause of an earlier run in this boot, if it is not over. An invalid file is ignored with a warning."""
        try:
            content = self._read()
            pause = parse_pause(content, read_boot_id(self._own_proc), self._clock)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, Unavailable) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            log.warning("%s is ignored and the agent is not paused: %s", self._directory / _NAME, reason)
            return None
        if pause is None:
            self.save(None)
        return pause

    def save(self, pause: Pause | None) -> None:
        """Save a pause, or remove the file. A failure is logged and has no other effect."""
        try:
            self._write(pause)
        except (OSError, Unavailable) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            effect = "pause it again" if pause is None else "end this pause"
            log.warning("a restart of the agent would %s: %s: %s", effect, self._directory / _NAME, reason)

    def _read(self) -> bytes:
        directory = open_directory(self._directory)
        try:
            # O_NONBLOCK: a FIFO in its place must not block the agent.
            descriptor = os.open(_NAME, os.O_RDONLY | os.O_NONBLOCK | _OPEN_FLAGS, dir_fd=directory)
        finally:
            os.close(directory)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o077:
                raise ValueError("not a private file of the agent")
            return os.read(descriptor, _MAX_BYTES)
        finally:
            os.close(descriptor)

    def _write(self, pause: Pause | None) -> None:
        directory = open_directory(self._directory)
        try:
            if pause is None:
                _remove(_NAME, directory)
                return
            boot_id = read_boot_id(self._own_proc)
            if boot_id is None:
                raise Unavailable(f"{self._own_proc} has no boot id")
            content = {"since_s": pause.since_s, "until_s": pause.until_s, "until_ns": pause.until_ns}
            _remove(_DRAFT, directory)
            draft = os.open(_DRAFT, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN_FLAGS, 0o600, dir_fd=directory)
            with os.fdopen(draft, "wb") as file:
                file.write(json.dumps({"boot_id": boot_id, **content}).encode() + b"\n")
            os.rename(_DRAFT, _NAME, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            os.close(directory)


def parse_pause(content: bytes, boot_id: str | None, clock: Clock) -> Pause | None:
    """The pause in a file; ``None`` if it is over. ValueError if the file is not valid or from another boot."""
    saved = _parse(content)
    until_ns = saved["until_ns"]
    if saved["boot_id"] != boot_id:
        raise ValueError("from another boot")
    if until_ns is None:
        return Pause(saved["since_s"], None)
    remaining_s = (until_ns - clock.monotonic_ns()) / 1e9
    if remaining_s > MAX_PAUSE_S:
        raise ValueError("it ends too late")
    return Pause(saved["since_s"], clock.wall_ns() / 1e9 + remaining_s, until_ns=until_ns) if remaining_s > 0 else None


def _parse(content: bytes) -> dict[str, Any]:
    """The content of a file, with valid values. ValueError if it has others."""
    saved = parse_json(content)
    if not isinstance(saved, dict) or not isinstance(saved.get("boot_id"), str):
        raise ValueError("no boot id")  # noqa: TRY004 - the content is wrong, not its type in Python
    since_s, until_ns = saved.get("since_s"), saved.get("until_ns", "")
    if not isinstance(since_s, float) or not math.isfinite(since_s) or not 0 <= since_s < 1e11:
        raise ValueError("no valid start")
    if until_ns is not None and (type(until_ns) is not int or not 0 <= until_ns < _CLOCK_END_NS):
        raise ValueError("no valid end")
    return saved


def _remove(name: str, directory: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
