"""An engine without limits, such as that of any user of the host: what the agent reads of it is bounded."""

from __future__ import annotations

import gzip
import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from otel_gpu.clock import SystemClock
from otel_gpu.model import SourceState
from otel_gpu.sources.names.docker import DockerSource
from tests.docker_api import container_id
from tests.waiting import until

MIB = 1 << 20
HUGE = 150 * MIB
LIMIT = 10 * MIB
"""The limit of an answer, what may come beside it, and what a socket's buffers take."""

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
KEY = container_id(1)


def whole(document: object) -> Iterator[bytes]:
    """A good answer."""
    body = json.dumps(document).encode()
    yield OK + b"Content-Length: %d\r\n\r\n" % len(body) + body


def spaces(size: int) -> Iterator[bytes]:
    return itertools.repeat(b" " * MIB, size // MIB)


def endless(text: bytes) -> Iterator[bytes]:
    return itertools.repeat(text * (65_536 // len(text)))


BOMB = gzip.compress(b" " * HUGE, 6)
ANSWERS: Mapping[str, tuple[Callable[[], Iterable[bytes]], str]] = {
    "a document of 150 MiB": (
        lambda: itertools.chain([OK + b"Content-Length: %d\r\n\r\n[" % HUGE], spaces(HUGE)),
        "is over 8 MiB",
    ),
    "one chunk of 150 MiB": (lambda: itertools.chain([CHUNKED + b"%x\r\n[" % HUGE], spaces(HUGE)), "is over 8 MiB"),
    "chunks without end": (lambda: itertools.chain([CHUNKED], endless(b"1000\r\n%b\r\n" % (b" " * 4096))), "8 MiB"),
    "the size of a chunk without end": (lambda: itertools.chain([CHUNKED], endless(b"0")), "chunk size"),
    "trailers without end": (lambda: itertools.chain([CHUNKED + b"0\r\n"], endless(b"X: y\r\n")), "is over 8 MiB"),
    "a document that ends with the connection": (
        lambda: itertools.chain([OK + b"Connection: close\r\n\r\n"], endless(b" ")),
        "is over 8 MiB",
    ),
    "headers without end": (lambda: itertools.chain([OK], endless(b"X: y\r\n")), "was cut off"),
    "a header without end": (lambda: itertools.chain([OK + b"X: "], endless(b"x")), "was cut off"),
    "a status without end": (lambda: endless(b"H"), "was cut off"),
    "1xx answers without end": (lambda: endless(b"HTTP/1.1 100 Continue\r\n\r\n"), "is over 8 MiB"),
    "a refusal without end": (
        lambda: itertools.chain([b"HTTP/1.1 500 No\r\nConnection: close\r\n\r\n"], endless(b"x")),
        "HTTP status 500",
    ),
    "a gzip bomb": (
        lambda: [OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB) + BOMB],
        "encoded as gzip",
    ),
}


class HostileEngine:
    """Serves these answers by path, and counts the bytes that a client takes of each."""

    def __init__(self, path: Path, answers: Mapping[str, Callable[[], Iterable[bytes]]]) -> None:
        self.url = f"unix://{path}"
        self.sent: dict[str, int] = {}
        self._answers = answers
        self._closed = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(16)
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        self._closed = True
        for each in (self._listener, *list(self._open)):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._closed:
                connection, _ = self._listener.accept()
                self._open.add(connection)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while request := connection.recv(65_536):
                target = request.split(b" ")[1].decode()
                for part in next(make for path, make in self._answers.items() if path in target)():
                    name = target.partition("?")[0].rpartition("/")[2]
                    left = memoryview(part)
                    while left:
                        sent = connection.send(left)
                        self.sent[name] = self.sent.get(name, 0) + sent
                        left = left[sent:]


GOOD: Mapping[str, Callable[[], Iterable[bytes]]] = {
    "/version": lambda: whole({"ApiVersion": "1.41"}),
    f"/containers/{KEY}/json": lambda: whole({"Name": "/web", "State": {"Running": True}}),
    "/containers/json": lambda: whole([{"Id": KEY, "Names": ["/web"], "State": "running"}]),
    "/events": lambda: itertools.chain([CHUNKED], iter(threading.Event().wait, True)),  # type: ignore[arg-type]
}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., tuple[HostileEngine, DockerSource]]]:
    opened: list[tuple[HostileEngine, DockerSource]] = []

    def start(answers: Mapping[str, Callable[[], Iterable[bytes]]]) -> tuple[HostileEngine, DockerSource]:
        engine = HostileEngine(tmp_path / "s", {**answers, **{k: v for k, v in GOOD.items() if k not in answers}})
        opened.append((engine, DockerSource("docker", engine.url, clock=SystemClock(), timeout_s=5.0)))
        return opened[-1]

    yield start
    for engine, source in opened:
        engine.close()
        source.close()


def refused() -> Iterator[bytes]:
    yield b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(("answer", "said"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_without_end_is_read_up_to_the_limit(
    answer: Callable[[], Iterable[bytes]], said: str, serve: Callable[..., tuple[HostileEngine, DockerSource]]
) -> None:
    engine, source = serve({"/events": refused, "/containers/json": answer})
    assert source.wait(30)
    until(lambda: source.read({}).state is SourceState.UNAVAILABLE)
    reason = source.read({}).reason
    assert reason is not None
    assert said in reason
    assert engine.sent["json"] < LIMIT


@pytest.mark.parametrize(("answer", "said"), ANSWERS.values(), ids=ANSWERS)
def test_a_description_without_end_costs_the_names_of_its_container(
    answer: Callable[[], Iterable[bytes]], said: str, serve: Callable[..., tuple[HostileEngine, DockerSource]]
) -> None:
    listed = [{"Id": each, "State": "running"} for each in (KEY, container_id(2))]
    engine, source = serve(
        {"/events": refused, f"/containers/{container_id(2)}": answer, "/containers/json": lambda: whole(listed)}
    )
    until(lambda: source.read({}).known.keys() == {KEY})
    assert engine.sent["json"] < LIMIT
    assert source.read({}).state is SourceState.DEGRADED


EVENT = json.dumps({"Action": "rename", "id": KEY, "Actor": {"ID": KEY, "Attributes": {"name": "x" * 1000}}}).encode()
STREAMS: Mapping[str, Callable[[], Iterable[bytes]]] = {
    "a line without end": lambda: itertools.chain([CHUNKED], endless(b"1000\r\n%b\r\n" % (b"x" * 4096))),
    "a line without end, not in chunks": lambda: itertools.chain([OK + b"\r\n"], endless(b"x")),
    "one chunk of 150 MiB": lambda: itertools.chain([CHUNKED + b"%x\r\n" % HUGE], spaces(HUGE)),
    "the size of a chunk without end": lambda: itertools.chain([CHUNKED], endless(b"0")),
}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_a_stream_of_events_without_lines_ends_at_the_limit(
    stream: Callable[[], Iterable[bytes]], serve: Callable[..., tuple[HostileEngine, DockerSource]]
) -> None:
    engine, source = serve({"/events": stream})
    until(lambda: KEY in source.read({}).known)
    until(lambda: (source.read({}).reason or "").startswith("GET /events ends within 10 s"), 30)
    assert engine.sent["events"] < LIMIT


def test_a_flood_of_events_ends_the_stream(serve: Callable[..., tuple[HostileEngine, DockerSource]]) -> None:
    line = EVENT + b"\n"
    flood = b"%x\r\n%b\r\n" % (len(line), line)
    engine, source = serve({"/events": lambda: itertools.chain([CHUNKED], endless(flood))})
    until(lambda: (source.read({}).reason or "").startswith("GET /events ends within 10 s"), 30)
    assert KEY in source.read({}).known
    assert engine.sent["events"] < 2 * 10_000 * len(flood)
