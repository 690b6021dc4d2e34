"""The state file: the books after one cycle.

Five lines: a checksum of the others, whose books they are, the books, whom /proc had shown, and errors of GPUs (XID).
The last two came one after the other: files of agents that did not know of them are read as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from otel_gpu.attribution.cost import Prices
from otel_gpu.model import NO_PROCESSES, ProcessFacts
from otel_gpu.state.codec import from_json, to_json
from otel_gpu.state.journal import head_of_format
from otel_gpu.state.xids import XidTotals

STATE_FORMAT: Final = 1
"""Not that of journals, which count for one version: what was saved at the end of a run counts for all that read it."""
_PLAIN: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)


@dataclass(frozen=True, slots=True)
class SavedHead:
    """Whose books they are, and after which cycle. ``epoch_ns`` (Unix time) is when they began.

    ``prices`` are those that costs were told by. ``journal`` is the file that goes on from there; ``None`` where the
    agent ended.
    """

    format: int
    agent: str
    boot_id: str
    driver_version: str | None
    epoch_ns: int
    number: int
    prices: Prices | None
    journal: str | None


@dataclass(frozen=True, slots=True)
class Shown:
    """Whom /proc showed in a cycle: while it cannot be read, nobody knows better, after a restart as before it."""

    processes: Mapping[int, ProcessFacts] = field(default_factory=lambda: NO_PROCESSES)


@dataclass(frozen=True, slots=True)
class Kept:
    """All that is kept of a run. ``books`` are what an Attributor gave, and checks itself."""

    books: Any
    shown: Shown = field(default_factory=Shown)
    xids: XidTotals = field(default_factory=XidTotals)


@dataclass(frozen=True, slots=True)
class Saved:
    """A state file as read."""

    head: SavedHead
    kept: Kept


def saved_text(head: SavedHead, kept: Kept) -> bytes:
    """What is written."""
    lines = to_json(head), _PLAIN.encode(kept.books), to_json(kept.shown), to_json(kept.xids), ""
    content = "\n".join(lines).encode("ascii")
    return b"%b\n%b" % (hashlib.sha256(content).hexdigest().encode("ascii"), content)


def parse_saved(text: bytes) -> Saved:
    """What was written; ValueError if it is not to be trusted."""
    checksum, _, content = text.partition(b"\n")
    if checksum != hashlib.sha256(content).hexdigest().encode("ascii"):
        raise ValueError("it does not match its checksum")
    head, books, *more = [*content.split(b"\n"), b""]
    shown, xids, *rest = [*more, b"", b""]
    if any(rest):
        raise ValueError("it has more lines than this version knows")
    try:
        kept = Kept(
            json.loads(books),
            from_json(Shown, shown) if shown else Shown(),
            from_json(XidTotals, xids) if xids else XidTotals(),
        )
        return Saved(from_json(SavedHead, head_of_format(head, (STATE_FORMAT,))), kept)
    except RecursionError as error:
        raise ValueError("nested without end") from error
