"""Asks an HTTP server as a browser would, or ruder."""

from __future__ import annotations

import gzip
import http.client
import socket
import ssl
from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu.values import Address

PATIENCE_S = 30.0


class Answer(NamedTuple):
    """What the server said."""

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
    """One request, one answer, unpacked."""
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
    """Send bytes, close our side, and read until the server closes its own."""
    with socket.create_connection((address.host, address.port), timeout=PATIENCE_S) as connection:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        answered = b""
        while chunk := connection.recv(65536):
            answered += chunk
        return answered
