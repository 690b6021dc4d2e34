"""Columns that fit a width: some shrink, and the least important are dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from otel_gpu.view.terminal import Paint, Style, cells, pad, shorten, shorten_middle

T = TypeVar("T")

GAP: Final = "  "


@dataclass(frozen=True, slots=True)
class ScreenColumn(Generic[T]):
    """A column of rows of ``T``. Columns with a higher ``rank`` are dropped first; rank 0 stays.

    ``least`` is its minimum width in cells, so that changing figures do not move other columns. A column that
    ``gives`` shrinks to that many cells. ``ends`` keeps both ends of a cut text. ``key`` is its key in the view.
    """

    heading: str
    text: Callable[[T], str]
    rank: int = 0
    least: int = 1
    gives: int | None = None
    right: bool = False
    key: str = ""
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Fitted(Generic[T]):
    """A column with its width in cells."""

    column: ScreenColumn[T]
    width: int

    def cell(self, text: str) -> str:
        """The text in that width."""
        kept = shorten_middle(text, self.width) if self.column.ends else text
        return pad(kept, self.width, right=self.column.right)


def fit(columns: Sequence[ScreenColumn[T]], rows: Sequence[T], width: int, keep: str = "") -> list[Fitted[T]]:
    """The columns that fit ``width`` cells. The column with the key ``keep`` is never dropped."""
    kept = list(columns)
    natural = {
        column.heading: min(width, max(cells(column.heading), column.least, *(cells(column.text(row)) for row in rows)))
        for column in columns
    }
    while True:
        least = sum(natural[c.heading] if c.gives is None else min(c.gives, natural[c.heading]) for c in kept)
        droppable = [column for column in kept if column.rank and not (keep and column.key == keep)]
        if least + len(GAP) * (len(kept) - 1) <= width or not droppable:
            break
        kept.remove(max(droppable, key=lambda column: column.rank))
    widths = [natural[column.heading] for column in kept]
    excess = sum(widths) + len(GAP) * (len(kept) - 1) - width
    while excess > 0:
        giving = [at for at, column in enumerate(kept) if column.gives is not None and widths[at] > column.gives]
        if not giving:
            break
        widths[max(giving, key=lambda at: widths[at])] -= 1
        excess -= 1
    return [Fitted(column, found) for column, found in zip(kept, widths, strict=True)]


def row(fitted: Sequence[Fitted[T]], texts: Sequence[str]) -> str:
    """The cells of one line."""
    return GAP.join(each.cell(text) for each, text in zip(fitted, texts, strict=True))


@dataclass(frozen=True, slots=True)
class Piece:
    """Text in one style, part of a line."""

    text: str
    styles: tuple[Style, ...] = ()


@dataclass(frozen=True, slots=True)
class Canvas:
    """The area to draw on, in cells and lines, with colours or without."""

    columns: int
    rows: int
    paint: Paint

    def line(self, *pieces: Piece, over: tuple[Style, ...] = ()) -> str:
        """The pieces as one line that fits. ``over`` replaces their own styles."""
        if over:
            text = "".join(piece.text for piece in pieces)
            fitted = pad(text, self.columns) if Style.REVERSE in over else shorten(text, self.columns)
            return self.paint(fitted, *over)
        painted, left = "", self.columns
        for piece in pieces:
            text = shorten(piece.text, left) if left else ""
            painted += self.paint(text, *piece.styles) if text else ""
            left -= cells(text)
        return painted
