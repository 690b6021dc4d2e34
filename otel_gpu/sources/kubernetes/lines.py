"""Lines out of a stream that is cut anywhere, within bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

LONGEST_LINE_BYTES: Final = 4 << 20
"""An event is a pod, and etcd takes no object over 1.5 MiB; JSON may be twice as long as what is stored."""


class Lines:
    """Collects bytes until a line is whole. One that is too long is dropped as it comes."""

    def __init__(self, longest_bytes: int = LONGEST_LINE_BYTES) -> None:
        self._longest_bytes = longest_bytes
        self._begun: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[bytes | None]:
        """The lines that end in this chunk, without their ends and without empty ones; ``None`` for one too long."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._add(end)
            if self._size > self._longest_bytes:
                yield None
            elif line := b"".join(self._begun).strip():
                yield line
            self._begun, self._size = [], 0
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._longest_bytes:
            self._begun = []
        elif part:
            self._begun.append(part)
