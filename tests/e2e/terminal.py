"""A command in a pseudo-terminal, as over ssh: what it draws, what it is sent, and what it leaves behind."""

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
    """Make stdin the terminal of this session, for the kernel to send it signals."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    restore_hangup()


class TerminalSession:
    """A process whose terminal is ours to look at. ``modes`` are the terminal's, as they are now."""

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
        """The terminal's modes."""
        return termios.tcgetattr(self._slave)

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int) -> None:
        """Another size of the window; the kernel sends SIGWINCH. What is on its way for the old size comes first."""
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
        """Wait until the screen is so."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            while self._read(0):
                pass
            if condition(self.screen):
                return
            assert self.process.poll() is None, f"ended: {self.screen.raw[-2000:]}"
            assert time.monotonic() < deadline_s, f"waited in vain for {what}:\n{self.screen.text}"
            self._read(0.05)

    def until_blocked(self) -> None:
        """Wait, and read nothing, until no more has come for a while: there is no room on the way."""
        waiting, before = -1, 0
        while waiting != before or not waiting:
            before = waiting
            time.sleep(3.0)  # longer than a cycle
            (waiting,) = struct.unpack("i", fcntl.ioctl(self._master, termios.FIONREAD, b"\0" * 4))

    def shows(self, text: str) -> None:
        """Wait until this is somewhere on the screen."""
        self.until(lambda screen: text in screen.text, repr(text))

    def end(self, number: signal.Signals | None = None) -> int:
        """Wait for the end, after this signal if one is given; the exit code."""
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
        """Be gone."""
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@contextmanager
def terminal_session(
    *words: str, columns: int = 80, rows: int = 24, environment: Mapping[str, str] | None = None
) -> Iterator[TerminalSession]:
    """Run these words on a terminal of this size; killed at the end if it still runs."""
    extra = {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(environment or {})}
    session = TerminalSession(words, clean_environment(extra), columns, rows)
    try:
        yield session
    finally:
        session.close()
