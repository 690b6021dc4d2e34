"""The table of ``run`` and ``demo``: redrawn in place on a terminal, printed once elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TextIO

from otel_gpu.export.table import render
from otel_gpu.model import Report
from otel_gpu.view.model import View
from otel_gpu.view.terminal import Paint, encodable

_CLEAR_SCREEN: Final = "\x1b[2J"
_HOME: Final = "\x1b[H"
_CLEAR_REST_OF_LINE: Final = "\x1b[K"
_CLEAR_BELOW: Final = "\x1b[J"
_NO_WRAP: Final = "\x1b[?7l"
_WRAP: Final = "\x1b[?7h"


class LiveTable:
    """Shows reports on ``stream``. A terminal is redrawn for each report; a pipe or log gets one table.

    In a pipe or log that is the first report with a window: one of a single sample has no work, power or idle state.
    ``size`` returns columns and lines, ``view_of`` the view of a report; both are called for each report. ``notes`` are
    part of the table on a terminal. ``write`` writes to the stream.
    """

    def __init__(
        self,
        stream: TextIO,
        write: Callable[[TextIO, str], None],
        *,
        paint: Paint,
        size: Callable[[], tuple[int, int]],
        view_of: Callable[[Report], View],
        notes: Sequence[str] = (),
    ) -> None:
        self._stream = stream
        self._write = write
        self._paint = paint
        self._size = size
        self._view_of = view_of
        self._notes = notes
        self._live = stream.isatty()
        self._shown = False

    def show(self, report: Report) -> None:
        """Show a report."""
        width, height = self._size()
        if self._live:
            # One line stays free for the cursor: a line end on the last line would scroll the first one away.
            text = self._render(report, width, max(1, height - 1), self._notes)
            self._write(self._stream, _frame(text, first=not self._shown))
            self._shown = True
        elif report.window_s is not None and not self._shown:
            self._write(self._stream, self._render(report, width, None, ()))
            self._shown = True

    def close(self) -> None:
        """Leave the cursor on an empty line under the table, for the shell."""
        if self._live and self._shown:
            self._write(self._stream, f"\r{_CLEAR_REST_OF_LINE}")

    def _render(self, report: Report, width: int, height: int | None, notes: Sequence[str]) -> str:
        text = render(report, self._view_of(report), width=width, height=height, paint=self._paint, notes=notes)
        return encodable(self._stream.encoding, text)


def _frame(text: str, *, first: bool) -> str:
    """The text over the previous frame, line by line: clearing the screen first would flicker on a slow terminal.

    Each line is cleared before it is written; clearing after it would cut the last cell of a line as wide as the
    terminal.
    """
    start = _CLEAR_SCREEN + _HOME if first else _HOME
    lines = "".join(f"{_CLEAR_REST_OF_LINE}{line}\n" for line in text.splitlines())
    return f"{_NO_WRAP}{start}{lines}{_CLEAR_BELOW}{_WRAP}"
