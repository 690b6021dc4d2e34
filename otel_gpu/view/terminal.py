"""Text for terminals: columns by display width, tones and colours, and no control characters from names."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from otel_gpu.bounded_io import printable as printable  # noqa: PLC0414 - exported for what draws text

_IN_ASCII: Final = str.maketrans(
    {"█": "#", "▒": "%", "░": "?", "·": ".", "–": "-", "≈": "*", "…": ">", "└": "`", "°": "'"}
    | {"↓": "v", "↑": "^"}
    | dict(zip("▁▂▃▄▅▆▇", "_.-=+*o", strict=True))
)


class Style(StrEnum):
    """Styles, as SGR codes."""

    BOLD = "1"
    DIM = "2"
    REVERSE = "7"
    RED = "31"
    GREEN = "32"
    YELLOW = "33"
    BLUE = "34"
    MAGENTA = "35"
    CYAN = "36"
    BRIGHT_GREEN = "92"
    BRIGHT_BLUE = "94"
    BRIGHT_MAGENTA = "95"


class Tone(StrEnum):
    """How a state or problem is coloured, here and by the style sheet of the page."""

    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    SOFT = "soft"
    NONE = "none"


TONE_STYLES: Final[Mapping[Tone, tuple[Style, ...]]] = {
    Tone.GOOD: (Style.GREEN,),
    Tone.WARN: (Style.YELLOW,),
    Tone.BAD: (Style.RED,),
    Tone.SOFT: (Style.DIM,),
    Tone.NONE: (),
}
"""The colours of a terminal."""


class Paint:
    """Adds colour if enabled."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    def __call__(self, text: str, *styles: Style) -> str:
        """The text in these styles."""
        if not self._enabled or not styles:
            return text
        return f"\x1b[{';'.join(styles)}m{text}\x1b[0m"


def cells(text: str) -> int:
    """The width of the text in terminal cells."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(character: str) -> int:
    """2 for wide characters (UAX #11), 0 for combining marks, else 1."""
    if unicodedata.category(character) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def shorten(text: str, width: int) -> str:
    """The text in at most ``width`` cells; an ellipsis marks the cut."""
    if cells(text) <= width:
        return text
    end, left = 0, width - 1
    while (left := left - _cells(text[end])) >= 0:
        end += 1
    return text[:end] + "…"


def shorten_middle(text: str, width: int) -> str:
    """The text in at most ``width`` cells, both ends kept: the names of replicas differ at the end."""
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
class TextColumn:
    """A column of a table. ``right`` aligns its cells to the right.

    Where the table is too wide, columns with ``shrinks`` are cut and one with ``drops`` is left out. ``ends`` keeps the
    end of a cut cell as well as the beginning.
    """

    heading: str
    right: bool = False
    shrinks: bool = False
    drops: bool = False
    ends: bool = False


_GAP: Final = "  "
_NARROWEST: Final = 8
_READABLE: Final = 16
"""A column with ``drops`` is left out before a shrinking column gets narrower than this."""


def table(columns: Sequence[TextColumn], rows: Sequence[Sequence[str]], width: int, paint: Paint) -> list[str]:
    """Lines of an aligned table. It fits ``width`` unless no further column can shrink or drop."""
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


def _row(columns: Sequence[TextColumn], row: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        pad(shorten_middle(cell, width) if column.ends else cell, width, right=column.right)
        for column, cell, width in zip(columns, row, widths, strict=True)
    )
    return _GAP.join(padded).rstrip()


# ---------------------------------------------------------------------------- ASCII terminals


def in_ascii(text: str) -> str:
    """The text in ASCII: our marks as ASCII marks, other characters as ``?`` in as many cells."""
    if text.isascii():
        return text
    translated = text.translate(_IN_ASCII)
    return "".join(character if character.isascii() else "?" * cells(character) for character in translated)


def encodable(encoding: str | None, text: str) -> str:
    """The text as a terminal or pipe of this encoding shows it."""
    return text if (encoding or "utf-8").lower().replace("-", "").replace("_", "") == "utf8" else in_ascii(text)
