"""A marker of the moment from which figures are exported that no journal has.

Files that no longer lead to what is exported cannot always be removed: their disk may have failed, and an agent without
a state directory does not know of one. So the moment is written to another medium, the runtime directory. State counts
within one boot, and a runtime directory does not outlive that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from otel_gpu.errors import Unavailable
from otel_gpu.sources.workers import TooLate, Worker
from otel_gpu.state.codec import from_json, to_json
from otel_gpu.state.files import PrivateDirectory

T = TypeVar("T")

log = logging.getLogger(__name__)

NAME: Final = "unjournalled"
_DRAFT: Final = "unjournalled.new"
_OF_HOST: Final = Path("/run/otel-gpu")
DEADLINE_S: Final = 1.0
"""For one directory. A runtime directory is memory, unless an operator has put it on a disk."""

UNREADABLE_NS: Final = 1 << 99
"""Later than any cycle: there may be a marker, and it cannot be read."""


@dataclass(frozen=True, slots=True)
class _Mark:
    boot_id: str
    since_ns: int


def marker_directories(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """The runtime directory of the unit; without one, the directories of the session and the host, where agents look.

    The first of systemd's directories counts. With DynamicUser= it is a link, which is followed (systemd.exec(5)).
    """
    of_unit = environment.get("RUNTIME_DIRECTORY", "").split(":")[0]
    of_session = environment.get("XDG_RUNTIME_DIR", "")
    if of_unit.startswith("/"):
        return (Path(of_unit).resolve(),)
    return (*([Path(of_session) / "otel-gpu"] if of_session.startswith("/") else []), _OF_HOST)


class GapMarker:
    """The moment in monotonic time, in each of several directories. It is never removed: later checkpoints are newer.

    ``failure_level`` is the level at which a failure to write it anywhere is logged, once.
    """

    def __init__(self, directories: Sequence[Path], boot_id: str | None) -> None:
        self.failure_level = logging.WARNING
        self._directories = tuple(directories) if boot_id is not None else ()
        self._boot_id = boot_id or ""
        self._is_logged = False

    def marked_ns(self) -> int | None:
        """The latest moment that an agent has marked in this boot (monotonic); ``None`` without one."""
        found = []
        for path in self._directories:
            try:
                found.append(_within_deadline(partial(self._read, path)))
            except Unavailable:
                found.append(UNREADABLE_NS)
        return max((each for each in found if each is not None), default=None)

    def mark(self, since_ns: int) -> None:
        """Mark that figures from this moment (monotonic) on are in no journal. Returns when it is written."""
        failed = []
        for path in self._directories:
            try:
                _within_deadline(partial(self._write, path, since_ns))
            except Unavailable as error:
                failed.append(f"{path}: {error}" if isinstance(error, TooLate) else str(error))
        if self._directories and len(failed) == len(self._directories) and not self._is_logged:
            self._is_logged = True
            log.log(
                self.failure_level,
                "counters are not saved and the gap marker cannot be written; they may go backwards after the next "
                "start with a state directory: %s",
                "; ".join(failed),
            )

    def _write(self, path: Path, since_ns: int) -> None:
        """Write the marker unless a later one is there; Unavailable if that fails."""
        directory = PrivateDirectory.open(path, as_it_is=True)
        try:
            directory.wait_for_turn()  # two agents may write at once
            there_ns = self._read_in(directory)
            if there_ns is None or there_ns == UNREADABLE_NS or there_ns < since_ns:
                directory.write(_DRAFT, to_json(_Mark(self._boot_id, since_ns)).encode("ascii"))
                directory.rename(_DRAFT, NAME)
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror}") from None
        finally:
            directory.close()

    def _read(self, path: Path) -> int | None:
        try:
            if not path.is_dir():
                return None
            directory = PrivateDirectory.open(path, as_it_is=True)
        except (PermissionError, Unavailable):  # not a directory of this user, or of this user alone
            return None
        try:
            return self._read_in(directory)
        finally:
            directory.close()

    def _read_in(self, directory: PrivateDirectory) -> int | None:
        try:
            mark = from_json(_Mark, directory.read(NAME))
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return UNREADABLE_NS
        return mark.since_ns if mark.boot_id == self._boot_id else None


def _within_deadline(call: Callable[[], T]) -> T:
    """Run a call on a thread of its own; TooLate if it misses the deadline, and the thread ends with the call."""
    worker = Worker("otel-gpu-marker")
    try:
        pending = worker.start(call)
    except Unavailable:  # no thread can be started
        return call()
    worker.close()
    return pending.result(time.monotonic() + DEADLINE_S)
