from __future__ import annotations

import errno
import io
import sys

import pytest

from otel_gpu.errors import Unavailable
from otel_gpu.streams import say, write


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
def test_what_the_stream_cannot_show_is_replaced_and_not_fatal(encoding: str, expected: bytes) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict")
    write(stream, "█ é \ud800")
    assert raw.getvalue() == expected  # and it is there at once: nothing is left in a buffer


def test_a_full_disk_is_told_in_plain_words() -> None:
    with pytest.raises(Unavailable, match=r"^cannot write to standard output: No space left on device$"):
        write(Failing(FULL), "text")


def test_a_reader_that_has_gone_is_told_apart() -> None:
    with pytest.raises(BrokenPipeError):
        write(Failing(BrokenPipeError(errno.EPIPE, "Broken pipe")), "text")


@pytest.mark.parametrize("error", [FULL, BrokenPipeError(errno.EPIPE, "Broken pipe")], ids=["full", "gone"])
def test_a_remark_that_cannot_be_made_stops_nothing(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Failing(error)
    monkeypatch.setattr(sys, "stderr", stream)
    say("by the way\n")
    assert stream.getvalue() == "by the way\n"
