"""Lines of a stream that arrives in chunks of any size."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.sources.names.lines import LineSplitter
from tests.depth import DEPTH


@settings(max_examples=60 * DEPTH, deadline=None, derandomize=True, database=None)
@given(st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line), max_size=8), st.data())
def test_lines_do_not_depend_on_the_chunks(whole: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in whole)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    lines = LineSplitter(max_bytes=8)

    found = [line for chunk in chunks for line in lines.feed(chunk)]

    assert found == [None if len(line) > 8 else line.strip() for line in whole if len(line) > 8 or line.strip()]


def test_an_endless_line_takes_no_memory() -> None:
    lines = LineSplitter(max_bytes=1000)
    for _ in range(100):
        assert list(lines.feed(b"x" * 100)) == []

    assert sum(map(len, lines._parts)) <= 1000
    assert list(lines.feed(b"x\nnext\n")) == [None, b"next"]


def test_a_line_is_returned_as_soon_as_it_is_complete() -> None:
    lines = LineSplitter(max_bytes=100)
    assert list(lines.feed(b"one\ntw")) == [b"one"]
    assert list(lines.feed(b"o\n")) == [b"two"]


def test_a_long_line_in_one_chunk_is_dropped() -> None:
    assert list(LineSplitter(max_bytes=10).feed(b"x" * 20 + b"\nnext\n")) == [None, b"next"]


def test_a_partial_line_is_not_copied_for_each_chunk() -> None:
    copied = 0

    class Chunk(bytes):
        def __radd__(self, collected: bytes) -> bytes:
            nonlocal copied
            copied += len(collected)
            return collected + bytes(self)

    lines = LineSplitter(max_bytes=10_000)
    for _ in range(5000):
        assert list(lines.feed(Chunk(b"x"))) == []
    assert list(lines.feed(b"\n")) == [b"x" * 5000]
    assert copied <= 2 * 5000
