"""gRPC calls over unix sockets: answers, failures with their reasons, and unusable sockets."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from types import ModuleType

import grpc
import hpack
import pytest

from otel_gpu.clock import SystemClock
from otel_gpu.errors import OtelGpuError, Unavailable, Unsupported
from otel_gpu.model import SourceState
from otel_gpu.sources.names.cri import CriSource
from otel_gpu.sources.names.grpc_client import (
    MAX_MESSAGE_BYTES,
    GrpcConnection,
    connect,
    open_connection,
    socket_path,
)
from otel_gpu.sources.names.proto import cri_pb2, podresources_pb2
from otel_gpu.sources.names.proto.cri_pb2 import VersionResponse
from tests.kubelet_servers import ENDED, EXITED, Runtime, container, listing
from tests.unit.sources.names.waiting import open_files, our_threads, reading, until
from tests.waiting import until as soon

VERSION = "/runtime.v1.RuntimeService/Version"
LIST = "/runtime.v1.RuntimeService/ListContainers"


def call(path: Path, method: str, request: bytes = b"", timeout_s: float = 5.0) -> bytes:
    connection = open_connection(str(path), timeout_s, SystemClock())
    try:
        return connection.call(method, request)
    finally:
        connection.close()


def failure(path: Path, method: str = VERSION, kind: type[OtelGpuError] = Unavailable) -> str:
    with pytest.raises(kind, match=re.escape(str(path))) as raised:
        call(path, method, timeout_s=2.0)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# ---------------------------------------------------------------------------- real servers


def test_the_answer_equals_that_of_the_grpc_library(runtime: Runtime) -> None:
    runtime.containers = [container(number, labels={"notes": "x" * 5_000}) for number in range(400)]
    options = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
    with grpc.insecure_channel(f"unix:{runtime.path}", options=options) as channel:
        for method in (VERSION, LIST):
            assert call(runtime.path, method) == channel.unary_unary(method)(b"", timeout=5.0)
    assert len(call(runtime.path, LIST)) > 2_000_000


def test_the_request_reaches_the_server(runtime: Runtime) -> None:
    runtime.containers = [container(1), container(2, state=EXITED)]
    answer = call(runtime.path, LIST, b"\x0a\x04\x12\x02\x08\x02")
    assert answer == listing(runtime.containers[1:]).SerializeToString()
    assert runtime.calls == {ENDED: 1}


def test_an_empty_message_is_an_answer(runtime: Runtime) -> None:
    assert call(runtime.path, LIST) == b""


@pytest.mark.parametrize(
    ("code", "message", "reason"),
    [
        (grpc.StatusCode.INTERNAL, "the shim\nis gone", "Version failed: INTERNAL: the shim is gone"),
        (grpc.StatusCode.UNAVAILABLE, "starting: 50 %", "Version failed: UNAVAILABLE: starting: 50 %"),
        (grpc.StatusCode.PERMISSION_DENIED, "ask root", "Version is not allowed: ask root"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "x" * 500, f"Version failed: RESOURCE_EXHAUSTED: {'x' * 200}…"),
    ],
)
def test_a_failed_call_has_the_status_and_message_as_reason(
    runtime: Runtime, code: grpc.StatusCode, message: str, reason: str
) -> None:
    runtime.answers["Version"] = runtime.refuse(code, message)
    assert failure(runtime.path) == f"{runtime.path}: {reason}"


def test_an_unknown_method_or_service_is_unsupported(runtime: Runtime) -> None:
    for method in ("/runtime.v1.RuntimeService/None", "/v1.PodResourcesLister/List"):
        service, name = method.strip("/").split("/")
        found = failure(runtime.path, method, Unsupported)
        assert found == f"{runtime.path}: the server does not implement {name} of {service}"


def test_a_late_answer_is_a_timeout(runtime: Runtime) -> None:
    runtime.answers["Version"] = runtime.hang
    with pytest.raises(Unavailable, match=r"cri\.sock: no answer to Version within 0\.1 s"):
        call(runtime.path, VERSION, timeout_s=0.1)


def test_another_thread_can_end_a_call(runtime: Runtime) -> None:
    runtime.answers["Version"] = runtime.hang
    connection = open_connection(str(runtime.path), 30.0, SystemClock())
    timer = threading.Timer(0.1, connection.close)
    timer.start()
    with pytest.raises(Unavailable):
        connection.call(VERSION)
    timer.join()


def test_a_closed_connection_makes_no_call(runtime: Runtime) -> None:
    connection = open_connection(str(runtime.path), 2.0, SystemClock())
    connection.close()
    connection.close()
    with pytest.raises(Unavailable, match="connection lost during Version"):
        connection.call(VERSION)


def test_an_answer_over_the_limit_is_refused(runtime: Runtime) -> None:
    runtime.answers["Version"] = lambda: bytes(MAX_MESSAGE_BYTES + 100_000)
    assert failure(runtime.path) == f"{runtime.path}: the answer to Version is over 8 MiB"


def test_a_hundred_failures_leave_no_threads_and_no_descriptors(runtime: Runtime) -> None:
    def once() -> None:
        with reading(CriSource(str(runtime.path), clock=SystemClock())) as names:
            until(names, lambda answer: answer.state is SourceState.UNAVAILABLE)

    runtime.answers["ListContainers"] = lambda: b"\x0a\xff"
    once()
    before = open_files()
    for _ in range(100):
        once()
    soon(lambda: open_files() <= before + 2)
    assert our_threads("cri") == 0


# ---------------------------------------------------------------------------- frames

HEADERS = b"\x00\x00\x01\x01\x04\x00\x00\x00\x01\x88"  # :status 200
TRAILERS = b"\x00\x00\x01\x01\x05\x00\x00\x00\x01\x88"
GOAWAY = b"\x00\x00\x08\x07\x00\x00\x00\x00\x00"


def frame(kind: int, payload: bytes, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + b"\x00\x00\x00\x01" + payload


def data(payload: bytes, flags: int = 0) -> bytes:
    return frame(0, payload, flags)


def message(payload: bytes) -> bytes:
    return b"\x00" + len(payload).to_bytes(4, "big") + payload


def trailers(status: str, text: str = "", *, huffman: bool = True) -> bytes:
    return hpack.Encoder().encode([(":status", "200"), ("grpc-status", status), ("grpc-message", text)], huffman)


@contextmanager
def answered(raw: bytes) -> Iterator[GrpcConnection]:
    """A connection whose other end sends these bytes and closes."""
    ours, theirs = socket.socketpair()
    connection = GrpcConnection("/x.sock", ours, 5.0, SystemClock())
    with theirs:
        theirs.sendall(raw)
        theirs.shutdown(socket.SHUT_WR)
        try:
            yield connection
        finally:
            connection.close()


def test_padding_and_other_frames_are_skipped() -> None:
    settings_frame = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    first, second = message(b"hello")[:4], message(b"hello")[4:]
    padded = data(b"\x03" + second + b"\0\0\0", flags=0x8)
    with answered(settings_frame + HEADERS + data(first) + padded + TRAILERS) as connection:
        assert connection.call(VERSION) == b"hello"


def test_a_graceful_goaway_does_not_end_the_call() -> None:
    goaway = GOAWAY + b"\x00\x00\x00\x01" + bytes(4)
    with answered(HEADERS + goaway + data(message(b"hello")) + TRAILERS) as connection:
        assert connection.call(VERSION) == b"hello"


NO_STATUS, ENDED_BY_SERVER, CLOSED = "is not gRPC", "ended Version without an answer", "closed the connection"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", CLOSED),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "is not gRPC"),
        (b"HTTP/", "is not gRPC"),
        (HEADERS, CLOSED),
        (HEADERS + data(message(b"hello")), CLOSED),
        (HEADERS + data(message(b"hello"))[:-2], CLOSED),
        (HEADERS + data(message(b"hello")[:-1]) + TRAILERS, NO_STATUS),
        (HEADERS + data(message(b"hello") + b"!") + TRAILERS, NO_STATUS),
        (HEADERS + data(b"\x01" + message(b"zip")[1:]) + TRAILERS, NO_STATUS),
        (HEADERS + data(b"", flags=0x8) + TRAILERS, NO_STATUS),
        (HEADERS + data(b"\xff", flags=0x8) + TRAILERS, NO_STATUS),
        (HEADERS + frame(3, bytes(4)) + data(message(b"hello")) + TRAILERS, ENDED_BY_SERVER),
        (GOAWAY + bytes(8) + HEADERS + data(message(b"hello")) + TRAILERS, ENDED_BY_SERVER),
        (TRAILERS, NO_STATUS),
        (HEADERS + frame(1, trailers("0"), 0x5), "is not one whole message"),
        (frame(1, trailers("99"), 0x5), "Version failed: status 99: no reason given"),
        (frame(1, trailers("many"), 0x5), "is not gRPC"),
        (frame(1, hpack.Encoder().encode([(":status", "404")]), 0x5), "is HTTP 404, not gRPC"),
        (frame(1, b"\xff\xff\xff\xff", 0x5), "is not gRPC"),
        (frame(1, bytes(16_000), 0x4) * 5, "is not gRPC"),
    ],
    ids=[
        *("silence", "HTTP/1", "beginning of HTTP/1", "headers only", "no end", "cut", "short", "long", "compressed"),
        *("no padding", "padding only", "reset", "goes away", "no status", "status OK", "unknown status"),
        *("status is text", "HTTP status", "invalid headers", "endless headers"),
    ],
)
def test_an_incomplete_or_invalid_answer_is_unavailable_with_a_reason(raw: bytes, reason: str) -> None:
    with answered(raw) as connection, pytest.raises(Unavailable, match=re.escape(reason)):
        connection.call(VERSION)


@pytest.mark.parametrize("huffman", [True, False])
def test_the_status_is_read_from_compressed_and_divided_headers(huffman: bool) -> None:
    block = trailers("13", "caf%C3%A9 is closed", huffman=huffman)
    padded = b"\x02" + bytes(5) + block[:7] + bytes(2)
    raw = HEADERS + frame(1, padded, 0x1 | 0x8 | 0x20) + frame(9, block[7:12]) + frame(9, block[12:], 0x4)
    with answered(raw) as connection, pytest.raises(Unavailable) as raised:
        connection.call(VERSION)
    assert str(raised.value) == "/x.sock: Version failed: INTERNAL: café is closed"


@pytest.mark.parametrize(
    "chunks",
    [(frame(6, bytes(8)),), (b"\0\0\xff", *[b"\0"] * 10_000), (b"\0\0\0",)],
    ids=["pings", "a frame byte by byte", "empty frames in parts"],
)
def test_a_server_that_never_ends_its_answer_is_a_timeout(chunks: tuple[bytes, ...]) -> None:
    ours, theirs = socket.socketpair()
    connection = GrpcConnection("/x.sock", ours, 0.2, SystemClock())

    def send() -> None:
        with theirs, suppress(OSError):
            for chunk in cycle(chunks):
                theirs.sendall(chunk)
                time.sleep(0.01)

    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(Unavailable, match=r"no answer to Version within 0\.2 s"):
        connection.call(VERSION)
    connection.close()
    thread.join()


@pytest.mark.parametrize(
    ("part", "most_bytes", "said"),
    [
        (data(bytes(16_384)), 9 << 20, "the answer to Version is over 8 MiB"),
        (data(message(bytes(150 << 20))[:16_384]), 1 << 20, "the answer to Version is over 8 MiB"),
        (frame(1, bytes(16_384)), 1 << 20, "is not gRPC"),
        (frame(9, bytes(16_384)), 1 << 20, "is not gRPC"),
        (b"\xff" * 16_384, 1 << 20, "is not gRPC"),
    ],
    ids=["data", "a message of 150 MiB", "headers", "continuations", "frames of 16 MiB"],
)
def test_an_answer_without_end_is_read_up_to_the_limit(part: bytes, most_bytes: int, said: str) -> None:
    ours, theirs = socket.socketpair()
    connection = GrpcConnection("/x.sock", ours, 30.0, SystemClock())
    sent_bytes = 0

    def send() -> None:
        nonlocal sent_bytes
        with theirs, suppress(OSError):
            while True:
                sent_bytes += theirs.send(part)

    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(Unavailable, match=said):
        connection.call(VERSION)
    connection.close()
    thread.join()
    assert sent_bytes < most_bytes


# ---------------------------------------------------------------------------- sockets


@contextmanager
def listening(path: Path) -> Iterator[None]:
    """A server that accepts no connection. Its queue has one place."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        yield


@pytest.mark.parametrize("endpoint", ["/run/x.sock", "unix:/run/x.sock", "unix:///run/x.sock"])
def test_an_endpoint_is_a_path_or_a_unix_url(endpoint: str) -> None:
    assert socket_path(endpoint) == "/run/x.sock"


@pytest.mark.parametrize("endpoint", ["", "run/x.sock", "tcp://127.0.0.1:1", "unix://run", "npipe://x", "/run/\0"])
def test_another_endpoint_is_rejected(endpoint: str) -> None:
    with pytest.raises(Unavailable, match="use an absolute path"):
        socket_path(endpoint)


def test_a_path_that_is_too_long_is_rejected() -> None:
    with pytest.raises(Unavailable, match="at most 107 bytes"):
        socket_path("/" + "x" * 107)


def test_a_missing_socket_has_a_reason(directory: Path) -> None:
    with pytest.raises(Unavailable, match=r"none\.sock: no such file; in a container, mount"):
        connect(str(directory / "none.sock"))


def test_a_file_is_not_a_socket(directory: Path) -> None:
    (directory / "x.sock").write_text("")
    with pytest.raises(Unavailable, match=r"x\.sock: is a file, not a socket"):
        connect(str(directory / "x.sock"))


def test_a_socket_without_a_server_is_refused(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "x.sock"))
    with pytest.raises(Unavailable, match="connection refused: no process listens on it"):
        connect(str(directory / "x.sock"))


def test_a_server_that_accepts_no_connections_has_a_reason(directory: Path) -> None:
    path = directory / "x.sock"
    with listening(path), socket.socket(socket.AF_UNIX) as first:
        first.connect(str(path))
        with pytest.raises(Unavailable, match="does not accept connections"):
            connect(str(path))


def test_a_socket_of_another_user_has_a_reason(directory: Path) -> None:
    path = directory / "x.sock"
    with listening(path):
        path.chmod(0)
        script = """
            import os, sys
            from otel_gpu.errors import Unavailable
            from otel_gpu.sources.names.grpc_client import connect
            if os.geteuid() == 0:
                os.setuid(65534)
            try:
                connect(sys.argv[1])
            except Unavailable as error:
                print(error)
        """
        words = [sys.executable, "-c", textwrap.dedent(script), str(path)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{path}: permission denied; run the agent as root, which owns it on most nodes\n"


def test_a_path_may_have_any_characters(directory: Path) -> None:
    server = Runtime(directory / "plain.sock")
    server.start()
    path = directory / "a b%20#?é.sock"
    path.symlink_to(server.path)
    try:
        assert VersionResponse.FromString(call(path, VERSION)).runtime_name == b"containerd"
    finally:
        server.stop()


def test_the_grpc_library_is_never_imported_and_hpack_only_after_a_failed_call(
    runtime: Runtime, directory: Path
) -> None:
    script = """
        import contextlib, socket, sys, threading
        from otel_gpu.clock import SystemClock
        from otel_gpu.sources.names.cri import CriSource
        from otel_gpu.sources.names.podresources import PodResourcesSource

        def look(kind, path):
            source = kind(path, clock=SystemClock(), timeout_s=5.0)
            source.read({})
            assert source.wait(20)
            print(source.read({}).state)
            source.close()

        for kind in (CriSource, PodResourcesSource):
            look(kind, sys.argv[1] + "/none.sock")
        look(CriSource, sys.argv[1] + "/cri.sock")
        assert "hpack" not in sys.modules
        look(PodResourcesSource, sys.argv[1] + "/cri.sock")
        assert "hpack" in sys.modules
        assert "grpc" not in sys.modules
    """
    words = [sys.executable, "-c", textwrap.dedent(script), str(directory)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "unavailable\nunavailable\nok\nunavailable\n", "")


@pytest.mark.parametrize(("name", "made"), [("cri", cri_pb2), ("podresources", podresources_pb2)])
def test_the_generated_messages_match_the_proto_files(name: str, made: ModuleType) -> None:
    text = (Path(str(made.__file__)).parent / f"{name}.proto").read_text(encoding="utf-8")
    written = {
        message[1]: {(field[2], int(field[3])) for field in re.finditer(r"(\w+) (\w+) = (\d+);", message[2])}
        for message in re.finditer(r"message (\w+) \{(.*?)\n\}", text, re.DOTALL)
    }
    file = made.DESCRIPTOR
    assert file.package == re.search(r"package ([\w.]+);", text)[1]  # type: ignore[index]
    assert written == {
        message.name: {(field.name, field.number) for field in message.fields}
        for message in file.message_types_by_name.values()
    }
