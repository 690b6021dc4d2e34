"""Servers and clients for tests over real sockets."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import bcrypt

from otel_gpu.config.values import Address
from otel_gpu.web.access_policy import AccessPolicy
from otel_gpu.web.bodies import Bodies
from otel_gpu.web.request import Request
from otel_gpu.web.response import Response
from otel_gpu.web.router import Route, Router
from otel_gpu.web.server import EventLoop, Limits, Site, WebListener
from tests import web
from tests.web import PATIENCE_S, PATIENT

MIB = 1 << 20
ROUTES: Mapping[str, Route] = {
    "/": lambda request: Response(f"hello {request.query}\n"),
    "/healthz": lambda _: Response("ok\n"),
}
HTTP_1_0 = b"GET / HTTP/1.0\r\n\r\n"


def serving(
    routes: Mapping[str, Route] = ROUTES, limits: Limits = PATIENT, **options: Any
) -> AbstractContextManager[WebListener]:
    """A running server, by default of ROUTES."""
    return web.serving(routes, limits, **options)


def event_loop(listener: socket.socket, routes: Mapping[str, Route], limits: Limits) -> EventLoop:
    """An event loop of one listener, which does not run yet."""
    bodies, policy = Bodies(), AccessPolicy()
    loop = EventLoop(limits, bodies)
    loop.add(Site(listener, Router(routes, {}, bodies), lambda: policy))
    return loop


@contextmanager
def running(loop: EventLoop) -> Iterator[EventLoop]:
    """An event loop that runs in a thread."""
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield loop
    finally:
        loop.close()
        thread.join(PATIENCE_S)


def connect(
    stack: ExitStack, address: Address, request: bytes = b"", *, receive_bytes: int | None = None
) -> socket.socket:
    """A client that has sent ``request``. ``receive_bytes`` limits what the kernel receives before the client reads."""
    client = stack.enter_context(socket.socket())
    if receive_bytes is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(PATIENCE_S)
    client.connect((address.host, address.port))
    client.sendall(request)
    return client


def read_to_end(client: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    chunks = []
    try:
        while chunk := client.recv(65536):
            chunks.append(chunk)
    except ConnectionError:
        pass
    return b"".join(chunks)


def wait_until(condition: Callable[[], object]) -> None:
    """Return when the condition holds; fail if it does not in time."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


class BlockingRoute:
    """A route that responds after ``release``. ``entered`` counts the requests that wait."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.entered = threading.Semaphore(0)

    def __call__(self, _: Request) -> Response:
        self.entered.release()
        assert self.release.wait(PATIENCE_S)
        return Response("done\n")


def basic(user: str, password: str) -> str:
    """The value of an Authorization header."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def bcrypt_hash(password: str, cost: int = 4) -> str:
    """A hash of the lowest cost that bcrypt has, because tests have no secrets."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode()


def write_atomically(path: Path, text: str) -> Path:
    """Replace a file by rename, so that it is another file even within one tick of the clock."""
    draft = path.with_suffix(".new")
    draft.write_text(text, encoding="utf-8")
    return draft.replace(path)


def worker_count() -> int:
    """Worker threads of all servers in this process."""
    return sum(thread.name == "otel-gpu-web-worker" for thread in threading.enumerate())
