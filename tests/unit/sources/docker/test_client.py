"""Lines of a stream that comes in pieces of any size."""

from __future__ import annotations

import gc
from contextlib import closing
from pathlib import Path

import pytest

from otel_gpu.errors import Unavailable
from otel_gpu.sources.docker.client import Engine, lines
from otel_gpu.sources.docker.roster import ACTIONS
from tests.docker_api import DockerApi, serving_docker
from tests.unit.sources.docker.conftest import until


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_are_whole_however_they_come(size: int) -> None:
    stream = b'{"a": 1}\n\n{"b": 2}\r\n{"c'
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert [line.strip() for line in lines(iter(pieces))] == [b'{"a": 1}', b'{"b": 2}']


def test_a_line_comes_as_soon_as_it_is_whole() -> None:
    pieces = iter([b"one\ntw", b"o\n"])
    read = lines(pieces)
    assert next(read) == b"one"
    assert next(pieces) == b"o\n"


def test_a_line_without_end_is_not_kept() -> None:
    pieces = [b"x" * 65_536] * 64 + [b"\nnext\n"]
    endless, following = lines(iter(pieces))
    assert len(endless) == 1 << 20
    assert following == b"next"


def test_a_line_that_is_too_long_is_cut_also_if_it_comes_at_once() -> None:
    assert [len(line) for line in lines(iter([b"x" * (2 << 20) + b"\nnext\n"]))] == [1 << 20, 4]


def test_what_was_kept_of_a_line_is_not_copied_with_every_piece_of_it() -> None:
    copied = 0

    class Piece(bytes):
        def __radd__(self, kept: bytes) -> bytes:
            nonlocal copied
            copied += len(kept)
            return kept + bytes(self)

    [line] = lines(iter([*[Piece(b"x")] * 5000, Piece(b"\n")]))
    assert line == b"x" * 5000
    assert copied <= 2 * 5000


def test_events_of_a_proxy_that_does_not_chunk_come_one_by_one(api: DockerApi) -> None:
    """HTTP/1.0: the stream ends with the connection, and until then nobody knows how much is to come."""
    api.chunked = False
    with closing(Engine(api.base_url, tls=None, timeout_s=5.0)) as engine:
        events = engine.events(ACTIONS, quiet_s=30.0)
        until(lambda: api.streams)
        read = iter(events)
        for line in (b"one\n", b"two\n"):
            api.say(line)
            assert next(read) == line.strip()
        api.drop_events()
        assert list(read) == []
        events.release()


def test_a_connection_that_is_refused_leaves_no_socket_behind(socket_path: Path) -> None:
    """The engine may die between two questions; a socket that nobody closes is a warning, and that an error here."""
    with serving_docker(DockerApi(), socket_path):
        engine = Engine(f"unix://{socket_path}", tls=None, timeout_s=5.0)
    for _ in range(3):
        with pytest.raises(Unavailable, match="connection refused"):
            engine.containers()
    gc.collect()
    engine.close()
