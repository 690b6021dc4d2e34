"""Answers that go on: frames as they come, however many follow and however slow they are."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import bcrypt

from otel_gpu.values import Address
from otel_gpu.web.feed import Feed, Following
from otel_gpu.web.server import Limits, Request, Response, WebServer
from tests.unit.web.pki import Pki
from tests.web import PATIENCE_S, ask

MIB = 1 << 20
LARGE = 8 * MIB
"""More than the kernel takes in for a client that reads nothing."""

ASK = b"GET /events HTTP/1.1\r\nHost: node\r\nAccept-Encoding: gzip\r\n\r\n"
PATIENT = Limits(slowest_client_s=60, heartbeat_s=60)


class Stage:
    """A server whose ``/events`` follows a feed."""

    def __init__(self, stack: ExitStack, limits: Limits, web_config: Path | None = None) -> None:
        self.feed = Feed()
        self._stack = stack
        routes = {"/events": self._events, "/": lambda _: Response("ok")}
        self.server = WebServer(Address("127.0.0.1", 0), routes, web_config, limits=limits)
        self.server.start()
        stack.callback(self.server.close)

    def _events(self, _: Request) -> Response:
        return Response(b"first;", "text/event-stream", following=Following(self.feed, self.feed.newest))

    def follower(self, *, request: bytes = ASK, receive_bytes: int | None = None) -> Reader:
        """One who has asked, and has had the beginning."""
        client = self._stack.enter_context(socket.socket())
        if receive_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.settimeout(PATIENCE_S)
        client.connect((self.server.address.host, self.server.address.port))
        client.sendall(request)
        return Reader(client)


class Reader:
    """Reads what comes, as far as it is told to."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self._rest = bytearray()

    def until(self, end: bytes) -> bytes:
        """All up to and with this."""
        searched = 0
        while (found := self._rest.find(end, searched)) < 0:
            searched = max(0, len(self._rest) - len(end))
            chunk = self.client.recv(MIB)
            assert chunk, f"ended after {self._rest[-80:]!r}"
            self._rest += chunk
        read = bytes(self._rest[: found + len(end)])
        del self._rest[: found + len(end)]
        return read

    def rest(self) -> bytes:
        """All until the end."""
        try:
            while chunk := self.client.recv(65536):
                self._rest += chunk
        except ConnectionError:
            pass
        return bytes(self._rest)


@contextmanager
def stage(limits: Limits = PATIENT, web_config: Path | None = None) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(stack, limits, web_config)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_who_follows_gets_the_beginning_at_once_and_every_frame_as_it_comes() -> None:
    with stage() as at:
        follower = at.follower()
        head = follower.until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\nConnection: close\r\n" in head
        assert b"Content-Type: text/event-stream\r\n" in head
        assert b"Content-Length" not in head
        assert b"Content-Encoding" not in head
        assert follower.until(b"first;") == b"first;"
        for frame in (b"one;", b"two;", b"three;"):
            at.feed.publish(frame)
            assert follower.until(b";") == frame


def test_one_frame_goes_to_all_and_nobody_costs_a_thread() -> None:
    with stage() as at:
        followers = [at.follower() for _ in range(64)]
        for follower in followers:
            follower.until(b"first;")
        at.feed.publish(b"x" * MIB + b";")
        assert {len(follower.until(b";")) for follower in followers} == {MIB + 1}
        assert sum(thread.name == "otel-gpu-web-answer" for thread in threading.enumerate()) <= Limits().most_threads
        assert ask(at.server.address, "/").body == "ok"


def test_a_frame_that_came_while_the_answer_was_made_is_not_missed() -> None:
    with stage() as at:
        at.feed.publish(b"old;")
        answered = at._events(Request("/events"))
        at.feed.publish(b"new;")
        at.server._reception._site._routes["/events"] = lambda _: answered
        assert at.follower().until(b"new;").endswith(b"\r\n\r\nfirst;new;")


def test_who_is_slow_gets_the_newest_and_not_all_that_came_meanwhile() -> None:
    with stage() as at:
        slow = at.follower(receive_bytes=4096)
        slow.until(b"first;")
        large = b"x" * LARGE + b"large;"
        at.feed.publish(large)
        until(lambda: not at.server._reception._followers)  # it is on its way
        for number in range(100):
            at.feed.publish(b"%d;" % number)
        assert len(slow.until(b"large;")) == len(large)
        assert slow.until(b";") == b"99;"


def test_who_takes_nothing_in_is_dropped_and_the_others_are_served() -> None:
    with stage(Limits(slowest_client_s=1.5, heartbeat_s=60)) as at:
        deaf, awake = at.follower(receive_bytes=4096), at.follower()
        for follower in (deaf, awake):
            follower.until(b"first;")
        at.feed.publish(b"x" * LARGE + b";")
        awake.until(b";")
        until(lambda: len(at.feed._followers) == 1)
        at.feed.publish(b"next;")
        assert awake.until(b"next;") == b"next;"
        assert len(deaf.rest()) < LARGE


def test_who_waits_for_news_may_wait_longer_than_a_client_may_ask() -> None:
    with stage(Limits(slowest_client_s=0.1, heartbeat_s=60)) as at:
        follower = at.follower()
        follower.until(b"first;")
        assert at.follower(request=b"GET").rest() == b""  # meanwhile one who falls silent is let go
        at.feed.publish(b"news;")
        assert follower.until(b"news;") == b"news;"


def test_beyond_the_bound_one_is_told_to_try_again_and_a_place_that_was_left_is_free() -> None:
    with stage(Limits(most_followers=2, slowest_client_s=60)) as at:
        followers = [at.follower() for _ in range(2)]
        for follower in followers:
            follower.until(b"first;")
        answer = ask(at.server.address, "/events")
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        assert answer.body == "as many follow already as may; try again\n"
        followers[0].client.close()
        until(lambda: len(at.feed._followers) == 1)
        assert at.follower().until(b"first;").endswith(b"first;")


def test_those_who_follow_keep_nobody_out() -> None:
    with stage(Limits(most_connections=1, slowest_client_s=60)) as at:
        followers: list[Reader] = []
        for _ in range(3):  # one after the other: only one may ask at a time
            followers.append(at.follower())
            followers[-1].until(b"first;")
        assert ask(at.server.address, "/").body == "ok"
        at.feed.publish(b"still;")
        assert [follower.until(b"still;") for follower in followers] == [b"still;"] * 3


def test_a_comment_is_sent_where_there_is_no_news_and_is_none_itself() -> None:
    with stage(Limits(heartbeat_s=0.05)) as at:
        follower = at.follower()
        follower.until(b"first;")
        assert follower.until(b":\n\n:\n\n") == b":\n\n:\n\n"
        at.feed.publish(b"news;")
        assert follower.until(b"news;").replace(b":\n\n", b"") == b"news;"
        assert follower.until(b"\n\n") == b":\n\n"  # not the news again


def test_who_hangs_up_is_forgotten() -> None:
    with stage() as at:
        follower = at.follower()
        follower.until(b"first;")
        assert at.feed.followed
        follower.client.close()
        until(lambda: not at.feed.followed)
        at.feed.publish(b"nobody hears it")
        assert ask(at.server.address, "/").body == "ok"


def test_what_a_follower_says_has_no_meaning() -> None:
    with stage() as at:
        follower = at.follower()
        follower.until(b"first;")
        follower.client.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        at.feed.publish(b"news;")
        assert follower.until(b"news;") == b"news;"


def test_one_who_has_asked_before_on_the_same_connection_follows_as_well() -> None:
    with stage() as at:
        follower = at.follower(request=b"GET / HTTP/1.1\r\n\r\n")
        for _ in range(2):
            follower.until(b"\r\n\r\nok")
            follower.client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        follower.until(b"\r\n\r\nok")
        follower.client.sendall(ASK)
        follower.until(b"first;")
        for frame in (b"one;", b"x" * LARGE + b";"):
            at.feed.publish(frame)
            assert follower.until(b";") == frame
        follower.client.close()
        until(lambda: not at.feed.followed)


def test_a_server_that_is_closed_ends_it() -> None:
    with stage() as at:
        follower = at.follower()
        follower.until(b"first;")
        at.server.close()
        assert follower.rest() == b""
        assert not at.feed.followed


def test_head_follows_nothing() -> None:
    with stage() as at:
        answer = ask(at.server.address, "/events", "HEAD")
        assert (answer.status, answer.headers["Content-Type"], answer.body) == (200, "text/event-stream", "")
        assert not at.feed.followed


def test_over_tls_and_with_a_password_it_is_the_same(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    config = pki.config(f"basic_auth_users:\n  alice: {hashed}\n")
    with stage(web_config=config) as at:
        assert ask(at.server.address, "/events", tls=pki.client()).status == 401
        assert not at.feed.followed
        password = base64.b64encode(b"alice:right")
        with socket.create_connection((at.server.address.host, at.server.address.port), PATIENCE_S) as plain:
            client = pki.client().wrap_socket(plain, server_hostname="127.0.0.1")
            client.sendall(b"GET /events HTTP/1.1\r\nAuthorization: Basic " + password + b"\r\n\r\n")
            reader = Reader(client)
            reader.until(b"first;")
            for frame in (b"one;", b"x" * MIB + b";"):
                at.feed.publish(frame)
                assert reader.until(b";") == frame
            client.close()
        until(lambda: not at.feed.followed)
