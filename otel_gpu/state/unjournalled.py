"""Since when figures are told that no journal has: noted on another medium than the journal, the runtime directory.

What was saved before cannot always be removed: its disk may be what has failed, and who runs without a state directory
knows of none. State counts within one boot only, and a runtime directory does not outlive one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from otel_gpu.errors import Unavailable
from otel_gpu.sources.workers import TooLate
from otel_gpu.state.codec import from_json, to_json
from otel_gpu.state.deadline import within
from otel_gpu.state.files import PrivateDirectory

log = logging.getLogger(__name__)

NAME: Final = "unjournalled"
_DRAFT: Final = "unjournalled.new"
_OF_HOST: Final = Path("/run/otel-gpu")
NOTE_S: Final = 1.0
"""What noting it may take, or looking: a runtime directory is memory, unless somebody has put it on a disk."""

UNREADABLE_NS: Final = 1 << 99
"""Later than any cycle: there may be a note, and nobody can read it."""


@dataclass(frozen=True, slots=True)
class _Note:
    boot_id: str
    since_ns: int


def note_places(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """The unit's runtime directory; without one the session's and the host's, where another agent may look for it.

    As for the control socket, which needs a shorter path: the first of systemd's directories, and the one that it links
    to where a unit has a user made up for it (systemd.exec(5), DynamicUser=).
    """
    of_unit = environment.get("RUNTIME_DIRECTORY", "").split(":")[0]
    of_session = environment.get("XDG_RUNTIME_DIR", "")
    if of_unit.startswith("/"):
        return (Path(of_unit).resolve(),)
    return (*([Path(of_session) / "otel-gpu"] if of_session.startswith("/") else []), _OF_HOST)


class Unjournalled:
    """The note of when, in the clock of the cycles. It is never removed: whatever is saved later is later."""

    def __init__(self, places: Sequence[Path], boot_id: str | None, *, if_not: int = logging.WARNING) -> None:
        """``if_not`` is the level at which it is logged that it could be noted nowhere."""
        self._places = tuple(places) if boot_id is not None else ()
        self._boot_id = boot_id or ""
        self._if_not = if_not
        self._told = False

    def since_ns(self) -> int | None:
        """Since when anybody has told such figures in this boot (monotonic); ``None`` if nobody has."""
        found = []
        for place in self._places:
            try:
                found.append(within(NOTE_S, partial(self._read, place)))
            except Unavailable:
                found.append(UNREADABLE_NS)
        return max((each for each in found if each is not None), default=None)

    def note(self, since_ns: int) -> None:
        """Note that figures from this moment (monotonic) on are in no journal; when this returns, it is noted."""
        failed = []
        for place in self._places:
            try:
                within(NOTE_S, partial(self._write, place, since_ns))
            except Unavailable as error:
                failed.append(f"{place}: {error}" if isinstance(error, TooLate) else str(error))
        if self._places and len(failed) == len(self._places) and not self._told:
            self._told = True
            log.log(
                self._if_not,
                "that counters are told which are not kept can be noted nowhere, and after the next start with a state "
                "directory they may fall: %s",
                "; ".join(failed),
            )

    def _write(self, place: Path, since_ns: int) -> None:
        """Write it, unless a later one is there; Unavailable says why it cannot be."""
        directory = PrivateDirectory.open(place, as_it_is=True)
        try:
            directory.wait_for_turn()  # two agents may note something at once
            there_ns = self._read_in(directory)
            if there_ns is None or there_ns == UNREADABLE_NS or there_ns < since_ns:
                directory.write(_DRAFT, to_json(_Note(self._boot_id, since_ns)).encode("ascii"))
                directory.rename(_DRAFT, NAME)
        except OSError as error:
            raise Unavailable(f"{place}: {error.strerror}") from None
        finally:
            directory.close()

    def _read(self, place: Path) -> int | None:
        try:
            if not place.is_dir():
                return None
            directory = PrivateDirectory.open(place, as_it_is=True)
        except (PermissionError, Unavailable):  # another user's, or anybody's; or there is no way to it for us
            return None
        try:
            return self._read_in(directory)
        finally:
            directory.close()

    def _read_in(self, directory: PrivateDirectory) -> int | None:
        try:
            note = from_json(_Note, directory.read(NAME))
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return UNREADABLE_NS
        return note.since_ns if note.boot_id == self._boot_id else None
