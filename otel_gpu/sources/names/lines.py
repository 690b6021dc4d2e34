"""Split a byte stream into lines within bounded memory."""

from __future__ import annotations

from collections.abc import Iterator


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
