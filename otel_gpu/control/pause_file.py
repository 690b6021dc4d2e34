"""A pause that outlives the agent: who has let go of the GPUs must not take hold of them because it was restarted."""

from __future__ import annotations

import json
import logging
import math
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from otel_gpu.clock import Clock
from otel_gpu.control.directory import open_directory
from otel_gpu.control.protocol import LONGEST_S
from otel_gpu.errors import Unavailable
from otel_gpu.sources.pausing import Pause
from otel_gpu.sources.proc.host import read_boot_id
from otel_gpu.sources.proc.source import OWN_PROC

log = logging.getLogger(__name__)

NAME: Final = "paused"
_DRAFT: Final = "paused.new"
_LARGEST_BYTES: Final = 4096
_END_OF_CLOCK_NS: Final = 2**63
"""What the kernel counts nanoseconds with; what is beyond may not even be a float."""

_SAFE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY


class PauseFile:
    """The file ``paused`` beside the control socket: until when, by the monotonic clock, and in which boot.

    A pause does not outlive a boot: there is nothing left that it was asked for.
    """

    def __init__(self, directory: Path, clock: Clock, *, own_proc: Path = OWN_PROC) -> None:
        self._directory = directory
        self._clock = clock
        self._own_proc = own_proc

    def load(self) -> Pause | None:
        """The pause that an earlier run of this boot was in, if it is not over. What is no such file is ignored."""
        try:
            content = self._read()
            pause = parse_pause(content, read_boot_id(self._own_proc), self._clock)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, Unavailable) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            log.warning("%s is ignored, and the agent not paused: %s", self._directory / NAME, reason)
            return None
        if pause is None:
            self.save(None)
        return pause

    def save(self, pause: Pause | None) -> None:
        """Keep this pause, or none any more. That it cannot be kept is said in a line, and changes nothing else."""
        try:
            self._write(pause)
        except (OSError, Unavailable) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            log.warning("a restart of the agent would %s: %s: %s", _lost(pause), self._directory / NAME, reason)

    def _read(self) -> bytes:
        directory = open_directory(self._directory)
        try:
            # Without waiting: a pipe in its place must not stop the agent.
            descriptor = os.open(NAME, os.O_RDONLY | os.O_NONBLOCK | _SAFE, dir_fd=directory)
        finally:
            os.close(directory)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o077:
                raise ValueError("it is no file of the agent's")
            return os.read(descriptor, _LARGEST_BYTES)
        finally:
            os.close(descriptor)

    def _write(self, pause: Pause | None) -> None:
        directory = open_directory(self._directory)
        try:
            if pause is None:
                _remove(NAME, directory)
                return
            boot_id = read_boot_id(self._own_proc)
            if boot_id is None:
                raise Unavailable(f"{self._own_proc} does not tell which boot this is")
            content = {"since_s": pause.since_s, "until_s": pause.until_s, "until_ns": pause.until_ns}
            _remove(_DRAFT, directory)
            draft = os.open(_DRAFT, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o600, dir_fd=directory)
            with os.fdopen(draft, "wb") as file:
                file.write(json.dumps({"boot_id": boot_id, **content}).encode() + b"\n")
            os.rename(_DRAFT, NAME, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            os.close(directory)


def parse_pause(content: bytes, boot_id: str | None, clock: Clock) -> Pause | None:
    """The pause that a file tells of; ``None`` if it is over. ValueError if it tells of none in this boot."""
    kept = _parsed(content)
    until_ns = kept["until_ns"]
    if kept["boot_id"] != boot_id:
        raise ValueError("it is of another boot")
    if until_ns is None:
        return Pause(kept["since_s"], None)
    left_s = (until_ns - clock.monotonic_ns()) / 1e9
    if left_s > LONGEST_S:
        raise ValueError("it ends later than a pause can")
    return Pause(kept["since_s"], clock.wall_ns() / 1e9 + left_s, until_ns=until_ns) if left_s > 0 else None


def _parsed(content: bytes) -> dict[str, Any]:
    """What the file says. ValueError if it says nothing of the kind."""
    try:
        kept = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(kept, dict) or not isinstance(kept.get("boot_id"), str):
        raise ValueError("it names no boot")  # noqa: TRY004 - it is what was read that is wrong
    since_s, until_ns = kept.get("since_s"), kept.get("until_ns", "")
    if not isinstance(since_s, float) or not math.isfinite(since_s) or not 0 <= since_s < 1e11:
        raise ValueError("it does not tell since when")
    if until_ns is not None and (type(until_ns) is not int or not 0 <= until_ns < _END_OF_CLOCK_NS):
        raise ValueError("it does not tell until when")
    return kept


def _remove(name: str, directory: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def _lost(pause: Pause | None) -> str:
    return "pause it again" if pause is None else "end this pause"
