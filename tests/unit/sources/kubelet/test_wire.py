"""A call of gRPC in plain bytes: a good answer, and everything else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.clock import SystemClock
from otel_gpu.errors import Unavailable
from otel_gpu.sources.kubelet.endpoint import open_channel, open_wire
from otel_gpu.sources.kubelet.proto.cri_pb2 import VersionResponse
from otel_gpu.sources.kubelet.wire import MOST_BYTES, Wire
from tests.kubelet_servers import ENDED, EXITED, Runtime, container, listing

VERSION = "/runtime.v1.RuntimeService/Version"
LIST = "/runtime.v1.RuntimeService/ListContainers"
HEADERS = b"\x00\x00\x01\x01\x04\x00\x00\x00\x01\x88"  # :status 200
TRAILERS = b"\x00\x00\x01\x01\x05\x00\x00\x00\x01\x88"


def ask(runtime: Runtime, method: str, request: bytes = b"") -> bytes | None:
    wire = open_wire(str(runtime.path), 5.0, SystemClock())
    try:
        return wire.ask(method, request)
    finally:
        wire.close()


def data(payload: bytes, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((0, flags)) + b"\x00\x00\x00\x01" + payload


def message(payload: bytes) -> bytes:
    return b"\x00" + len(payload).to_bytes(4, "big") + payload


@contextmanager
def answered(raw: bytes, *, timeout_s: float = 5.0, hangs_up: bool = True) -> Iterator[Wire]:
    """A wire whose other end has said this."""
    ours, theirs = socket.socketpair()
    wire = Wire("/x.sock", ours, timeout_s, SystemClock())
    with theirs:
        theirs.sendall(raw)
        if hangs_up:
            theirs.shutdown(socket.SHUT_WR)
        try:
            yield wire
        finally:
            wire.close()


def test_the_answer_is_the_one_that_the_library_gets(runtime: Runtime) -> None:
    runtime.containers = [container(number, labels={"notes": "x" * 5_000}) for number in range(400)]
    channel = open_channel(str(runtime.path), 5.0)
    try:
        for method in (VERSION, LIST):
            assert ask(runtime, method) == channel.ask(method)
    finally:
        channel.close()
    assert len(ask(runtime, LIST) or b"") > 2_000_000


def test_what_is_asked_for_arrives(runtime: Runtime) -> None:
    runtime.containers = [container(1), container(2, state=EXITED)]
    assert ask(runtime, LIST, b"\x0a\x04\x12\x02\x08\x02") == listing(runtime.containers[1:]).SerializeToString()
    assert runtime.calls == {ENDED: 1}


def test_an_empty_answer_is_an_answer(runtime: Runtime) -> None:
    assert ask(runtime, LIST) == b""


def test_a_status_and_an_unknown_method_are_no_answer(runtime: Runtime) -> None:
    runtime.answers["Version"] = runtime.refuse(grpc.StatusCode.INTERNAL, "the shim is gone")
    assert ask(runtime, VERSION) is None
    assert ask(runtime, "/runtime.v1.RuntimeService/None") is None


def test_an_answer_that_does_not_come_in_time_is_said(runtime: Runtime) -> None:
    runtime.answers["Version"] = runtime.hang
    wire = open_wire(str(runtime.path), 0.1, SystemClock())
    with pytest.raises(Unavailable, match=r"cri\.sock: no answer to Version within 0\.1 s"):
        wire.ask(VERSION)
    wire.close()


def test_somebody_who_says_a_lot_and_nothing_to_the_point_is_given_up_in_time() -> None:
    ping = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + bytes(8)
    ours, theirs = socket.socketpair()
    wire = Wire("/x.sock", ours, 0.2, SystemClock())

    def chat() -> None:
        with theirs, suppress(OSError):
            while True:
                theirs.sendall(ping)
                time.sleep(0.01)

    thread = threading.Thread(target=chat)
    thread.start()
    with pytest.raises(Unavailable, match=r"no answer to Version within 0\.2 s"):
        wire.ask(VERSION)
    wire.close()
    thread.join()


def test_another_thread_can_end_a_call(runtime: Runtime) -> None:
    runtime.answers["Version"] = runtime.hang
    wire = open_wire(str(runtime.path), 30.0, SystemClock())
    timer = threading.Timer(0.1, wire.close)
    timer.start()
    assert wire.ask(VERSION) is None
    timer.join()


def test_padding_is_no_part_of_an_answer_and_other_frames_do_not_matter() -> None:
    settings_frame = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    first, second = message(b"hello")[:4], message(b"hello")[4:]
    padded = data(b"\x03" + second + b"\0\0\0", flags=0x8)
    with answered(settings_frame + HEADERS + data(first) + padded + TRAILERS) as wire:
        assert wire.ask(VERSION) == b"hello"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        HEADERS,
        HEADERS + data(message(b"hello")),
        HEADERS + data(message(b"hello"))[:-2],
        HEADERS + data(message(b"hello")[:-1]) + TRAILERS,
        HEADERS + data(message(b"hello") + b"!") + TRAILERS,
        HEADERS + data(b"\x01" + message(b"zip")[1:]) + TRAILERS,
        HEADERS + data(b"", flags=0x8) + TRAILERS,
        HEADERS + data(b"\xff", flags=0x8) + TRAILERS,
        HEADERS + b"\x00\x00\x04\x03\x00\x00\x00\x00\x01" + bytes(4) + data(message(b"hello")) + TRAILERS,
        b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + bytes(8) + HEADERS + data(message(b"hello")) + TRAILERS,
        TRAILERS,
    ],
    ids=[
        *("silence", "HTTP/1", "headers only", "no end", "cut", "short", "long", "compressed", "no padding"),
        *("padding only", "reset", "goes away", "status only"),
    ],
)
def test_anything_but_a_whole_answer_is_none(raw: bytes) -> None:
    with answered(raw) as wire:
        assert wire.ask(VERSION) is None


def test_an_answer_without_end_is_given_up(runtime: Runtime) -> None:
    runtime.answers["Version"] = lambda: bytes(MOST_BYTES + 100_000)
    assert ask(runtime, VERSION) is None


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([HEADERS, TRAILERS, data(message(b"x"))]))))
def test_whatever_is_said_is_an_answer_or_none(parts: list[bytes]) -> None:
    with answered(b"".join(parts)) as wire:
        answer = wire.ask(VERSION)
    assert answer is None or isinstance(answer, bytes)


def test_a_version_is_read(runtime: Runtime) -> None:
    assert VersionResponse.FromString(ask(runtime, VERSION) or b"").runtime_name == b"containerd"
