"""A server for tests, and an HTTP client for well-formed requests and for raw bytes."""

from __future__ import annotations

import gzip
import http.client
import socket
import ssl
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from otel_gpu.config.values import Address
from otel_gpu.web.bodies import Bodies
from otel_gpu.web.router import Route
from otel_gpu.web.server import Limits, WebListener, WebServer

PATIENCE_S = 30.0
ANY_PORT = Address("127.0.0.1", 0)
PATIENT = Limits(client_timeout_s=60)


@contextmanager
def serving(
    routes: Mapping[str, Route],
    limits: Limits = PATIENT,
    *,
    web_config: Path | None = None,
    address: Address = ANY_PORT,
    bodies: Bodies | None = None,
    allowed_hosts: Collection[str] = (),
) -> Iterator[WebListener]:
    """A running server."""
    server = WebServer(limits=limits, bodies=bodies)
    try:
        listener = server.listen(address, routes, web_config, allowed_hosts=allowed_hosts)
        server.start()
        yield listener
    finally:
        server.stop()


class Answer(NamedTuple):
    """A response, decompressed."""

    status: int
    headers: Mapping[str, str]
    body: str


def ask(
    address: Address,
    path: str,
    method: str = "GET",
    *,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """The response to one request."""
    if tls is None:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=PATIENCE_S)
    else:
        connection = http.client.HTTPSConnection(address.host, address.port, timeout=PATIENCE_S, context=tls)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        body = response.read()
        if body and response.getheader("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        return Answer(response.status, dict(response.getheaders()), body.decode("utf-8"))
    finally:
        connection.close()


def say(address: Address, raw: bytes) -> bytes:
    """Send raw bytes, shut down sending, and return everything until the server closes the connection."""
    with socket.create_connection((address.host, address.port), timeout=PATIENCE_S) as connection:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        response = b""
        while chunk := connection.recv(65536):
            response += chunk
        return response
