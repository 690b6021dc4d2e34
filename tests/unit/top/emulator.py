"""What a terminal makes of the few sequences that ``top`` sends; anything else fails the test."""

from __future__ import annotations

import codecs
import re
from typing import Final

from otel_gpu.view.terminal import cells

_TOKEN: Final = re.compile(r"\x1b\[\??[0-9;]*[A-Za-z]|\x1b|.", re.DOTALL)
_POSITION: Final = re.compile(r"\x1b\[(\d+);(\d+)H")
_STYLE: Final = re.compile(r"\x1b\[[0-9;]+m")
_PART: Final = re.compile(r"\x1b(?:\[\??[0-9;]*)?\Z")


class Emulator:
    """A screen of cells, on which nothing wraps and nothing scrolls unseen."""

    def __init__(self, columns: int, rows: int) -> None:
        self.alternate, self.cursor, self.wraps = False, True, True
        self.style = ""
        self.raw = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._rest = ""
        self.resize(columns, rows)

    def resize(self, columns: int, rows: int) -> None:
        """A window of another size; what was shown is gone."""
        self.columns, self.rows = columns, rows
        self._clear()

    def _clear(self) -> None:
        self._cells = [[" "] * self.columns for _ in range(self.rows)]
        self._styles = [[""] * self.columns for _ in range(self.rows)]
        self._row = self._column = 0

    @property
    def lines(self) -> list[str]:
        """What stands on each line."""
        return ["".join(row).rstrip() for row in self._cells]

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines)

    def styles_of(self, row: int) -> set[str]:
        """The styles of what stands on a line."""
        return {style for cell, style in zip(self._cells[row], self._styles[row], strict=True) if cell.strip()}

    def feed(self, data: bytes) -> None:
        """Take what was sent, however it is cut into pieces."""
        text = self._rest + self._decoder.decode(data)
        self.raw += text[len(self._rest) :]
        cut = _PART.search(text)
        self._rest = "" if cut is None else cut[0]
        for token in _TOKEN.findall(text[: len(text) - len(self._rest)]):
            self._take(token)

    def _take(self, token: str) -> None:
        position = _POSITION.fullmatch(token)
        if position is not None:
            self._row, self._column = int(position[1]) - 1, int(position[2]) - 1
            return
        if _STYLE.fullmatch(token):
            self.style = "" if token == "\x1b[0m" else token
            return
        match token:
            case "\x1b[?1049h" | "\x1b[?1049l":
                self.alternate = token.endswith("h")
                self._clear()
            case "\x1b[?25h" | "\x1b[?25l":
                self.cursor = token.endswith("h")
            case "\x1b[?7h" | "\x1b[?7l":
                self.wraps = token.endswith("h")
            case "\x1b[2J":
                self._clear()
            case "\x1b[K":
                self._cells[self._row][self._column :] = [" "] * (self.columns - self._column)
            case _:
                self._put(token)

    def _put(self, character: str) -> None:
        if not self.alternate:
            assert character.isprintable() or character in "\r\n", f"sent to the shell's screen: {character!r}"
            return
        assert character.isprintable(), f"not understood: {character!r}"
        width = cells(character)
        assert self._row < self.rows, f"drawn under the screen: {character!r}"
        assert self._column + width <= self.columns, f"drawn beside the screen: {self.lines[self._row]}{character}"
        if width:
            self._cells[self._row][self._column : self._column + width] = [character, *[""] * (width - 1)]
            self._styles[self._row][self._column : self._column + width] = [self.style] * width
            self._column += width
