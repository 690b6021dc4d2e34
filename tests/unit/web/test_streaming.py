"""Responses that continue with frames, over real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from otel_gpu.web.bodies import Body
from otel_gpu.web.request import Request
from otel_gpu.web.response import Feed, Response, Stream
from otel_gpu.web.server import Limits, WebServer
from tests.unit.web.harness import (
    MIB,
    basic,
    bcrypt_hash,
    connect,
    read_to_end,
    serving,
    wait_until,
    worker_count,
)
from tests.unit.web.pki import Pki
from tests.web import ANY_PORT, PATIENCE_S, ask

LARGE = 8 * MIB
"""More than the kernel buffers for a client that reads nothing."""

GET_EVENTS = b"GET /events HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n"
PATIENT = Limits(client_timeout_s=60, heartbeat_s=60)


class Reader:
    """Reads a stream piece by piece."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self._buffer = bytearray()

    def read_until(self, end: bytes) -> bytes:
        """Everything up to and including ``end``."""
        searched = 0
        while (found := self._buffer.find(end, searched)) < 0:
            searched = max(0, len(self._buffer) - len(end))
            chunk = self.client.recv(MIB)
            assert chunk, f"closed after {self._buffer[-80:]!r}"
            self._buffer += chunk
        read = bytes(self._buffer[: found + len(end)])
        del self._buffer[: found + len(end)]
        return read

    def rest(self) -> bytes:
        """Everything until the server closes the connection."""
        return bytes(self._buffer) + read_to_end(self.client)


class StreamServer:
    """A server whose ``/events`` streams the frames of ``feed`` after ``first;``."""

    def __init__(self, stack: ExitStack, limits: Limits, web_config: Path | None = None) -> None:
        self.feed = Feed()
        self._stack = stack
        routes = {"/events": self._events, "/": lambda _: Response("ok")}
        self.server = WebServer(limits=limits)
        stack.callback(self.server.stop)
        self.address = self.server.listen(ANY_PORT, routes, web_config).address
        self.server.start()

    def publish(self, frame: bytes) -> None:
        """Send a frame to all clients."""
        self.feed.publish(Body(frame))

    def _events(self, _: Request) -> Response:
        return Response(b"first;", "text/event-stream", stream=Stream(self.feed, self.feed.latest))

    def client(self, *, request: bytes = GET_EVENTS, receive_bytes: int | None = None) -> Reader:
        """A client that has sent its request."""
        return Reader(connect(self._stack, self.address, request, receive_bytes=receive_bytes))

    def streaming_client(self, *, receive_bytes: int | None = None) -> Reader:
        """A client that has received ``first;``."""
        client = self.client(receive_bytes=receive_bytes)
        client.read_until(b"first;")
        return client


@contextmanager
def streaming(limits: Limits = PATIENT, web_config: Path | None = None) -> Iterator[StreamServer]:
    with ExitStack() as stack:
        yield StreamServer(stack, limits, web_config)


def test_the_body_comes_at_once_and_each_frame_when_it_is_published() -> None:
    with streaming() as server:
        client = server.client()
        head = client.read_until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\nConnection: close\r\n" in head
        assert b"Content-Type: text/event-stream\r\n" in head
        assert b"Content-Length" not in head
        assert b"Content-Encoding" not in head
        assert client.read_until(b"first;") == b"first;"
        for frame in (b"one;", b"two;", b"three;"):
            server.publish(frame)
            assert client.read_until(b";") == frame


def test_a_frame_goes_to_all_streams_without_a_thread_for_each() -> None:
    with streaming() as server:
        clients = [server.streaming_client() for _ in range(64)]
        server.publish(b"x" * MIB + b";")
        assert {len(client.read_until(b";")) for client in clients} == {MIB + 1}
        assert worker_count() <= Limits().max_threads
        assert ask(server.address, "/").body == "ok"


def test_a_frame_published_while_the_response_is_made_is_not_lost() -> None:
    with ExitStack() as stack:
        feed = Feed()
        feed.publish(Body(b"old;"))

        def events(_: Request) -> Response:
            response = Response(b"first;", "text/event-stream", stream=Stream(feed, feed.latest))
            feed.publish(Body(b"new;"))
            return response

        server = stack.enter_context(serving({"/events": events}, PATIENT))
        client = Reader(connect(stack, server.address, GET_EVENTS))
        assert client.read_until(b"new;").endswith(b"\r\n\r\nfirst;new;")


def test_a_slow_client_gets_the_latest_frame_and_not_those_before() -> None:
    with streaming() as server:
        slow = server.streaming_client(receive_bytes=4096)
        large = b"x" * LARGE + b"large;"
        server.publish(large)
        assert slow.read_until(b"x") == b"x"  # the frame is being sent
        for number in range(100):
            server.publish(b"%d;" % number)
        assert len(slow.read_until(b"large;")) == len(large) - 1
        assert slow.read_until(b";") == b"99;"


def test_a_client_that_does_not_read_is_dropped_and_others_are_served() -> None:
    with streaming(Limits(client_timeout_s=1.5, heartbeat_s=60)) as server:
        stuck, reading = server.streaming_client(receive_bytes=4096), server.streaming_client()
        server.publish(b"x" * LARGE + b";")
        reading.read_until(b";")
        wait_until(lambda: len(server.feed._notify) == 1)
        server.publish(b"next;")
        assert reading.read_until(b"next;") == b"next;"
        assert len(stuck.rest()) < LARGE


def test_a_stream_without_a_frame_outlives_the_client_timeout() -> None:
    with streaming(Limits(client_timeout_s=0.1, heartbeat_s=60)) as server:
        client = server.streaming_client()
        assert server.client(request=b"GET").rest() == b""  # an incomplete request times out meanwhile
        server.publish(b"frame;")
        assert client.read_until(b"frame;") == b"frame;"


def test_beyond_the_stream_limit_a_request_gets_503_until_a_stream_ends() -> None:
    with streaming(Limits(max_streams=2, client_timeout_s=60)) as server:
        clients = [server.streaming_client() for _ in range(2)]
        response = ask(server.address, "/events")
        assert (response.status, response.headers["Retry-After"]) == (503, "5")
        assert response.body == "too many clients of the event stream; try again\n"
        clients[0].client.close()
        wait_until(lambda: len(server.feed._notify) == 1)
        server.streaming_client()


def test_streams_do_not_count_as_connections() -> None:
    with streaming(Limits(max_connections=1, client_timeout_s=60)) as server:
        clients = [server.streaming_client() for _ in range(3)]  # one after the other
        assert ask(server.address, "/").body == "ok"
        server.publish(b"frame;")
        assert [client.read_until(b"frame;") for client in clients] == [b"frame;"] * 3


def test_a_stream_without_a_frame_gets_heartbeats() -> None:
    with streaming(Limits(heartbeat_s=0.05)) as server:
        client = server.streaming_client()
        assert client.read_until(b":\n\n:\n\n") == b":\n\n:\n\n"
        server.publish(b"frame;")
        assert client.read_until(b"frame;").replace(b":\n\n", b"") == b"frame;"
        assert client.read_until(b"\n\n") == b":\n\n"  # the frame is not repeated


def test_a_client_that_closes_its_connection_is_unsubscribed() -> None:
    with streaming() as server:
        client = server.streaming_client()
        assert server.feed.has_subscribers
        client.client.close()
        wait_until(lambda: not server.feed.has_subscribers)
        server.publish(b"frame;")
        assert ask(server.address, "/").body == "ok"


def test_input_during_a_stream_is_discarded() -> None:
    with streaming() as server:
        client = server.streaming_client()
        client.client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        server.publish(b"frame;")
        assert client.read_until(b"frame;") == b"frame;"


def test_a_stream_may_start_on_a_connection_with_earlier_requests() -> None:
    with streaming() as server:
        client = server.client(request=b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for _ in range(2):
            client.read_until(b"\r\n\r\nok")
            client.client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.read_until(b"\r\n\r\nok")
        client.client.sendall(GET_EVENTS)
        client.read_until(b"first;")
        for frame in (b"one;", b"x" * LARGE + b";"):
            server.publish(frame)
            assert client.read_until(b";") == frame
        client.client.close()
        wait_until(lambda: not server.feed.has_subscribers)


def test_closing_the_server_ends_its_streams() -> None:
    with streaming() as server:
        client = server.streaming_client()
        server.server.stop()
        assert client.rest() == b""
        assert not server.feed.has_subscribers


def test_a_head_request_does_not_subscribe() -> None:
    with streaming() as server:
        response = ask(server.address, "/events", "HEAD")
        assert (response.status, response.headers["Content-Type"], response.body) == (200, "text/event-stream", "")
        assert not server.feed.has_subscribers


def test_a_stream_works_over_tls_with_a_password(pki: Pki) -> None:
    config = pki.config(f"basic_auth_users:\n  alice: {bcrypt_hash('right')}\n")
    with streaming(web_config=config) as server:
        assert ask(server.address, "/events", tls=pki.client()).status == 401
        assert not server.feed.has_subscribers
        with socket.create_connection((server.address.host, server.address.port), PATIENCE_S) as plain:
            client = pki.client().wrap_socket(plain, server_hostname="127.0.0.1")
            request = f"GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: {basic('alice', 'right')}\r\n\r\n"
            client.sendall(request.encode())
            reader = Reader(client)
            reader.read_until(b"first;")
            for frame in (b"one;", b"x" * MIB + b";"):
                server.publish(frame)
                assert reader.read_until(b";") == frame
            client.close()
        wait_until(lambda: not server.feed.has_subscribers)
