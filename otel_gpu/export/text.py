"""Text for terminals: safe whatever a container calls itself, coloured only for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Style(StrEnum):
    """The few styles used, as SGR codes."""

    BOLD = "1"
    DIM = "2"
    RED = "31"
    GREEN = "32"
    YELLOW = "33"
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


def shorten(text: str, width: int) -> str:
    """The text in at most ``width`` characters, with the loss shown."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, whether its cells lean right, whether it may give way when room is short, or go."""

    heading: str
    right: bool = False
    shrinks: bool = False
    drops: bool = False


_GAP: Final = "  "
_NARROWEST: Final = 8


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, paint: Paint) -> list[str]:
    """Lines of an aligned table that fits ``width`` where columns that shrink and drop can make it."""
    widths = [max(len(column.heading), *(len(row[i]) for row in rows), 0) for i, column in enumerate(columns)]
    excess = sum(widths) + len(_GAP) * (len(columns) - 1) - width
    give = sum(max(0, widths[i] - _NARROWEST) for i, column in enumerate(columns) if column.shrinks)
    if excess > give and any(column.drops for column in columns):
        kept = [i for i, column in enumerate(columns) if not column.drops]
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


def _row(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        shorten(cell, width).rjust(width) if column.right else shorten(cell, width).ljust(width)
        for column, cell, width in zip(columns, cells, widths, strict=True)
    )
    return _GAP.join(padded).rstrip()
