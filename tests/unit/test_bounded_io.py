"""Bounded reads: files, streams, JSON, and lines of a stream that arrives in chunks of any size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.bounded_io import (
    Deadline,
    LineSplitter,
    TooLarge,
    one_line,
    parse_json,
    printable,
    read_all,
    read_beginning,
    read_file,
    read_file_or_pipe,
)
from otel_gpu.clock import ManualClock
from tests.depth import DEPTH


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_bytes(b"x" * 100)
    assert read_file(path, 100) == b"x" * 100
    with pytest.raises(TooLarge, match=r"^over 99 bytes$"):
        read_file(path, 99)
    with pytest.raises(TooLarge, match=r"^over 2 MiB$"):
        read_all([b"x" * (2 << 20), b"x"], 2 << 20)


def test_a_pipe_is_read_until_its_end(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "fifo")
    with ThreadPoolExecutor() as pool:
        content = pool.submit(read_file_or_pipe, pipe, 1 << 20, 30.0)
        with pipe.open("wb") as writer:
            writer.write(b"a" * 100_000)
        assert content.result() == b"a" * 100_000
        too_large = pool.submit(read_file_or_pipe, pipe, 9, 30.0)
        with pipe.open("wb") as writer:
            writer.write(b"a" * 10)
        with pytest.raises(TooLarge):
            too_large.result()
    assert read_file_or_pipe(Path("/dev/null"), 9, 30.0) == b""


def test_a_pipe_without_an_end_is_given_up(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "fifo")
    with pytest.raises(TimeoutError):
        read_file_or_pipe(pipe, 9, 0.01)  # no process has it open for writing
    with pipe.open("r+b", buffering=0) as writer:
        writer.write(b"a")
        with pytest.raises(TimeoutError):
            read_file_or_pipe(pipe, 9, 0.01)


def test_a_file_read_as_a_file_or_pipe_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 10)
    assert read_file_or_pipe(tmp_path / "file", 10, 0.0) == b"x" * 10
    with pytest.raises(IsADirectoryError):
        read_file_or_pipe(tmp_path, 10, 0.0)


def test_a_stream_is_not_read_beyond_its_limit() -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"xyz"

    assert read_beginning(endless(), 10) == b"xyzxyzxyzx"
    assert taken == 4
    with pytest.raises(TooLarge):
        read_all(endless(), 10)
    assert taken == 8
    assert read_all([b"xyz", b"xyz"], 6) == b"xyzxyz"


def test_a_deadline_has_less_and_less_time_left() -> None:
    clock = ManualClock()
    deadline = Deadline(2.0, clock.monotonic_ns)
    clock.advance(1.5)
    assert deadline.left_s() == 0.5
    clock.advance(0.5)
    with pytest.raises(TimeoutError):
        deadline.left_s()


@pytest.mark.parametrize("document", [b"", b"{", b"\xff", b"[" * 100_000, "nul"])
def test_what_is_not_json_is_a_value_error(document: bytes | str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(document)


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


# ---------------------------------------------------------------------------- text


@pytest.mark.parametrize(
    "character",
    [*"\x00\x07\b\t\n\r\x1b\x7f\x85\x9b", *"\u200b\u200e\u2028\u202e\u2066\ufeff\ud800\U000e0041"],
    ids=ascii,
)
def test_what_a_terminal_might_act_on_is_replaced(character: str) -> None:
    assert printable(f"a{character}b") == "a\N{REPLACEMENT CHARACTER}b"


@pytest.mark.parametrize("text", ["", "vllm-chat", "a b", "模型", "naïve", "🚀"])
def test_what_people_can_read_is_left_alone(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" two\n\tlines\r\n", "two lines"),
        ("\x1b[31mred\u202e", "\ufffd[31mred\ufffd"),
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 200 + "…"),
        ("", ""),
    ],
)
def test_a_reason_from_outside_is_one_printable_line(text: str, expected: str) -> None:
    assert one_line(text) == expected
