"""The table on a terminal, kept current; elsewhere shown once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TextIO

from otel_gpu.export.table import render
from otel_gpu.export.text import Paint
from otel_gpu.model import Attribution

_HOME: Final = "\x1b[H"
_CLEAR_REST_OF_LINE: Final = "\x1b[K"
_CLEAR_BELOW: Final = "\x1b[J"
_CLEAR_SCREEN: Final = "\x1b[2J"


class View:
    """Shows answers on ``stream``: redrawn in place on a terminal, the first one only in a pipe or a log."""

    def __init__(self, stream: TextIO, *, paint: Paint, width: Callable[[], int], simulated: bool) -> None:
        self._stream = stream
        self._paint = paint
        self._width = width
        self._simulated = simulated
        self._live = stream.isatty()
        self._shown = False

    def show(self, attribution: Attribution) -> None:
        """Show an answer."""
        if self._shown and not self._live:
            return
        text = render(attribution, width=self._width(), paint=self._paint, simulated=self._simulated)
        if self._live:
            # Overwriting line by line instead of clearing first keeps a slow terminal from flickering.
            text = text.replace("\n", f"{_CLEAR_REST_OF_LINE}\n")
            text = f"{_HOME if self._shown else _CLEAR_SCREEN + _HOME}{text}{_CLEAR_BELOW}"
        write(self._stream, text)
        self._shown = True


def write(stream: TextIO, text: str) -> None:
    """Write at once, with what the stream's encoding cannot show replaced rather than fatal."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()
