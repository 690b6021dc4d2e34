"""HTTP whose answers come within the timeout as a whole.

Python's sockets, and with them ``requests``, have a timeout for each read: who answers byte by byte is never late.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import TYPE_CHECKING, Any

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


def left_s(until_s: float) -> float:
    """Seconds until a moment of the monotonic clock; TimeoutError after it."""
    left = until_s - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


class _Stream(io.RawIOBase):
    """What came of a socket already, and then what it reads until ``until_s``."""

    def __init__(self, sock: socket.socket, inner: io.RawIOBase, until_s: float, already: bytes) -> None:
        self._sock = sock
        self._inner = inner
        self._until_s = until_s
        self._already = already

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        if self._already:
            room = memoryview(buffer).cast("B")
            part, self._already = self._already[: len(room)], self._already[len(room) :]
            room[: len(part)] = part
            return len(part)
        self._sock.settimeout(left_s(self._until_s))
        return self._inner.readinto(buffer)

    def close(self) -> None:
        self._inner.close()
        super().close()


class TimelyResponse(http.client.HTTPResponse):
    """Reads status, headers and body within the timeout that its socket has at the start, ``already`` of it read."""

    def __init__(self, sock: socket.socket, *arguments: Any, already: bytes = b"", **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        timeout_s = sock.gettimeout()
        if timeout_s is not None:
            inner = self.fp.detach()
            self.fp = io.BufferedReader(_Stream(sock, inner, time.monotonic() + timeout_s, already))


class _Http(HTTPConnection):
    response_class = TimelyResponse


class _Https(HTTPSConnection):
    response_class = TimelyResponse


def bound_answers(pool: HTTPConnectionPool) -> None:
    """Let a pool make such connections: with ``Timeout(total=…)``, connecting, sending and the answer share one time.

    By then urllib3 has given the socket what is left of the total.
    """
    pool.ConnectionCls = _Https if pool.scheme == "https" else _Http
