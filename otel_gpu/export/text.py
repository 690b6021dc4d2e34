"""Text for terminals: safe whatever a container calls itself, coloured only for people."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Style(StrEnum):
    """The few styles used, as SGR codes."""

    BOLD = "1"
    DIM = "2"
    REVERSE = "7"
    RED = "31"
    GREEN = "32"
    YELLOW = "33"
    BLUE = "34"
    MAGENTA = "35"
    CYAN = "36"


class Paint:
    """Adds colour, or nothing where nobody would see it."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    def __call__(self, text: str, *styles: Style) -> str:
        """The text in these styles."""
        if not self._enabled or not styles:
            return text
        return f"\x1b[{';'.join(styles)}m{text}\x1b[0m"


def printable(text: str) -> str:
    """The text with everything a terminal might act on replaced: control characters, bidi marks, lone surrogates."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def cells(text: str) -> int:
    """How many cells of a terminal the text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(character: str) -> int:
    """Two for wide characters (UAX #11), none for marks that stand on the one before."""
    if unicodedata.category(character) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def shorten(text: str, width: int) -> str:
    """The text in at most ``width`` cells, with the loss shown."""
    if cells(text) <= width:
        return text
    end, left = 0, width - 1
    while (left := left - _cells(text[end])) >= 0:
        end += 1
    return text[:end] + "…"


def shorten_middle(text: str, width: int) -> str:
    """The text in at most ``width`` cells, both ends kept: what tells replicas apart stands last in their names."""
    if cells(text) <= width:
        return text
    start, left = len(text), (width - 1) // 2
    while start and (left := left - _cells(text[start - 1])) >= 0:
        start -= 1
    tail = text[start:]
    return shorten(text, width - cells(tail)) + tail


def pad(text: str, width: int, *, right: bool = False) -> str:
    """The text in exactly ``width`` cells: cut if it is longer, filled on one side if it is shorter."""
    text = shorten(text, width)
    space = " " * (width - cells(text))
    return space + text if right else text + space


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, whether its cells lean right, whether it may give way when room is short, or go.

    Of what is cut, ``ends`` keeps the end as well as the beginning.
    """

    heading: str
    right: bool = False
    shrinks: bool = False
    drops: bool = False
    ends: bool = False


_GAP: Final = "  "
_NARROWEST: Final = 8
_READABLE: Final = 16
"""Before a name has less than this, a column that may go does."""


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, paint: Paint) -> list[str]:
    """Lines of an aligned table that fits ``width`` where columns that shrink and drop can make it."""
    widths = [max(len(column.heading), *(cells(row[i]) for row in rows), 0) for i, column in enumerate(columns)]
    excess = sum(widths) + len(_GAP) * (len(columns) - 1) - width
    give = sum(max(0, widths[i] - _READABLE) for i, column in enumerate(columns) if column.shrinks)
    dropped = next((i for i, column in enumerate(columns) if column.drops), None)
    if excess > give and dropped is not None:
        kept = [i for i in range(len(columns)) if i != dropped]
        return table([columns[i] for i in kept], [[row[i] for i in kept] for row in rows], width, paint)
    while excess > 0:
        shrinkable = [i for i, column in enumerate(columns) if column.shrinks and widths[i] > _NARROWEST]
        if not shrinkable:
            break
        widest = max(shrinkable, key=lambda i: widths[i])
        widths[widest] -= 1
        excess -= 1
    heading = _row(columns, [column.heading for column in columns], widths)
    return [paint(heading, Style.DIM), *(_row(columns, row, widths) for row in rows)]


def _row(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        pad(shorten_middle(cell, width) if column.ends else cell, width, right=column.right)
        for column, cell, width in zip(columns, row, widths, strict=True)
    )
    return _GAP.join(padded).rstrip()
