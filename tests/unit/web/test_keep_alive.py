"""Connections that carry several requests, over real sockets."""

from __future__ import annotations

import http.client
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path

import pytest

from otel_gpu.config.values import Address
from otel_gpu.web.request import Request
from otel_gpu.web.response import Response
from otel_gpu.web.router import Route
from otel_gpu.web.server import Limits
from tests.unit.web.harness import (
    MIB,
    BlockingRoute,
    basic,
    bcrypt_hash,
    connect,
    event_loop,
    read_to_end,
    running,
    serving,
    wait_until,
    worker_count,
    write_atomically,
)
from tests.unit.web.pki import Pki
from tests.web import PATIENCE_S, PATIENT, ask

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
GET_AS_ALICE = f"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: {basic('alice', 'right')}\r\n\r\n".encode()


def broken(_: Request) -> Response:
    raise RuntimeError


ROUTES: Mapping[str, Route] = {
    "/": lambda request: Response(f"ok {request.query}"),
    "/large": lambda _: Response(b"x" * (16 * MIB)),
    "/unavailable": lambda _: Response("not now", status=HTTPStatus.SERVICE_UNAVAILABLE),
    "/broken": broken,
}


class Client:
    """A connection that sends requests and reads one response at a time."""

    def __init__(self, stack: ExitStack, address: Address, *, sent: bytes = b"") -> None:
        self.socket = connect(stack, address, sent)
        self._buffered = b""  # of the next response, which may arrive with the one before

    def request(self, raw: bytes = GET) -> bytes:
        self.socket.sendall(raw)
        return self.response(head_only=raw.startswith(b"HEAD"))

    def response(self, *, head_only: bool = False) -> bytes:
        """One response, head and body."""
        received, self._buffered = self._buffered, b""
        while b"\r\n\r\n" not in received:
            chunk = self.socket.recv(65536)
            assert chunk, received
            received += chunk
        head, _, body = received.partition(b"\r\n\r\n")
        length = 0 if head_only else int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
        parts, self._buffered = [body[:length]], body[length:]
        while (left := length - sum(map(len, parts))) > 0:
            chunk = self.socket.recv(left)
            assert chunk, received
            parts.append(chunk)
        return head + b"\r\n\r\n" + b"".join(parts)

    def rest(self) -> bytes:
        """Everything until the server closes the connection."""
        received, self._buffered = self._buffered, b""
        return received + read_to_end(self.socket)


def test_one_connection_carries_many_requests() -> None:
    with serving(ROUTES) as server, ExitStack() as stack:
        client = Client(stack, server.address)
        for number in range(20):
            response = client.request(b"GET /?%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % number)
            assert response.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"Connection:" not in response
            assert response.endswith(b"\r\n\r\nok %d" % number)


def test_a_head_request_is_followed_by_the_next_request() -> None:
    with serving(ROUTES) as server, ExitStack() as stack:
        client = Client(stack, server.address)
        assert client.request(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n").endswith(b"\r\n\r\n")
        assert client.request().endswith(b"\r\n\r\nok ")


def test_a_large_response_is_followed_by_the_next_request() -> None:
    with serving(ROUTES) as server, ExitStack() as stack:
        client = Client(stack, server.address, sent=b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(0.05)
        assert len(client.response()) > 16 * MIB
        assert len(client.request(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")) > 16 * MIB
        assert client.request().endswith(b"\r\n\r\nok ")


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", b"200"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"200"),
        (b"GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
        (b"GET /unavailable HTTP/1.1\r\nHost: localhost\r\n\r\n", b"503"),
        (b"GET /broken HTTP/1.1\r\nHost: localhost\r\n\r\n", b"500"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"405"),
        (b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"501"),
        (b"GET / HTTP/2.0\r\n\r\n", b"505"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA : b\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 66_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n", b"431"),
    ],
)
@pytest.mark.parametrize("previous", [0, 2])
def test_the_connection_closes_on_request_after_a_body_and_after_an_error(
    raw: bytes, status: bytes, previous: int
) -> None:
    with serving(ROUTES) as server, ExitStack() as stack:
        client = Client(stack, server.address)
        for _ in range(previous):
            client.request()
        response = client.request(raw)
        assert response[9:12] == status
        assert b"\r\nConnection: close\r\n" in response
        assert client.rest() == b""


def test_a_blank_line_closes_the_connection() -> None:
    with serving(ROUTES) as server, ExitStack() as stack:
        client = Client(stack, server.address)
        client.request()
        client.socket.sendall(b"\r\n" + GET)
        assert client.rest() == b""


def test_of_pipelined_requests_only_the_first_is_answered() -> None:
    with serving(ROUTES) as server, ExitStack() as stack:
        client = Client(stack, server.address)
        client.request()
        response = client.request(
            b"GET /?1 HTTP/1.1\r\nHost: localhost\r\n\r\nGET /?2 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        assert response.endswith(b"ok 1")
        assert b"\r\nConnection: close\r\n" in response
        assert client.rest() == b""


@pytest.mark.parametrize("previous", [0, 2])
def test_a_request_during_a_response_waits_without_using_cpu(previous: int) -> None:
    route = BlockingRoute()
    with serving({**ROUTES, "/blocking": route}) as server, ExitStack() as stack:
        client = Client(stack, server.address)
        for _ in range(previous):
            client.request()
        client.socket.sendall(b"GET /blocking HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert route.entered.acquire(timeout=PATIENCE_S)
        client.socket.sendall(b"GET /?next HTTP/1.1\r\nHost: localhost\r\n\r\n")
        start_s = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - start_s < 0.25
        route.release.set()
        assert client.response().endswith(b"done\n")
        assert client.response().endswith(b"ok next")
        assert client.request().endswith(b"ok ")


@pytest.mark.parametrize("previous", [0, 2])
def test_a_client_that_leaves_during_its_response_frees_its_connection(previous: int) -> None:
    route = BlockingRoute()
    with serving({**ROUTES, "/blocking": route}, Limits(max_connections=1)) as server, ExitStack() as stack:
        client = Client(stack, server.address)
        for _ in range(previous):
            client.request()
        client.socket.sendall(b"GET /blocking HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert route.entered.acquire(timeout=PATIENCE_S)
        client.socket.close()
        route.release.set()

        def is_served() -> bool:
            try:
                return ask(server.address, "/").status == 200
            except (OSError, http.client.HTTPException):
                return False

        wait_until(is_served)


# ---------------------------------------------------------------------------- idle connections


def test_an_idle_connection_closes_after_its_timeout() -> None:
    limits = Limits(client_timeout_s=60, idle_timeout_s=0.2)
    with serving(ROUTES, limits) as server, ExitStack() as stack:
        client = Client(stack, server.address)
        start_s = time.monotonic()
        client.request()
        client.request()
        assert client.rest() == b""
        assert 0.1 < time.monotonic() - start_s < 30


def test_an_idle_connection_outlives_the_client_timeout() -> None:
    limits = Limits(client_timeout_s=0.2, idle_timeout_s=60)
    with serving(ROUTES, limits) as server, ExitStack() as stack:
        client = Client(stack, server.address)
        for _ in range(3):
            assert client.request().endswith(b"ok ")
            time.sleep(0.4)
        client.socket.sendall(b"GET /")  # from here on it is receiving a request
        assert b" 200 " not in client.rest()


def test_at_the_connection_limit_an_idle_connection_is_closed_first(caplog: pytest.LogCaptureFixture) -> None:
    limits = Limits(client_timeout_s=60, max_connections=3)
    listener = socket.create_server(("127.0.0.1", 0))
    address = Address("127.0.0.1", listener.getsockname()[1])
    with (
        running(event_loop(listener, ROUTES, limits)) as loop,
        ExitStack() as stack,
        caplog.at_level(logging.INFO),
    ):
        slow = Client(stack, address, sent=b"GET /")
        older, newer = Client(stack, address), Client(stack, address)
        # A client may be faster than the event loop, which has to see them idle in this order.
        older.request()
        wait_until(lambda: len(loop._idle) == 1)
        newer.request()
        wait_until(lambda: len(loop._idle) == 2)
        assert ask(address, "/").status == 200
        assert older.rest() == b""
        assert newer.request().endswith(b"ok ")
        assert slow.request(b" HTTP/1.1\r\nHost: localhost\r\n\r\n").endswith(b"ok ")
    assert caplog.messages == []


def test_idle_connections_need_no_thread() -> None:
    with serving(ROUTES) as server, ExitStack() as stack:
        clients = [Client(stack, server.address) for _ in range(200)]
        for _ in range(2):
            for client in clients:
                assert client.request().endswith(b"ok ")
        assert worker_count() <= 4
        for client in clients:
            client.socket.sendall(GET)
        assert all(client.response().endswith(b"ok ") for client in clients)


def test_closing_the_server_closes_idle_connections_at_once() -> None:
    with ExitStack() as stack:
        with serving(ROUTES) as server:
            clients = [Client(stack, server.address) for _ in range(5)]
            for client in clients[:4]:
                client.request()
                client.request()
            start_s = time.monotonic()
        assert time.monotonic() - start_s < 5
        assert [client.rest() for client in clients] == [b""] * 5


def test_from_the_second_request_on_nothing_is_registered_and_the_event_loop_is_not_woken_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    loop = event_loop(listener, ROUTES, PATIENT)
    calls: list[str] = []

    def recorded(method: Callable[..., None]) -> Callable[..., None]:
        def record(*arguments: object) -> None:
            calls.append(method.__name__)
            method(*arguments)

        return record

    for method in (loop._watch, loop._unwatch, loop._wake_up):
        monkeypatch.setattr(loop, method.__name__, recorded(method))
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        with ExitStack() as stack:
            client = Client(stack, Address("127.0.0.1", listener.getsockname()[1]))
            for number in range(6):
                client.request()
                wait_until(lambda: loop._results.qsize() or loop._idle)  # the client may be faster than the worker
                time.sleep(0.02)
                if number == 1:
                    calls.clear()
            assert calls == ["_watch"] * 4  # which finds the connection registered
    finally:
        loop.close()
        thread.join(PATIENCE_S)


# ---------------------------------------------------------------------------- with TLS and passwords


def test_one_tls_handshake_is_enough_for_many_requests(pki: Pki) -> None:
    with serving(ROUTES, web_config=pki.config()) as server:
        connection = http.client.HTTPSConnection(
            server.address.host, server.address.port, timeout=PATIENCE_S, context=pki.client()
        )
        sockets = []
        for number in range(5):
            connection.request("GET", f"/?{number}")
            sockets.append(connection.sock)
            assert connection.getresponse().read() == b"ok %d" % number
        assert len(set(map(id, sockets))) == 1
        connection.close()


def test_bytes_that_tls_has_buffered_are_the_next_request(pki: Pki) -> None:
    """A request of the largest size: no event comes for what TLS has read beyond its end."""
    line = b"GET /?large HTTP/1.1\r\nHost: localhost\r\n"
    left = 32 * 1024 - len(line) - 3 * len(b"X: \r\n") - 2
    sizes = (left // 3, left // 3, left - 2 * (left // 3))
    raw = line + b"".join(b"X: %s\r\n" % (b"x" * size) for size in sizes) + b"\r\n"
    assert len(raw) == 32 * 1024
    with serving(ROUTES, web_config=pki.config()) as server, ExitStack() as stack:
        client = Client(stack, server.address)
        client.socket = stack.enter_context(pki.client().wrap_socket(client.socket, server_hostname="127.0.0.1"))
        client.socket.sendall(raw[:100])  # so that the request ends within a TLS record
        assert client.request(raw[100:] + b"GET /?next HTTP/1.1\r\nHost: localhost\r\n\r\n").endswith(b"ok large")
        assert client.response().endswith(b"ok next")


def test_a_changed_web_configuration_applies_to_open_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("otel_gpu.web.access_policy._CHECK_S", 0.01)
    caplog.set_level(logging.INFO)
    path = tmp_path / "web.yml"
    write_atomically(path, f"basic_auth_users:\n  alice: {bcrypt_hash('right')}\n")
    with serving(ROUTES, web_config=path) as server, ExitStack() as stack:
        client = Client(stack, server.address)
        for _ in range(2):
            assert client.request(GET_AS_ALICE)[9:12] == b"200"
        write_atomically(path, f"basic_auth_users:\n  alice: {bcrypt_hash('other')}\n")
        wait_until(lambda: "the web configuration has changed and is applied" in caplog.messages)
        client.socket.sendall(GET_AS_ALICE)
        assert client.rest() == b"", "a client repeats an unanswered request on a new connection"
        assert Client(stack, server.address).request(GET_AS_ALICE)[9:12] == b"401"
