"""The journal: what the agent has seen since its books were last saved, one line for each cycle.

The first line of a file says whose and what it is; each of the others is the Snapshot of a cycle, in which the number
of an earlier one may stand for what that line has in full. A line begins with its number and a checksum of number and
text. The last one may be torn, where the agent was killed as it wrote: nobody was shown what came of that cycle.
Anything else that is wrong, and the file is not to be trusted.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.model import Snapshot
from otel_gpu.state.codec import from_json, to_json
from otel_gpu.state.cycle_reader import CycleReader

JOURNAL_FORMAT: Final = 2
_FORMATS: Final = (1, JOURNAL_FORMAT)
"""Those that are read: in the first, every line has everything in full."""


@dataclass(frozen=True, slots=True)
class JournalHead:
    """Whose journal it is. What follows from a cycle depends on rules and options: it counts for those that wrote it.

    ``epoch_ns`` (Unix time) tells the books apart: it is when they began. ``resumed_ns`` (monotonic) is when an earlier
    run's books were taken up, right before the first line; ``None`` where the same run goes on in another file. With a
    ``new_driver`` the GPUs' own counters have begun anew then.
    """

    format: int
    agent: str
    boot_id: str
    epoch_ns: int
    resumed_ns: int | None
    new_driver: bool
    options: AttributionOptions


@dataclass(frozen=True, slots=True)
class Journal:
    """A journal as read: ``base`` is the number of the cycle before its first, ``lines`` are as they were written."""

    base: int
    head_text: bytes
    lines: tuple[bytes, ...]
    torn: bool

    def head(self) -> JournalHead:
        """Its first line, read when it counts: that of an older agent is, if it has nothing that is not saved."""
        return from_json(JournalHead, head_of_format(self.head_text, _FORMATS))

    @property
    def last(self) -> int:
        """The number of its last cycle."""
        return self.base + len(self.lines)

    def snapshots(self) -> Iterator[tuple[int, Snapshot]]:
        """All cycles with their numbers, read as they are asked for; ValueError where one was not written like that.

        From the first one on, whichever count: later lines rest on earlier ones.
        """
        reader = CycleReader()
        for number, text in enumerate(self.lines, self.base + 1):
            yield number, reader.of(number, text)


def head_line(base: int, head: JournalHead) -> bytes:
    """The first line of a journal."""
    return line(base, to_json(head))


def line(number: int, text: str) -> bytes:
    """One line."""
    body = b"%d %b" % (number, text.encode("ascii"))
    return b"%08x %b\n" % (zlib.crc32(body), body)


def parse_journal(content: bytes) -> Journal | None:
    """A journal; ``None`` if not even its first line was finished. ValueError if it is not to be trusted."""
    *complete, rest = content.split(b"\n")
    if not complete:
        return None
    base, text = _parse_line(complete[0])
    lines = []
    for number, each in enumerate(complete[1:], base + 1):
        found, line_text = _parse_line(each)
        if found != number:
            raise ValueError(f"line {number - base + 1} is number {found}, not {number}")
        lines.append(line_text)
    return Journal(base, text, tuple(lines), torn=bool(rest))


def head_of_format(text: bytes, formats: Sequence[int]) -> bytes:
    """The same text, if it is the head of a file in one of these formats; ValueError if not."""
    found = json.loads(text)
    if not isinstance(found, list) or not found or found[0] not in formats:
        told = found[0] if isinstance(found, list) and found else None
        known = " and ".join(map(str, formats))
        raise ValueError(f"its format is {told!r:.40}, and this version reads {known}")
    return text


def _parse_line(content: bytes) -> tuple[int, bytes]:
    checksum, _, body = content.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        raise ValueError("a line does not match its checksum")
    number, _, text = body.partition(b" ")
    if not number.isdigit() or len(number) > 18:
        raise ValueError("a line has no number")
    return int(number), text
