"""HTTP connections whose timeout is for a whole answer.

The timeout of a socket, and so that of ``requests``, is for each read: an answer that arrives byte by byte never
exceeds it.
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


class _DeadlineStream(io.RawIOBase):
    """Reads a socket until ``deadline_s`` (monotonic clock); TimeoutError after that."""

    def __init__(self, sock: socket.socket, inner: io.RawIOBase, deadline_s: float) -> None:
        self._sock = sock
        self._inner = inner
        self._deadline_s = deadline_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left_s)
        return self._inner.readinto(buffer)

    def close(self) -> None:
        self._inner.close()
        super().close()


class _DeadlineResponse(http.client.HTTPResponse):
    """Reads status, headers and body within the timeout that the socket has when the answer begins."""

    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        timeout_s = sock.gettimeout()
        if timeout_s is not None:
            inner = self.fp.detach()
            self.fp = io.BufferedReader(_DeadlineStream(sock, inner, time.monotonic() + timeout_s))


class _Http(HTTPConnection):
    response_class = _DeadlineResponse


class _Https(HTTPSConnection):
    response_class = _DeadlineResponse


def set_answer_deadline(pool: HTTPConnectionPool) -> None:
    """Let a pool open such connections. With ``urllib3.Timeout(total=…)``, the whole exchange shares one timeout.

    When an answer begins, urllib3 has set the timeout of the socket to what is left of the total.
    """
    pool.ConnectionCls = _Https if pool.scheme == "https" else _Http
