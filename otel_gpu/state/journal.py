"""The journal: every Snapshot since the last checkpoint, one line per cycle.

The first line of a file is its head. Each other line is one whole Snapshot. A line begins with a CRC-32 of the rest and
the number of its cycle. The last line may be torn, where the agent was killed while it wrote: that cycle was never
exported. With any other fault the file cannot be trusted.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.bounded_io import parse_json
from otel_gpu.model import NO_UNREADABLE, Snapshot
from otel_gpu.state.codec import from_json, from_plain, to_json

T = TypeVar("T")

JOURNAL_FORMAT: Final = 1
"""Format 2, of development versions only, had references between lines. It is refused as any unknown format is."""


@dataclass(frozen=True, slots=True)
class JournalHead:
    """What a journal belongs to. Replay depends on rules and options, so it counts for the ``agent`` that wrote it.

    ``epoch_ns`` (Unix time) is when the ledger began, and identifies it. ``resumed_ns`` (monotonic) is when this run
    resumed an earlier one, right before the first line; ``None`` where the same run continues in another file. With a
    ``new_driver`` the hardware counters restarted at that moment.
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
    """A parsed journal file. ``base`` is the number of the cycle before its first; ``lines`` are JSON texts."""

    base: int
    head_text: bytes
    lines: tuple[bytes, ...]
    torn: bool

    def head(self) -> JournalHead:
        """The head; ValueError if this version cannot read it. Not needed where a checkpoint has all the cycles."""
        return read_head(JournalHead, JOURNAL_FORMAT, self.head_text)

    @property
    def last(self) -> int:
        """The number of its last cycle."""
        return self.base + len(self.lines)

    def snapshots(self, after: int) -> Iterator[Snapshot]:
        """The cycles with a number greater than ``after``, parsed one by one; ValueError for an invalid line."""
        return (from_json(Snapshot, text) for text in self.lines[max(0, after - self.base) :])


def head_line(base: int, head: JournalHead) -> bytes:
    """The first line of a journal."""
    return line(base, to_json(head))


def cycle_line(number: int, snapshot: Snapshot) -> bytes:
    """The line of a cycle. Outcomes of sources and unreadable processes are left out: no rule depends on them."""
    return line(number, to_json(replace(snapshot, sources=(), unreadable=NO_UNREADABLE)))


def line(number: int, text: str) -> bytes:
    """Checksum, number and text as one line."""
    body = b"%d %b" % (number, text.encode("ascii"))
    return b"%08x %b\n" % (zlib.crc32(body), body)


def parse_journal(content: bytes) -> Journal | None:
    """Parse a file; ``None`` if not even its first line is complete, ValueError if it cannot be trusted."""
    *complete, rest = content.split(b"\n")
    if not complete:
        return None
    base, text = _parse_line(complete[0])
    lines = []
    for number, each in enumerate(complete[1:], base + 1):
        found, line_text = _parse_line(each)
        if found != number:
            raise ValueError(f"line {number - base + 1} has number {found}, not {number}")
        lines.append(line_text)
    return Journal(base, text, tuple(lines), torn=bool(rest))


def read_head(kind: type[T], expected_format: int, text: bytes) -> T:
    """Parse the head of a file, whose first value is its format; ValueError for another format."""
    data = parse_json(text)
    found = data[0] if isinstance(data, list) and data else None
    if found != expected_format:
        raise ValueError(f"its format is {found!r:.40}, and this version reads format {expected_format}")
    return from_plain(kind, data)


def _parse_line(content: bytes) -> tuple[int, bytes]:
    checksum, _, body = content.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        raise ValueError("a line does not match its checksum")
    number, _, text = body.partition(b" ")
    if not number.isdigit() or len(number) > 18:
        raise ValueError("a line has no number")
    return int(number), text
