"""A command in a pseudo-terminal: its screen, its input, and the terminal's modes."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tests.cli import clean_environment, restore_hangup
from tests.unit.top.emulator import Emulator

PATIENCE_S: Final = 60.0
_QUIET_S: Final = 0.2


def _take_terminal() -> None:
    """Make stdin the controlling terminal: the kernel sends signals only from that."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    restore_hangup()


class TerminalSession:
    """A process in a pseudo-terminal, whose screen a test can read."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], columns: int, rows: int) -> None:
        self._master, self._slave = os.openpty()
        self.screen = Emulator(columns, rows)
        self._set_size(columns, rows)
        self.modes_before = self.modes
        self.process = subprocess.Popen(
            words,
            env=environment,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509
        )

    @property
    def modes(self) -> list[Any]:
        """The terminal's present modes."""
        return termios.tcgetattr(self._slave)

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int) -> None:
        """Resize the window after reading all output for the old size; the kernel sends SIGWINCH."""
        while self._read(_QUIET_S):
            pass
        self.screen.resize(columns, rows)
        self._set_size(columns, rows)

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._master, keys.encode("utf-8"))

    def _read(self, timeout_s: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], timeout_s)
        if ready:
            self.screen.feed(os.read(self._master, 1 << 16))
        return bool(ready)

    def until(self, condition: Callable[[Emulator], bool], what: str = "") -> None:
        """Wait until the screen satisfies a condition."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            while self._read(0):
                pass
            if condition(self.screen):
                return
            assert self.process.poll() is None, f"ended: {self.screen.raw[-2000:]}"
            assert time.monotonic() < deadline_s, f"timeout: {what}\n{self.screen.text}"
            self._read(0.05)

    def until_blocked(self) -> None:
        """Wait without reading until the terminal's buffer is full, that is, until no more output arrives."""
        waiting, before = -1, 0
        while waiting != before or not waiting:
            before = waiting
            time.sleep(3.0)  # longer than a cycle
            (waiting,) = struct.unpack("i", fcntl.ioctl(self._master, termios.FIONREAD, b"\0" * 4))

    def shows(self, text: str) -> None:
        """Wait until a text is on the screen."""
        self.until(lambda screen: text in screen.text, repr(text))

    def end(self, number: signal.Signals | None = None) -> int:
        """Send a signal if one is given, wait for the end, and return the exit code."""
        if number is not None:
            self.process.send_signal(number)
        deadline_s = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline_s, f"does not end:\n{self.screen.text}"
            self._read(0.02)
        while self._read(0):
            pass
        return self.process.returncode

    def close(self) -> None:
        """Kill the process and close the terminal."""
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@contextmanager
def terminal_session(
    *words: str, columns: int = 80, rows: int = 24, environment: Mapping[str, str] | None = None
) -> Iterator[TerminalSession]:
    """Run a command in a terminal of this size; it is killed at the end."""
    extra = {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(environment or {})}
    session = TerminalSession(words, clean_environment(extra), columns, rows)
    try:
        yield session
    finally:
        session.close()
