"""Bounds that hold whatever clients do, over real sockets."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from otel_gpu.values import Address
from otel_gpu.web.access_policy import Guard
from otel_gpu.web.reception import Reception
from otel_gpu.web.router import Site
from otel_gpu.web.server import Limits, Request, Response, Route, WebServer
from tests.web import PATIENCE_S, ask

MIB = 1 << 20


class Slow:
    """A route that answers when it is told to, and counts who waits for it."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.waiting = threading.Semaphore(0)

    def __call__(self, _: Request) -> Response:
        self.waiting.release()
        assert self.go_on.wait(PATIENCE_S)
        return Response("at last\n")


@contextmanager
def serving(routes: Mapping[str, Route], limits: Limits) -> Iterator[Address]:
    server = WebServer(Address("127.0.0.1", 0), routes, limits=limits)
    server.start()
    try:
        yield server.address
    finally:
        server.close()


def caller(stack: ExitStack, address: Address, request: bytes = b"", *, receive_bytes: int = 4096) -> socket.socket:
    """A client that has said something, and takes in hardly anything by itself."""
    client = stack.enter_context(socket.socket())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(PATIENCE_S)
    client.connect((address.host, address.port))
    client.sendall(request)
    return client


def rest(client: socket.socket) -> bytes:
    """All that still comes."""
    parts = []
    try:
        while part := client.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def test_clients_who_take_nothing_in_hold_no_thread_and_no_more_memory_than_allowed() -> None:
    made: list[int] = []

    def large(_: Request) -> Response:
        made.append(1)
        return Response(b"x" * (16 * MIB + len(made)))  # a body of its own for each

    limits = Limits(slowest_client_s=60, hurried_client_s=0.2, most_bytes=32 * MIB, most_threads=1)
    with serving({"/large": large, "/": lambda _: Response("ok")}, limits) as address, ExitStack() as stack:
        deaf = [caller(stack, address, b"GET /large HTTP/1.0\r\n\r\n") for _ in range(6)]
        # Two of them fill the memory; who comes next is answered when they have been let go, long before a minute.
        assert ask(address, "/").body == "ok"
        assert len(made) > 2
        assert sum(len(rest(client)) < 16 * MIB for client in deaf) >= 2


def test_a_client_who_takes_in_a_large_answer_slowly_gets_all_of_it() -> None:
    body = b"0123456789abcdef" * MIB
    with serving({"/": lambda _: Response(body)}, Limits(slowest_client_s=60)) as address, ExitStack() as stack:
        client = caller(stack, address, b"GET / HTTP/1.0\r\n\r\n")
        assert rest(client).partition(b"\r\n\r\n")[2] == body


def test_requests_are_answered_by_so_many_threads_at_a_time_and_the_others_wait_their_turn() -> None:
    slow = Slow()
    with serving({"/": slow}, Limits(most_threads=2)) as address, ExitStack() as stack:
        clients = [caller(stack, address, b"GET / HTTP/1.0\r\n\r\n") for _ in range(6)]
        assert slow.waiting.acquire(timeout=PATIENCE_S)
        assert slow.waiting.acquire(timeout=PATIENCE_S)
        assert not slow.waiting.acquire(timeout=0.2)  # no third
        slow.go_on.set()
        assert [rest(client).endswith(b"\r\n\r\nat last\n") for client in clients] == [True] * 6


def test_however_many_ask_at_once_one_thread_answers_them_all() -> None:
    """A thread that is free again says so only if somebody waits for it: whoever comes just then must not be left."""
    with serving({"/": lambda _: Response("ok")}, Limits(most_threads=1, slowest_client_s=60)) as address:
        for _ in range(20):
            with ExitStack() as stack:
                clients = [caller(stack, address, b"GET / HTTP/1.0\r\n\r\n") for _ in range(20)]
                assert [rest(client).endswith(b"\r\n\r\nok") for client in clients] == [True] * 20


def test_one_who_takes_its_time_does_not_keep_the_thread_that_answers() -> None:
    body = b"x" * (16 * MIB)
    routes: Mapping[str, Route] = {"/large": lambda _: Response(body), "/": lambda _: Response("ok")}
    with serving(routes, Limits(most_threads=1, slowest_client_s=60)) as address, ExitStack() as stack:
        slow = caller(stack, address, b"GET /large HTTP/1.0\r\n\r\n")
        assert slow.recv(1) == b"H"
        for _ in range(5):
            assert ask(address, "/").body == "ok"
        assert rest(slow).endswith(body)


def test_who_is_being_answered_is_never_cut_off_for_a_newcomer() -> None:
    slow = Slow()
    with serving({"/": slow}, Limits(most_connections=2, slowest_client_s=60)) as address, ExitStack() as stack:
        clients = [caller(stack, address, b"GET / HTTP/1.0\r\n\r\n") for _ in range(2)]
        for _ in clients:
            assert slow.waiting.acquire(timeout=PATIENCE_S)
        assert rest(caller(stack, address)) == b""  # there is nobody who could make room
        slow.go_on.set()
        assert [rest(client).endswith(b"at last\n") for client in clients] == [True] * 2


def test_an_answer_may_take_longer_than_a_client_may() -> None:
    slow = Slow()
    with serving({"/": slow}, Limits(slowest_client_s=0.1)) as address, ExitStack() as stack:
        client = caller(stack, address, b"GET / HTTP/1.0\r\n\r\n")
        assert slow.waiting.acquire(timeout=PATIENCE_S)
        assert rest(caller(stack, address)) == b""  # meanwhile one who says nothing is let go
        slow.go_on.set()
        assert rest(client).endswith(b"at last\n")


def test_a_server_that_is_closed_while_it_answers_lets_go_of_everybody() -> None:
    slow = Slow()
    with ExitStack() as stack:
        with serving({"/": slow}, Limits(slowest_client_s=60)) as address:
            clients = [caller(stack, address, b"GET / HTTP/1.0\r\n\r\n"), caller(stack, address)]
            assert slow.waiting.acquire(timeout=PATIENCE_S)
        slow.go_on.set()
        assert [rest(client) for client in clients] == [b"", b""]


def test_a_request_that_comes_byte_by_byte_is_a_request() -> None:
    with serving({"/": lambda _: Response("ok")}, Limits()) as address, ExitStack() as stack:
        client = caller(stack, address)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"GET / HTTP/1.0\r\nA: b\r\n\r\n":
            client.sendall(bytes([byte]))
        assert rest(client).endswith(b"\r\n\r\nok")


class Poor(socket.socket):
    """A listener that has no descriptor left for the first so many who come."""

    refusals = 3

    def accept(self) -> tuple[socket.socket, Any]:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_without_a_descriptor_left_it_waits_and_goes_on_when_there_is_one() -> None:
    listener = Poor()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    address = Address("127.0.0.1", listener.getsockname()[1])
    reception = Reception(listener, Site({"/": lambda _: Response("ok")}, {}), Guard, Limits())
    thread = threading.Thread(target=reception.run)
    thread.start()
    try:
        assert ask(address, "/").body == "ok"
        assert listener.refusals == 0
    finally:
        reception.close()
        thread.join(PATIENCE_S)


def test_an_event_of_a_client_who_was_let_go_meanwhile_does_nothing_to_who_has_his_descriptor_now() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    reception = Reception(listener, Site({}, {}), Guard, Limits(most_connections=1, slowest_client_s=60))
    with ExitStack() as stack:
        address = Address("127.0.0.1", listener.getsockname()[1])
        caller(stack, address)
        reception._receive()
        (first,) = reception._waiting
        caller(stack, address)
        reception._receive()  # takes the place of the first
        (second,) = reception._waiting
        second.descriptor = first.descriptor  # as the kernel may well have it
        reception._go_on(first)
        assert list(reception._waiting) == [second]
        second.descriptor = second.socket.fileno()
        reception.close()
        reception.run()  # only ends
