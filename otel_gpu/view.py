"""The table on a terminal, kept current; elsewhere shown once, as soon as it is complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TextIO

from otel_gpu.export.table import render
from otel_gpu.export.table_figures import fit_for
from otel_gpu.export.text import Paint
from otel_gpu.model import Report
from otel_gpu.streams import write

_CLEAR_SCREEN: Final = "\x1b[2J"
_HOME: Final = "\x1b[H"
_CLEAR_REST_OF_LINE: Final = "\x1b[K"
_CLEAR_BELOW: Final = "\x1b[J"
_NO_WRAP: Final = "\x1b[?7l"
_WRAP: Final = "\x1b[?7h"


class View:
    """Shows answers on ``stream``: redrawn in place on a terminal; in a pipe or a log the first that is of a window.

    What comes before it is of a single sample, and has a dash for all that takes two: work, power, who is idle.

    ``size`` is asked each time, for columns and lines. ``notes`` stand on the terminal, whose earlier lines it erases.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        paint: Paint,
        size: Callable[[], tuple[int, int]],
        simulated: bool,
        notes: Sequence[str] = (),
        host_name: str | None = None,
    ) -> None:
        self._stream = stream
        self._paint = paint
        self._size = size
        self._simulated = simulated
        self._notes = notes
        self._host_name = host_name
        self._live = stream.isatty()
        self._shown = False

    def show(self, attribution: Report) -> None:
        """Show an answer."""
        width, height = self._size()
        if self._live:
            # One line stays free for the cursor: a line end on the last one would scroll the first one away.
            text = self._render(attribution, width, max(1, height - 1), self._notes)
            write(self._stream, _frame(text, first=not self._shown))
            self._shown = True
        elif attribution.window_s is not None and not self._shown:
            write(self._stream, self._render(attribution, width, None, ()))
            self._shown = True

    def close(self) -> None:
        """Leave the cursor on an empty line under the table, for the shell."""
        if self._live and self._shown:
            write(self._stream, f"\r{_CLEAR_REST_OF_LINE}")

    def _render(self, attribution: Report, width: int, height: int | None, notes: Sequence[str]) -> str:
        text = render(
            attribution,
            width=width,
            height=height,
            paint=self._paint,
            simulated=self._simulated,
            notes=notes,
            host_name=self._host_name,
        )
        return fit_for(self._stream.encoding, text)


def _frame(text: str, *, first: bool) -> str:
    """The text drawn over what was there, line by line: clearing first would flicker on a slow terminal.

    A line is cleared before it is written, because after it a line as wide as the terminal would lose its end.
    """
    start = _CLEAR_SCREEN + _HOME if first else _HOME
    lines = "".join(f"{_CLEAR_REST_OF_LINE}{line}\n" for line in text.splitlines())
    return f"{_NO_WRAP}{start}{lines}{_CLEAR_BELOW}{_WRAP}"
