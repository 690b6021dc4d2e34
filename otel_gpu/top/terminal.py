"""The terminal: keys as it sends them, and its modes while ``top`` draws. The modes are restored in every case."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import select
import signal
import sys
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final

from otel_gpu.errors import UsageError
from otel_gpu.view.terminal import encodable

# ---------------------------------------------------------------------------- keys

# Control sequences of ECMA-48, as xterm sends them.
UP, DOWN, PAGE_UP, PAGE_DOWN, FIRST, LAST = "up", "down", "page-up", "page-down", "first", "last"
ENTER, ESCAPE, BACKSPACE, CLEAR_LINE, REDRAW = "enter", "escape", "backspace", "clear-line", "redraw"

_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[ -~])")
_BEGUN: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?")
_LONGEST: Final = 32
"""No key sends more; a longer sequence is noise."""

_NAMED: Final = {
    "\x1b[A": UP, "\x1bOA": UP, "\x1b[B": DOWN, "\x1bOB": DOWN,
    "\x1b[5~": PAGE_UP, "\x1b[6~": PAGE_DOWN,
    "\x1b[H": FIRST, "\x1bOH": FIRST, "\x1b[1~": FIRST, "\x1b[7~": FIRST,
    "\x1b[F": LAST, "\x1bOF": LAST, "\x1b[4~": LAST, "\x1b[8~": LAST,
    "\r": ENTER, "\n": ENTER, "\x1bOM": ENTER,
    "\x7f": BACKSPACE, "\x08": BACKSPACE, "\x15": CLEAR_LINE, "\x0c": REDRAW,
    "\x02": PAGE_UP, "\x06": PAGE_DOWN,
}  # fmt: skip


class Keys:
    """Turns bytes into keys: a name for special keys, else the character. Unknown sequences are dropped."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    @property
    def waiting(self) -> bool:
        """Whether the input so far is the escape key or the beginning of a sequence."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[str]:
        """The keys that these bytes complete."""
        text = self._rest + self._decoder.decode(data)
        self._rest = ""
        keys: list[str] = []
        while text:
            found = _SEQUENCE.match(text)
            if found is not None:
                keys += [_NAMED[found[0]]] if found[0] in _NAMED else []
                text = text[found.end() :]
            elif (begun := _BEGUN.match(text)) is not None and begun.end() == len(text) <= _LONGEST:
                self._rest, text = text, ""
            elif text[0] == "\x1b":
                keys.append(ESCAPE)
                text = text[1:]
            else:
                keys += _plain(text[0])
                text = text[1:]
        return keys

    def flush(self) -> list[str]:
        """The escape key, if that is all of the input; an incomplete sequence is dropped."""
        rest, self._rest = self._rest, ""
        return [ESCAPE] if rest == "\x1b" else []


def _plain(character: str) -> list[str]:
    name = _NAMED.get(character)
    if name is not None:
        return [name]
    return [character] if character.isprintable() else []


# ---------------------------------------------------------------------------- the terminal

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""Alternate screen, no cursor, no wrapping: private modes of xterm that every terminal supports."""

_LEAVE: Final = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_READ_BYTES: Final = 4096
_STALLED_S: Final = 0.5
"""After so long without progress (a network that hangs) a write gives up if ``top`` is to end."""


class Terminal:
    """Draws lines and reads keys. ``ended``: a signal asked to end, or the terminal is gone."""

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
        """Use the terminal; afterwards it is restored."""
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
        """End the wait in ``read``. Any thread may call this, also after the terminal is closed."""
        with self._closing, contextlib.suppress(BlockingIOError):  # full: it is awake already
            if not self._closed:
                os.write(self._waker, b"\0")

    def size(self) -> tuple[int, int]:
        """Columns and lines; 80 and 24 if unknown."""
        try:
            columns, lines = os.get_terminal_size(self._out)
        except OSError:
            columns, lines = 0, 0
        return columns or 80, lines or 24

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines. Only changed lines are written, which suits slow connections."""
        if self._to_redraw:
            self._to_redraw = False
            self._enter()
        lines = [encodable(self._encoding, line) for line in lines]
        before = self._drawn + [""] * (len(lines) - len(self._drawn))
        after = [*lines, *[""] * (len(before) - len(lines))]
        # A line is cleared before it is written; clearing after it would cut a line as wide as the terminal.
        text = "".join(
            f"\x1b[{number};1H\x1b[K{new}"
            for number, (old, new) in enumerate(zip(before, after, strict=True), 1)
            if new != old
        )
        self._drawn = lines
        self._write(text)

    def redraw(self) -> None:
        """Draw everything next time."""
        self._to_redraw = True

    def read(self, timeout_s: float) -> bytes:
        """The input within this time; empty, and sooner, after ``wake`` or a signal."""
        ready, _, _ = select.select([self._in, self._woken], [], [], timeout_s)
        if self._woken in ready:
            self._drain()
        if self._to_stop:
            self._stop()
        if self._in not in ready:
            return b""
        try:
            typed = os.read(self._in, _READ_BYTES)
        except OSError:  # the terminal is gone
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
        with contextlib.suppress(termios.error):  # it is gone: there is nothing to restore
            termios.tcsetattr(self._in, termios.TCSANOW, self._before)
        self._before = None

    def _stop(self) -> None:
        """^Z: restore the terminal, stop, and take the terminal again on SIGCONT."""
        self._to_stop = False
        self._leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._on_stop)
        self._to_redraw = True

    def _write(self, text: str) -> None:
        """Write everything, for as long as that takes, unless ``top`` is to end."""
        data = text.encode("utf-8", "replace")
        while data:
            try:
                data = data[os.write(self._out, data) :]
            except BlockingIOError:
                _, writable, _ = select.select([], [self._out], [], _STALLED_S)
                if not writable and self.ended:
                    return
            except OSError:
                self.ended = True  # the terminal is gone
                return

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._woken, _READ_BYTES):
                pass

    # -- signals set a flag and end the wait ----------------------------------------

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
    """The same terminal, opened again: making ``fd`` itself non-blocking would affect the shell that shares it."""
    try:
        return os.open(os.ttyname(fd), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # its name does not exist in this container
        return os.dup(fd)


def terminal(environment: Mapping[str, str]) -> Terminal:
    """This process's terminal. UsageError if there is none, or it cannot be drawn on."""
    if not sys.stdout.isatty():
        raise UsageError("top needs a terminal, and standard output is not one; otel-gpu once prints the same figures")
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("top reads keys from a terminal, and standard input is not one; otel-gpu once needs no keys")
    if environment.get("TERM") == "dumb":
        raise UsageError("top cannot draw on this terminal (TERM is 'dumb'); otel-gpu once prints the same figures")
    return Terminal(sys.stdin.fileno(), sys.stdout.fileno(), sys.stdout.encoding)
