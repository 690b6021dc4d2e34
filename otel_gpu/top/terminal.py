"""The terminal while it is drawn on: another screen, no echo, no cursor; and as it was before, whatever happens."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final

from otel_gpu.errors import UsageError
from otel_gpu.export.table_figures import fit_for

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""Another screen, no cursor, no wrapping (xterm's private modes, which every terminal of today has)."""

_LEAVE: Final = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_READ_BYTES: Final = 4096
_STALLED_S: Final = 0.5
"""A terminal that takes nothing for so long (a network that hangs) does not keep anybody from ending this."""


class Terminal:
    """Draws lines and reads keys. ``ended``: a signal said so, or nobody is there any more."""

    def __init__(self, input_fd: int, output_fd: int, encoding: str) -> None:
        self._in, self._out, self._encoding = input_fd, _unblocked(output_fd), encoding
        self._before: list[Any] | None = None
        self._drawn: list[str] = []
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._closing = threading.Lock()
        self._closed = False
        self.ended = False
        self._to_stop = self._to_redraw = False

    @contextlib.contextmanager
    def open(self) -> Iterator[Terminal]:
        """In use; afterwards, however that ended, the terminal is as it was."""
        ours = {
            **dict.fromkeys(_ENDING, self._on_end),
            signal.SIGTSTP: self._on_stop,
            signal.SIGCONT: self._on_redraw,
            signal.SIGWINCH: self._on_redraw,
        }
        handlers = {number: signal.signal(number, handler) for number, handler in ours.items()}
        try:
            self._enter()
            yield self
        finally:
            self._leave()
            for number, handler in handlers.items():
                signal.signal(number, handler)
            with self._closing:
                self._closed = True
                for fd in (self._woken, self._waker, self._out):
                    os.close(fd)

    def wake(self) -> None:
        """End the wait. Any thread may call this; nothing happens once the terminal is closed."""
        with self._closing, contextlib.suppress(BlockingIOError):  # full: it is awake already
            if not self._closed:
                os.write(self._waker, b"\0")

    def size(self) -> tuple[int, int]:
        """Columns and lines, now; what a terminal has of old where it does not tell."""
        try:
            columns, lines = os.get_terminal_size(self._out)
        except OSError:
            columns, lines = 0, 0
        return columns or 80, lines or 24

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines: those that changed are written, so that a slow line has little to carry."""
        if self._to_redraw:
            self._to_redraw = False
            self._enter()
        lines = [fit_for(self._encoding, line) for line in lines]
        before = self._drawn + [""] * (len(lines) - len(self._drawn))
        after = [*lines, *[""] * (len(before) - len(lines))]
        # A line is cleared before it is written: after it, one as wide as the terminal would lose its end.
        text = "".join(
            f"\x1b[{number};1H\x1b[K{new}"
            for number, (old, new) in enumerate(zip(before, after, strict=True), 1)
            if new != old
        )
        self._drawn = lines
        self._write(text)

    def redraw(self) -> None:
        """Draw all of it next time, whatever became of the screen."""
        self._to_redraw = True

    def read(self, timeout_s: float) -> bytes:
        """What was typed within this time; nothing, sooner, where somebody or something wakes it."""
        ready, _, _ = select.select([self._in, self._woken], [], [], timeout_s)
        if self._woken in ready:
            self._drain()
        if self._to_stop:
            self._stop()
        if self._in not in ready:
            return b""
        try:
            typed = os.read(self._in, _READ_BYTES)
        except OSError:  # the terminal has gone
            typed = b""
        self.ended = self.ended or not typed
        return typed

    # -- modes ----------------------------------------------------------------------

    def _enter(self) -> None:
        if self._before is None:
            self._before = termios.tcgetattr(self._in)
        modes = termios.tcgetattr(self._in)
        # No line at a time, no echo, and ^S is a key; ^C and ^Z stay signals.
        modes[0] &= ~(termios.IXON | termios.ICRNL | termios.INLCR)
        modes[3] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
        modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._in, termios.TCSANOW, modes)
        self._drawn = []
        self._write(_ENTER)

    def _leave(self) -> None:
        if self._before is None:
            return
        self._write(_LEAVE)
        with contextlib.suppress(termios.error):  # it has gone: there is nothing to restore
            termios.tcsetattr(self._in, termios.TCSANOW, self._before)
        self._before = None

    def _stop(self) -> None:
        """^Z: give the terminal back, stop as anybody would, and take it again when told to go on."""
        self._to_stop = False
        self._leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._on_stop)
        self._to_redraw = True

    def _write(self, text: str) -> None:
        """Write all of it, for as long as that takes, unless an end is wanted meanwhile."""
        data = text.encode("utf-8", "replace")
        while data:
            try:
                data = data[os.write(self._out, data) :]
            except BlockingIOError:
                _, writable, _ = select.select([], [self._out], [], _STALLED_S)
                if not writable and self.ended:
                    return
            except OSError:
                self.ended = True  # there is nobody left to draw for
                return

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._woken, _READ_BYTES):
                pass

    # -- signals: they note something and wake whoever waits ------------------------

    def _on_end(self, _number: int, _frame: FrameType | None) -> None:
        self.ended = True
        self.wake()

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._to_stop = True
        self.wake()

    def _on_redraw(self, _number: int, _frame: FrameType | None) -> None:
        self._to_redraw = True
        self.wake()


def _unblocked(fd: int) -> int:
    """The same terminal, opened anew: to make ``fd`` itself not block would do so for the shell that shares it."""
    try:
        return os.open(os.ttyname(fd), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # its name means nothing in this container
        return os.dup(fd)


def terminal(environment: Mapping[str, str]) -> Terminal:
    """This process's terminal. UsageError where there is none, or none that can be drawn on."""
    if not sys.stdout.isatty():
        raise UsageError("top draws on a terminal, and standard output is none; otel-gpu once prints the same, once")
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("top takes keys from a terminal, and standard input is none; otel-gpu once needs no keys")
    if environment.get("TERM") == "dumb":
        raise UsageError("top cannot draw on this terminal (TERM is 'dumb'); otel-gpu once prints the same, once")
    return Terminal(sys.stdin.fileno(), sys.stdout.fileno(), sys.stdout.encoding)
