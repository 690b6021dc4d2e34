"""Connections that are kept for the next request, over real sockets."""

from __future__ import annotations

import http.client
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path

import bcrypt
import pytest

from otel_gpu.values import Address
from otel_gpu.web.access_policy import Guard
from otel_gpu.web.reception import Reception
from otel_gpu.web.router import Site
from otel_gpu.web.server import Limits, Request, Response, Route, WebServer
from tests.unit.web.pki import Pki
from tests.unit.web.pki import serving as serving_tls
from tests.web import PATIENCE_S, ask

AGAIN = b"GET / HTTP/1.1\r\nHost: node\r\n\r\n"
PATIENT = Limits(slowest_client_s=60)


class Slow:
    """A route that answers when it is told to, and counts who waits for it."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.waiting = threading.Semaphore(0)

    def __call__(self, _: Request) -> Response:
        self.waiting.release()
        assert self.go_on.wait(PATIENCE_S)
        return Response("at last\n")


def broken(_: Request) -> Response:
    raise RuntimeError


ROUTES: Mapping[str, Route] = {
    "/": lambda request: Response(f"ok {request.query}"),
    "/large": lambda _: Response(b"x" * (16 << 20)),
    "/sad": lambda _: Response("not now", status=HTTPStatus.SERVICE_UNAVAILABLE),
    "/broken": broken,
}


@contextmanager
def serving(limits: Limits = PATIENT, routes: Mapping[str, Route] = ROUTES) -> Iterator[Address]:
    server = WebServer(Address("127.0.0.1", 0), routes, limits=limits)
    server.start()
    try:
        yield server.address
    finally:
        server.close()


class Client:
    """One connection, on which it asks and reads one answer at a time."""

    def __init__(self, stack: ExitStack, address: Address, *, first: bytes = b"") -> None:
        self.socket = stack.enter_context(socket.create_connection((address.host, address.port), PATIENCE_S))
        self.socket.sendall(first)
        self._ahead = b""  # of the next answer, which may come with the one before

    def ask(self, raw: bytes = AGAIN) -> bytes:
        self.socket.sendall(raw)
        return self.hear(head_only=raw.startswith(b"HEAD"))

    def hear(self, *, head_only: bool = False) -> bytes:
        """An answer, head and body."""
        heard, self._ahead = self._ahead, b""
        while b"\r\n\r\n" not in heard:
            chunk = self.socket.recv(65536)
            assert chunk, heard
            heard += chunk
        head, _, body = heard.partition(b"\r\n\r\n")
        length = 0 if head_only else int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
        parts, self._ahead = [body[:length]], body[length:]
        while (left := length - sum(map(len, parts))) > 0:
            chunk = self.socket.recv(left)
            assert chunk, heard
            parts.append(chunk)
        return head + b"\r\n\r\n" + b"".join(parts)

    def rest(self) -> bytes:
        """All that still comes until the connection ends."""
        heard, self._ahead = self._ahead, b""
        try:
            while chunk := self.socket.recv(65536):
                heard += chunk
        except ConnectionError:
            pass
        return heard


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def test_one_connection_is_enough_for_many_requests() -> None:
    with serving() as address, ExitStack() as stack:
        client = Client(stack, address)
        for number in range(20):
            answered = client.ask(b"GET /?%d HTTP/1.1\r\n\r\n" % number)
            assert answered.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"Connection:" not in answered
            assert answered.endswith(b"\r\n\r\nok %d" % number)


def test_pythons_own_client_keeps_it() -> None:
    with serving() as address:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=PATIENCE_S)
        used = []
        for path in ("/", "/large", "/"):
            connection.request("GET", path)
            used.append(connection.sock)
            assert connection.getresponse().read()
        assert len(set(map(id, used))) == 1
        connection.close()


def test_after_a_head_comes_what_is_asked_next() -> None:
    with serving() as address, ExitStack() as stack:
        client = Client(stack, address)
        assert client.ask(b"HEAD / HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\n")
        assert client.ask().endswith(b"\r\n\r\nok ")


def test_after_an_answer_that_was_taken_in_slowly_too() -> None:
    with serving() as address, ExitStack() as stack:
        client = Client(stack, address, first=b"GET /large HTTP/1.1\r\n\r\n")
        time.sleep(0.05)
        assert len(client.hear()) > 16 << 20
        assert len(client.ask(b"GET /large HTTP/1.1\r\n\r\n")) > 16 << 20
        assert client.ask().endswith(b"\r\n\r\nok ")


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"200"),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"200"),
        (b"GET /none HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /sad HTTP/1.1\r\n\r\n", b"503"),
        (b"GET /broken HTTP/1.1\r\n\r\n", b"500"),
        (b"POST / HTTP/1.1\r\n\r\n", b"405"),
        (b"BREW / HTTP/1.1\r\n\r\n", b"501"),
        (b"GET / HTTP/2.0\r\n\r\n", b"505"),
        (b"GET / HTTP/1.1\r\nA : b\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 66_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n", b"431"),
    ],
)
@pytest.mark.parametrize("before", [0, 2])
def test_who_wants_no_more_has_a_body_or_is_refused_is_let_go(raw: bytes, status: bytes, before: int) -> None:
    with serving() as address, ExitStack() as stack:
        client = Client(stack, address)
        for _ in range(before):
            client.ask()
        answered = client.ask(raw)
        assert answered[9:12] == status
        assert b"\r\nConnection: close\r\n" in answered
        assert client.rest() == b""


def test_a_blank_line_ends_it() -> None:
    with serving() as address, ExitStack() as stack:
        client = Client(stack, address)
        client.ask()
        client.socket.sendall(b"\r\n" + AGAIN)
        assert client.rest() == b""


def test_of_requests_that_come_at_once_the_first_is_answered_and_says_that_it_is_the_last() -> None:
    with serving() as address, ExitStack() as stack:
        client = Client(stack, address)
        client.ask()
        assert b"\r\nConnection: close\r\n" in client.ask(b"GET /?1 HTTP/1.1\r\n\r\nGET /?2 HTTP/1.1\r\n\r\n")
        assert client.rest() == b""


@pytest.mark.parametrize("before", [0, 2])
def test_what_is_asked_while_an_answer_is_made_is_answered_after_it_and_meanwhile_costs_nothing(before: int) -> None:
    slow = Slow()
    with serving(routes={**ROUTES, "/slow": slow}) as address, ExitStack() as stack:
        client = Client(stack, address)
        for _ in range(before):
            client.ask()
        client.socket.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
        assert slow.waiting.acquire(timeout=PATIENCE_S)
        client.socket.sendall(b"GET /?next HTTP/1.1\r\n\r\n")
        began_s = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - began_s < 0.25
        slow.go_on.set()
        assert client.hear().endswith(b"at last\n")
        assert client.hear().endswith(b"ok next")
        assert client.ask().endswith(b"ok ")


@pytest.mark.parametrize("before", [0, 2])
def test_one_who_leaves_while_its_answer_is_made_leaves_nothing_behind(before: int) -> None:
    slow = Slow()
    with serving(Limits(most_connections=1), {**ROUTES, "/slow": slow}) as address, ExitStack() as stack:
        client = Client(stack, address)
        for _ in range(before):
            client.ask()
        client.socket.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
        assert slow.waiting.acquire(timeout=PATIENCE_S)
        client.socket.close()
        slow.go_on.set()
        deadline_s = time.monotonic() + PATIENCE_S
        while True:  # its place is free when somebody has noticed
            try:
                assert ask(address, "/").status == 200
                break
            except (OSError, http.client.HTTPException):
                assert time.monotonic() < deadline_s


# ---------------------------------------------------------------------------- those who rest


def test_who_rests_is_let_go_when_its_time_is_over() -> None:
    with serving(Limits(slowest_client_s=60, resting_client_s=0.2)) as address, ExitStack() as stack:
        client = Client(stack, address)
        began_s = time.monotonic()
        client.ask()
        client.ask()
        assert client.rest() == b""
        assert 0.1 < time.monotonic() - began_s < 30


def test_who_rests_may_do_so_for_longer_than_one_who_asks_may_take() -> None:
    with serving(Limits(slowest_client_s=0.2, resting_client_s=60)) as address, ExitStack() as stack:
        client = Client(stack, address)
        for _ in range(3):
            assert client.ask().endswith(b"ok ")
            time.sleep(0.4)
        client.socket.sendall(b"GET /")  # from here on it asks
        assert b" 200 " not in client.rest()


def test_for_a_newcomer_one_who_rests_is_let_go_before_anybody_else(caplog: pytest.LogCaptureFixture) -> None:
    with (
        serving(Limits(slowest_client_s=60, most_connections=3)) as address,
        ExitStack() as stack,
        caplog.at_level(logging.INFO),
    ):
        silent = Client(stack, address, first=b"GET /")
        older, newer = Client(stack, address), Client(stack, address)
        for client in (older, newer):
            client.ask()
        assert ask(address, "/").status == 200
        assert older.rest() == b""
        assert newer.ask().endswith(b"ok ")
        assert silent.ask(b" HTTP/1.1\r\n\r\n").endswith(b"ok ")
    assert caplog.messages == []


def test_however_many_rest_they_cost_no_thread_and_are_answered_when_they_ask() -> None:
    with serving() as address, ExitStack() as stack:
        clients = [Client(stack, address) for _ in range(200)]
        for _ in range(2):
            for client in clients:
                assert client.ask().endswith(b"ok ")
        assert sum(thread.name == "otel-gpu-web-answer" for thread in threading.enumerate()) <= 4
        for client in clients:
            client.socket.sendall(AGAIN)
        assert all(client.hear().endswith(b"ok ") for client in clients)


def test_who_rests_is_let_go_at_once_when_the_server_ends() -> None:
    with ExitStack() as stack:
        with serving() as address:
            clients = [Client(stack, address) for _ in range(5)]
            for client in clients[:4]:
                client.ask()
                client.ask()
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 5
        assert [client.rest() for client in clients] == [b""] * 5


def test_from_the_second_request_on_nothing_is_looked_for_anew_and_nobody_woken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    guard = Guard()
    reception = Reception(listener, Site(ROUTES, {}), lambda: guard, PATIENT)
    done: list[str] = []

    def noted(each: Callable[..., None]) -> Callable[..., None]:
        def noting(*arguments: object) -> None:
            done.append(each.__name__)
            each(*arguments)

        return noting

    for each in (reception._look_for, reception._look_away, reception._wake_up):
        monkeypatch.setattr(reception, each.__name__, noted(each))
    thread = threading.Thread(target=reception.run)
    thread.start()
    try:
        with ExitStack() as stack:
            client = Client(stack, Address("127.0.0.1", listener.getsockname()[1]))
            for asked in range(6):
                client.ask()
                until(lambda: reception._answered.qsize() or reception._resting)  # a client may be quicker than that
                time.sleep(0.02)  # and than whoever looks whether somebody waits for it
                if asked == 1:
                    done.clear()
            assert done == ["_look_for"] * 4  # which finds that it is looked for
    finally:
        reception.close()
        thread.join(PATIENCE_S)


# ---------------------------------------------------------------------------- behind TLS and passwords


def test_over_tls_there_is_one_handshake(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    with serving_tls(pki.config()) as server:
        connection = http.client.HTTPSConnection(
            server.address.host, server.address.port, timeout=PATIENCE_S, context=pki.client()
        )
        used = []
        for number in range(5):
            connection.request("GET", f"/?{number}")
            used.append(connection.sock)
            assert connection.getresponse().read() == b"hello %d\n" % number
        assert len(set(map(id, used))) == 1
        connection.close()


def test_over_tls_what_was_read_along_with_a_request_is_the_next_one(tmp_path: Path) -> None:
    """A request as large as one may be: what TLS has read beyond its end is told by no event."""
    pki = Pki(tmp_path)
    line = b"GET /?large HTTP/1.1\r\n"
    left = 128 * 1024 - len(line) - 3 * len(b"X: \r\n") - 2
    sizes = (left // 3, left // 3, left - 2 * (left // 3))
    raw = line + b"".join(b"X: %s\r\n" % (b"x" * size) for size in sizes) + b"\r\n"
    assert len(raw) == 128 * 1024
    with serving_tls(pki.config()) as server, ExitStack() as stack:
        client = Client(stack, server.address)
        client.socket = stack.enter_context(pki.client().wrap_socket(client.socket, server_hostname="127.0.0.1"))
        client.socket.sendall(raw[:100])  # so that the end of the request is within a record
        assert client.ask(raw[100:] + b"GET /?next HTTP/1.1\r\n\r\n").endswith(b"hello large\n")
        assert client.hear().endswith(b"hello next\n")


def test_what_changes_in_the_configuration_counts_for_those_who_are_there_already(tmp_path: Path) -> None:
    path = tmp_path / "web.yml"

    def allow(password: bytes) -> None:
        hashed = bcrypt.hashpw(password, bcrypt.gensalt(4)).decode()
        (tmp_path / "new").write_text(f"basic_auth_users:\n  alice: {hashed}\n", encoding="utf-8")
        (tmp_path / "new").replace(path)

    allowed = b"GET / HTTP/1.1\r\nAuthorization: Basic YWxpY2U6cmlnaHQ=\r\n\r\n"
    allow(b"right")
    with serving_tls(path) as server, ExitStack() as stack:
        client = Client(stack, server.address)
        for _ in range(2):
            assert client.ask(allowed)[9:12] == b"200"
        allow(b"other")
        client.socket.sendall(allowed)
        assert client.rest() == b"", "it asks again on a new connection, as it was not answered"
        assert Client(stack, server.address).ask(allowed)[9:12] == b"401"


def test_each_request_needs_the_password(tmp_path: Path) -> None:
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users:\n  alice: {bcrypt.hashpw(b'right', bcrypt.gensalt(4)).decode()}\n")
    with serving_tls(path) as server, ExitStack() as stack:
        client = Client(stack, server.address)
        assert client.ask(b"GET / HTTP/1.1\r\nAuthorization: Basic YWxpY2U6cmlnaHQ=\r\n\r\n")[9:12] == b"200"
        assert client.ask()[9:12] == b"401"
        assert client.rest() == b""
