"""Limits that hold whatever clients do, over real sockets."""

from __future__ import annotations

import errno
import logging
import select
import socket
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from otel_gpu.config.values import Address
from otel_gpu.web.bodies import Bodies, CycleBody
from otel_gpu.web.request import Request
from otel_gpu.web.response import Response
from otel_gpu.web.router import Route
from otel_gpu.web.server import Limits, WebServer, limits_within
from tests.unit.web.harness import HTTP_1_0, MIB, BlockingRoute, connect, event_loop, read_to_end, serving, wait_until
from tests.unit.web.pki import Pki
from tests.web import ANY_PORT, PATIENCE_S, ask, say

SMALL = 4096
"""A receive buffer for a client that reads hardly anything by itself."""


def test_clients_that_read_nothing_hold_no_worker_and_limited_memory() -> None:
    calls: list[int] = []

    def large(_: Request) -> Response:
        calls.append(1)
        return Response(b"x" * (16 * MIB + len(calls)))  # a different body for each request

    limits = Limits(client_timeout_s=60, stalled_s=0.2, max_threads=1)
    routes: Mapping[str, Route] = {"/large": large, "/": lambda _: Response("ok")}
    bodies = Bodies(33 * MIB)
    with serving(routes, limits, bodies=bodies) as server, ExitStack() as stack:
        request = b"GET /large HTTP/1.0\r\n\r\n"
        clients = [connect(stack, server.address, request, receive_bytes=SMALL) for _ in range(6)]
        # Two of them fill the memory. Others wait for the busy timeout, and a small response does not wait.
        assert ask(server.address, "/").body == "ok"
        poll = select.poll()
        for client in clients:
            poll.register(client, select.POLLERR)
        wait_until(lambda: len(poll.poll(0)) >= 2)
        assert len(calls) >= 4
        assert bodies.used_bytes <= 33 * MIB


class Cycles:
    """A route whose body of 8 MiB is shared by all clients of a cycle."""

    def __init__(self, bodies: Bodies) -> None:
        self.cycle = 1
        self._bodies = bodies

    def route(self, request: Request) -> Response:
        cycle = self.cycle
        return Response(CycleBody(self._bodies, request.path, cycle, lambda: [b"%d" % cycle, b"x" * (8 * MIB)]))


def test_clients_of_old_cycles_are_closed_first_for_a_response_that_waits_for_memory() -> None:
    bodies = Bodies(25 * MIB)
    cycles = Cycles(bodies)
    limits = Limits(client_timeout_s=60, stalled_s=0.1)
    with serving({"/": cycles.route, "/other": cycles.route}, limits, bodies=bodies) as server, ExitStack() as stack:
        held = []
        for cycles.cycle in (1, 2, 3):
            held.append(connect(stack, server.address, HTTP_1_0, receive_bytes=SMALL))
            assert held[-1].recv(1) == b"H"
        other = ask(server.address, "/other").body  # a body more of the newest cycle: one has to go
        assert other.startswith("3x")
        assert bodies.used_bytes <= 25 * MIB
        lengths = [len(read_to_end(client)) for client in held]
    assert lengths[0] < 8 * MIB < min(lengths[1:])


def test_an_honest_scraper_is_served_in_every_cycle_beside_clients_that_read_nothing() -> None:
    bodies = Bodies(20 * MIB)
    cycles = Cycles(bodies)
    limits = Limits(client_timeout_s=60, stalled_s=0.1)
    with serving({"/": cycles.route}, limits, bodies=bodies) as server, ExitStack() as stack:
        for cycles.cycle in range(1, 11):
            for _ in range(5):
                connect(stack, server.address, HTTP_1_0, receive_bytes=SMALL)
            answer = ask(server.address, "/")
            assert (answer.status, len(answer.body)) == (200, 8 * MIB + len(str(cycles.cycle)))
            assert bodies.used_bytes <= 20 * MIB


def test_a_response_for_which_there_is_never_room_becomes_503() -> None:
    bodies = Bodies(MIB)
    limits = Limits(client_timeout_s=0.3)
    with serving({"/": Cycles(bodies).route}, limits, bodies=bodies) as server:
        answer = ask(server.address, "/")
    assert (answer.status, answer.body) == (503, "too many responses at a time; try again\n")
    assert answer.headers["Retry-After"] == "5"


def test_all_listeners_of_a_server_share_its_limits() -> None:
    bodies = Bodies(12 * MIB)
    cycles = Cycles(bodies)
    server = WebServer(limits=Limits(client_timeout_s=60, max_connections=2, stalled_s=0.1), bodies=bodies)
    first, second = (server.listen(ANY_PORT, {"/": cycles.route}).address for _ in range(2))
    server.start()
    try:
        with ExitStack() as stack:
            slow = connect(stack, first, HTTP_1_0, receive_bytes=SMALL)
            assert slow.recv(1) == b"H"
            cycles.cycle = 2
            assert ask(second, "/").status == 200
            assert len(read_to_end(slow)) < 8 * MIB
            silent = [connect(stack, address) for address in (first, second, first)]
            wait_until(lambda: select.select(silent, [], [], 0)[0])  # one of three is closed
            assert ask(second, "/").status == 200
            wait_until(lambda: len(select.select(silent, [], [], 0)[0]) >= 2)
    finally:
        server.stop()


def test_a_client_that_reads_nothing_is_closed_for_a_new_one_before_one_that_reads() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    loop = event_loop(listener, {}, Limits(max_connections=2, client_timeout_s=60))
    with ExitStack() as stack:
        address = Address("127.0.0.1", listener.getsockname()[1])
        for _ in range(2):
            connect(stack, address)
            loop._accept(loop._sites[0])
        slow_but_reading, silent = loop._active
        silent.progress_s -= 1
        connect(stack, address)
        loop._accept(loop._sites[0])
        assert slow_but_reading in loop._active
        assert silent not in loop._active
        loop.close()
        loop.run()  # only cleans up


@pytest.mark.parametrize(
    ("descriptors", "connections", "streams"),
    [(65_536, 512, 64), (1024, 512, 64), (400, 115, 28), (64, 12, 3), (1, 1, 1)],
)
def test_connections_leave_descriptors_for_everything_else(descriptors: int, connections: int, streams: int) -> None:
    limits = limits_within(descriptors)
    assert (limits.max_connections, limits.max_streams) == (connections, streams)


def test_the_number_of_workers_is_limited_and_other_requests_wait() -> None:
    route = BlockingRoute()
    with serving({"/": route}, Limits(max_threads=2)) as server, ExitStack() as stack:
        clients = [connect(stack, server.address, HTTP_1_0) for _ in range(6)]
        assert route.entered.acquire(timeout=PATIENCE_S)
        assert route.entered.acquire(timeout=PATIENCE_S)
        assert not route.entered.acquire(timeout=0.2)  # no third worker
        route.release.set()
        assert [read_to_end(client).endswith(b"\r\n\r\ndone\n") for client in clients] == [True] * 6


def test_one_worker_answers_any_number_of_simultaneous_requests() -> None:
    """A free worker wakes up the event loop only if a request waits. One that arrives then must not be lost."""
    limits = Limits(max_threads=1, client_timeout_s=60)
    with serving({"/": lambda _: Response("ok")}, limits) as server:
        for _ in range(20):
            with ExitStack() as stack:
                clients = [connect(stack, server.address, HTTP_1_0) for _ in range(20)]
                assert [read_to_end(client).endswith(b"\r\n\r\nok") for client in clients] == [True] * 20


def test_a_slow_reader_does_not_occupy_the_only_worker() -> None:
    body = b"x" * (16 * MIB)
    routes: Mapping[str, Route] = {"/large": lambda _: Response(body), "/": lambda _: Response("ok")}
    with serving(routes, Limits(max_threads=1, client_timeout_s=60)) as server, ExitStack() as stack:
        slow = connect(stack, server.address, b"GET /large HTTP/1.0\r\n\r\n", receive_bytes=SMALL)
        assert slow.recv(1) == b"H"
        for _ in range(5):
            assert ask(server.address, "/").body == "ok"
        assert read_to_end(slow).endswith(body)


def test_a_request_with_a_worker_is_never_dropped_for_a_new_connection() -> None:
    route = BlockingRoute()
    with serving({"/": route}, Limits(max_connections=2, client_timeout_s=60)) as server, ExitStack() as stack:
        clients = [connect(stack, server.address, HTTP_1_0) for _ in range(2)]
        for _ in clients:
            assert route.entered.acquire(timeout=PATIENCE_S)
        assert read_to_end(connect(stack, server.address)) == b""  # no connection may be dropped for it
        route.release.set()
        assert [read_to_end(client).endswith(b"done\n") for client in clients] == [True] * 2


def test_a_route_may_take_longer_than_the_client_timeout() -> None:
    route = BlockingRoute()
    with serving({"/": route}, Limits(client_timeout_s=0.1)) as server, ExitStack() as stack:
        client = connect(stack, server.address, HTTP_1_0)
        assert route.entered.acquire(timeout=PATIENCE_S)
        assert read_to_end(connect(stack, server.address)) == b""  # a silent client times out meanwhile
        route.release.set()
        assert read_to_end(client).endswith(b"done\n")


def test_closing_the_server_closes_connections_with_a_worker_and_without() -> None:
    route = BlockingRoute()
    with ExitStack() as stack:
        with serving({"/": route}) as server:
            clients = [connect(stack, server.address, HTTP_1_0), connect(stack, server.address)]
            assert route.entered.acquire(timeout=PATIENCE_S)
        route.release.set()
        assert [read_to_end(client) for client in clients] == [b"", b""]


def test_a_request_may_arrive_byte_by_byte() -> None:
    with serving({"/": lambda _: Response("ok")}, Limits()) as server, ExitStack() as stack:
        client = connect(stack, server.address)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"GET / HTTP/1.0\r\nA: b\r\n\r\n":
            client.sendall(bytes([byte]))
        assert read_to_end(client).endswith(b"\r\n\r\nok")


# ---------------------------------------------------------------------------- slow clients


@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "plain"])
@pytest.mark.parametrize("sent", [b"", b"\x16\x03", b"GET / HTTP/1.0\r\nX: "])
def test_an_incomplete_request_times_out(pki: Pki, tls: bool, sent: bytes) -> None:
    config, limits = pki.config() if tls else None, Limits(client_timeout_s=0.2)
    with serving(limits=limits, web_config=config) as server, ExitStack() as stack:
        client = connect(stack, server.address, sent)
        while client.recv(65536):  # an alert or an error response may come first
            pass


def test_the_timeout_is_for_the_whole_request_not_for_each_byte() -> None:
    with serving(limits=Limits(client_timeout_s=0.3)) as server, ExitStack() as stack:
        client = connect(stack, server.address, b"GET / HTTP/1.0\r\n")
        client.settimeout(0.1)
        for _ in range(300):
            try:
                client.sendall(b"x")
                assert client.recv(1) == b""
                break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("the request does not time out")


def test_at_the_connection_limit_the_slowest_is_closed_and_one_warning_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = Limits(client_timeout_s=30, max_connections=2)
    with serving(limits=limits) as server, ExitStack() as stack, caplog.at_level(logging.INFO):
        silent = [connect(stack, server.address) for _ in range(4)]
        assert [ask(server.address, "/").status for _ in range(3)] == [200] * 3
        assert [client.recv(1) for client in silent[:3]] == [b""] * 3
    assert caplog.messages == ["limit of 2 connections reached; each new one closes the slowest (logged once)"]


def test_endless_headers_are_rejected() -> None:
    header = b"X: %s\r\n" % (b"x" * 60_000)
    endless = b"GET / HTTP/1.0\r\n" + header * 3
    with serving() as server:
        # No more than the server reads: unread bytes would turn the close into a reset.
        assert say(server.address, endless[: 32 * 1024]).startswith(b"HTTP/1.1 431 ")
        assert ask(server.address, "/").status == 200


# ---------------------------------------------------------------------------- file descriptors


class ExhaustedListener(socket.socket):
    """A listener whose first calls of accept() find no file descriptor left."""

    failures = 3

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_without_a_file_descriptor_the_server_waits_until_there_is_one() -> None:
    listener = ExhaustedListener()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    address = Address("127.0.0.1", listener.getsockname()[1])
    loop = event_loop(listener, {"/": lambda _: Response("ok")}, Limits())
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        assert ask(address, "/").body == "ok"
        assert listener.failures == 0
    finally:
        loop.close()
        thread.join(PATIENCE_S)


def test_a_late_event_of_a_closed_connection_does_not_affect_the_next_owner_of_its_descriptor() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    loop = event_loop(listener, {}, Limits(max_connections=1, client_timeout_s=60))
    with ExitStack() as stack:
        address = Address("127.0.0.1", listener.getsockname()[1])
        connect(stack, address)
        loop._accept(loop._sites[0])
        (first,) = loop._active
        connect(stack, address)
        loop._accept(loop._sites[0])  # replaces the first
        (second,) = loop._active
        second.descriptor = first.descriptor  # as the kernel may assign it
        loop._advance(first)
        assert list(loop._active) == [second]
        second.descriptor = second.socket.fileno()
        loop.close()
        loop.run()  # only cleans up
