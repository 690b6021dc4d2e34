"""Bounded reads of what the agent did not write: files, answers of servers, JSON, lines of a stream, text.

Each document has a limit of bytes. A stream may have a deadline as well: the timeout of a socket is that of one read,
and a server that sends a byte from time to time would never reach it.
"""

from __future__ import annotations

import errno
import io
import json
import os
import select
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import socket

    from _typeshed import WriteableBuffer

MAX_PEM_BYTES: Final = 1 << 20
"""Largest file of certificates or keys. The authorities of a system take a fifth of that."""


class TooLarge(ValueError):
    """The document is larger than its limit."""

    def __init__(self, max_bytes: int) -> None:
        size = f"{max_bytes >> 20} MiB" if max_bytes >= 1 << 20 else f"{max_bytes:,} bytes"
        super().__init__(f"over {size}")


class Deadline:
    """The end of an exchange of several reads and writes. ``now_ns`` is a monotonic clock."""

    def __init__(self, timeout_s: float, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._end_ns = now_ns() + round(timeout_s * 1e9)

    def left_s(self) -> float:
        """The time left, for the timeout of a socket. Raises TimeoutError if there is none."""
        left_ns = self._end_ns - self._now_ns()
        if left_ns <= 0:
            raise TimeoutError("timed out")
        return left_ns / 1e9


class DeadlineReader(io.RawIOBase):
    """Reads a connection until its deadline, and raises TimeoutError after that. ``deadline`` may be replaced.

    Without a deadline each read has the timeout of the socket. ``max_bytes`` limits everything that is read, also what
    a client reads without a limit of its own, such as the size of a chunk: TooLarge. ``allow_more`` starts again.
    """

    def __init__(
        self, inner: io.RawIOBase, connection: socket.socket, deadline: Deadline, max_bytes: int | None = None
    ) -> None:
        self._inner = inner
        self._sock = connection  # the Docker SDK looks for this name in order to shut the connection down
        self.deadline: Deadline | None = deadline
        self._max_bytes = max_bytes
        self._read_bytes = 0

    def allow_more(self) -> None:
        """Count from zero again."""
        self._read_bytes = 0

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        """Read what has arrived, or wait for it until the deadline."""
        if self.deadline is not None:
            self._sock.settimeout(self.deadline.left_s())
        size = self._inner.readinto(buffer)
        self._read_bytes += size or 0
        if self._max_bytes is not None and self._read_bytes > self._max_bytes:
            raise TooLarge(self._max_bytes)
        return size

    def close(self) -> None:
        """Close the inner file."""
        self._inner.close()
        super().close()


def read_file(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file. Raises OSError, TooLarge, and ValueError for an invalid path.

    A pipe or device is an OSError and is not opened: to open a named pipe waits for a writer.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise TooLarge(max_bytes)
    return content


def read_file_or_pipe(path: Path, max_bytes: int, timeout_s: float) -> bytes:
    """The content of a file. For a pipe or device, reads to end of file.

    Raises TimeoutError if a pipe has no end in time, OSError, TooLarge, and ValueError for an invalid path.
    """
    mode = path.stat().st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return read_file(path, max_bytes)
    deadline = Deadline(timeout_s)
    # Opened without O_NONBLOCK, a named pipe waits for a writer.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as pipe:  # noqa: PTH123
        return read_all(_chunks(pipe, deadline), max_bytes)


def _chunks(pipe: io.FileIO, deadline: Deadline) -> Iterator[bytes]:
    """What is read from a pipe until its end. A named pipe that no process has opened yet has no end."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while True:
        is_readable = poll.poll(deadline.left_s() * 1e3)
        chunk = pipe.read(1 << 16) if is_readable else None
        if chunk == b"":
            return
        if chunk is not None:
            yield chunk


def read_all(chunks: Iterable[bytes], max_bytes: int) -> bytes:
    """The chunks of a stream joined. Raises TooLarge, and then reads no further."""
    content = read_beginning(chunks, max_bytes + 1)
    if len(content) > max_bytes:
        raise TooLarge(max_bytes)
    return content


def read_beginning(chunks: Iterable[bytes], max_bytes: int) -> bytes:
    """The chunks of a stream joined, at most this many bytes of them."""
    parts: list[bytes] = []
    left_bytes = max_bytes
    for chunk in chunks:
        parts.append(chunk[:left_bytes])
        left_bytes -= len(chunk)
        if left_bytes <= 0:
            break
    return b"".join(parts)


def parse_json(document: bytes | str) -> object:
    """A JSON document. Raises ValueError for anything else, however deeply it is nested."""
    try:
        parsed: object = json.loads(document)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return parsed


class LineSplitter:
    """Collects chunks until a line is complete. A line longer than ``max_bytes`` is dropped while it arrives."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[bytes | None]:
        """The lines that end in this chunk, stripped, without empty ones; ``None`` for each line that is too long."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._add(end)
            if self._size > self._max_bytes:
                yield None
            elif line := b"".join(self._parts).strip():
                yield line
            self._parts, self._size = [], 0
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._max_bytes:
            self._parts = []
        elif part:
            self._parts.append(part)


# ---------------------------------------------------------------------------- text


def printable(text: str) -> str:
    """The text with everything that a terminal may act on replaced: control characters, bidi marks, lone surrogates."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def one_line(text: str, max_chars: int = 200) -> str:
    """The beginning of the text on one line, printable: for a reason, an error or a log line."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= max_chars else f"{line[:max_chars]}…"
