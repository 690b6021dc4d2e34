"""Requests in chunks of any size, through the connection, the parser and the router."""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Sequence
from typing import Final, cast

import bcrypt

from otel_gpu.export.prometheus import choose
from otel_gpu.web.access_policy import AccessPolicy, BasicAuth
from otel_gpu.web.bodies import Bodies
from otel_gpu.web.connection import Connection, Wait
from otel_gpu.web.request import Request
from otel_gpu.web.response import Response
from otel_gpu.web.router import Router
from tests.fuzz.target import ODD_BYTES, Target, mutated

ACCEPT: Final = b"Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\nAccept-Encoding: gzip\r\n"
REQUESTS: Final = (
    b"GET /metrics HTTP/1.1\r\nHost: node:9464\r\n" + ACCEPT + b"User-Agent: Prometheus/2.42\r\n\r\n",
    b"HEAD /?x=1&y=%00 HTTP/1.0\r\nAccept-Encoding: gzip;q=0, *\r\n\r\n",
    b"GET / HTTP/1.1\r\nAuthorization: Basic YWxpY2U6cmlnaHQ=\r\nAccept: */*\r\nAccept: text/*\r\n\r\n",
    b"POST /api HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
    b"GET / HTTP/1.1\r\n\r\n" * 3,
    b"GET /\r\n\r\n",
    b"\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)
PIECES: Final = (
    *ODD_BYTES, b"HTTP/1.1", b"HTTP/9.9", b"HTTP/0.9", b"HTTP/1.1.1", b"HTTP/-1.0", b"HTTP/\xb2.1", b"X: y\r\n",
    b" a: b", b"Authorization: Basic ", b"Accept: ", b";q=", b"A: b\r\n" * 101, b"a" * 66_000,
    b"Expect: 100-continue\r\n", b"Connection: keep-alive\r\n",
)  # fmt: skip
STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")
ALLOWED: Final = {200, 400, 401, 404, 405, 414, 431, 501, 505}


def echo(request: Request) -> Response:
    """Content negotiation as for /metrics, with a body that is compressed."""
    kind = choose(request.headers.get("accept", ""))
    return Response(b"gpu_up 1\n" * 200, kind.value)


ROUTER: Final = Router({"/metrics": echo, "/": lambda _: Response("<p>")}, {"/absent": "not here"}, Bodies())
OPEN: Final = AccessPolicy()
PROTECTED: Final = AccessPolicy(
    auth=BasicAuth({"alice": bcrypt.hashpw(b"right", bcrypt.gensalt(4))}), headers={"X-Frame-Options": "deny"}
)


class _Client:
    """A socket whose client sends these bytes in chunks, and receives everything."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data, self._step = data, step
        self._blocks = False
        self.sent = bytearray()

    @property
    def has_sent_all(self) -> bool:
        return not self._data

    def settimeout(self, seconds: float) -> None:
        pass

    def fileno(self) -> int:
        return 9

    def recv(self, size: int) -> bytes:
        self._blocks = not self._blocks
        if self._blocks:
            raise BlockingIOError
        size = min(size, self._step)
        part, self._data = self._data[:size], self._data[size:]
        return part

    def sendmsg(self, parts: Sequence[bytes]) -> int:
        part = b"".join(parts)[:1000]
        self.sent += part
        return len(part)


def violation(data: bytes) -> str | None:
    """What is wrong with the responses; ``None`` if nothing is."""
    step = 1 + len(data) % 7 if len(data) < 500 else 4096
    policy = PROTECTED if len(data) % 3 == 0 else OPEN
    client = _Client(data, step)
    connection = Connection(cast("socket.socket", client), ROUTER, lambda: policy, 0.0)
    for _ in range(1 + data.count(b"\n\n") + data.count(b"\n\r\n")):  # the maximum number of requests
        while (wait := connection.advance()) is Wait.READABLE:
            pass
        if wait is Wait.CLOSE:
            return None if client.has_sent_all else "closed before everything was read"
        if wait is not Wait.RESPONSE or connection.request is None:
            return f"{wait} instead of a request"
        client.sent.clear()
        response = ROUTER.handle(connection.request, policy)
        connection.start_response(response, 1.0)
        wait = connection.advance()
        if wait is not (Wait.IDLE if response.keep_alive else Wait.CLOSE):
            return f"{wait} after a response with keep_alive={response.keep_alive}"
        if bytes(client.sent) != response.head + response.body.data:
            return "the sent bytes are not the response"
        problem = _ill_formed(response.head, response.body.data)
        if problem is not None or not response.keep_alive:
            return problem or _unclosed(response.head)
    return None


def _unclosed(head: bytes) -> str | None:
    return (
        f"no Connection: close in the last response: {head!r}"
        if head and b"\r\nConnection: close\r\n" not in head
        else None
    )


def _ill_formed(head: bytes, body: bytes) -> str | None:
    found = STATUS.match(head)
    if found is None:  # a blank line has no response
        return f"{head[:80]!r} is not HTTP" if head or body else None
    if int(found[1]) not in ALLOWED:
        return f"status {found[1]!r}"
    fields, end, more = head.partition(b"\r\n\r\n")
    lengths = re.findall(rb"^Content-Length: (\d+)\r?$", fields, re.MULTILINE)
    if not end or more or len(lengths) != 1:
        return f"no end of headers, or not exactly one length: {head!r}"
    if body and int(lengths[0]) != len(body):
        return f"{len(body)} bytes instead of {lengths[0]!r}"
    if b"\n" in fields.replace(b"\r\n", b"") or b"\r" in fields.replace(b"\r\n", b""):
        return f"a stray line end in the headers: {fields!r}"
    return None


def make(rng: random.Random) -> bytes:
    return mutated(rng, REQUESTS, PIECES)


TARGETS: Final = (Target("http", make, violation),)
