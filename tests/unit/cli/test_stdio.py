from __future__ import annotations

import errno
import io
import sys

import pytest

from otel_gpu.cli.stdio import write, write_stderr
from otel_gpu.errors import Unavailable


class Failing(io.StringIO):
    """A stream that cannot be written, and why."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._failure = error

    def flush(self) -> None:
        raise self._failure


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("encoding", "expected"), [("utf-8", "█ é ?".encode()), ("latin-1", b"? \xe9 ?"), ("ascii", b"? ? ?")]
)
def test_characters_that_the_stream_cannot_encode_are_replaced(encoding: str, expected: bytes) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict")
    write(stream, "█ é \ud800")
    assert raw.getvalue() == expected  # and it is there at once: nothing is left in a buffer


def test_a_full_disk_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"^cannot write to standard output: No space left on device$"):
        write(Failing(FULL), "text")


def test_a_closed_pipe_is_a_broken_pipe_error() -> None:
    with pytest.raises(BrokenPipeError):
        write(Failing(BrokenPipeError(errno.EPIPE, "Broken pipe")), "text")


@pytest.mark.parametrize("error", [FULL, BrokenPipeError(errno.EPIPE, "Broken pipe")], ids=["full", "gone"])
def test_a_message_that_cannot_be_written_raises_nothing(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Failing(error)
    monkeypatch.setattr(sys, "stderr", stream)
    write_stderr("by the way\n")
    assert stream.getvalue() == "by the way\n"
