"""Asks an HTTP server as a browser would, or ruder."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu.values import Address

PATIENCE_S = 30.0


class Answer(NamedTuple):
    """What the server said."""

    status: int
    headers: Mapping[str, str]
    body: str


def ask(address: Address, path: str, method: str = "GET") -> Answer:
    """One request, one answer."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=PATIENCE_S)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read().decode("utf-8"))
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
