"""One client's connection as a state machine. It never blocks: each step does what is possible now."""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from otel_gpu.web.access_policy import AccessPolicy
from otel_gpu.web.bodies import Body
from otel_gpu.web.request import RawRequest
from otel_gpu.web.response import Stream
from otel_gpu.web.router import TLS_REQUIRED, EncodedResponse, Router

if TYPE_CHECKING:
    import ssl

_MAX_REQUEST_BYTES: Final = 32 * 1024
"""Request line and headers together. The parser has limits for a line and for the number of headers."""

_CHUNK_BYTES: Final = 32 * 1024
_END_OF_HEAD: Final = re.compile(rb"\n\r?\n|\A\r?\n")
_RESET: Final = struct.pack("ii", 1, 0)  # socket(7): linger for 0 s
_TLS_HANDSHAKE: Final = b"\x16"  # RFC 8446, 5.1: the content type of a client's first record


class Wait(Enum):
    """What a connection waits for after a step.

    ``IDLE``: the response is sent, the client may send another request. ``FRAME``: the next frame of a stream.
    ``CLOSE``: nothing, the connection is over.
    """

    READABLE = auto()
    WRITABLE = auto()
    RESPONSE = auto()
    FRAME = auto()
    IDLE = auto()
    CLOSE = auto()


class CertificateRejected(OSError):
    """A client whose certificate has none of the allowed names."""


class Connection:
    """A connection from TLS handshake to close. An OSError from any step ends it."""

    def __init__(self, client: socket.socket, router: Router, policy: Callable[[], AccessPolicy], now_s: float) -> None:
        """``policy`` returns the access policy in force; the connection keeps the one of its beginning."""
        client.settimeout(0)
        self.socket = client
        self.descriptor = client.fileno()
        self.router = router
        self.policy = policy()
        self._policy_in_force = policy
        self.started_s = now_s
        """Start of the current phase: receiving a request, sending a response or a frame. An idle connection keeps the
        start of its last response."""
        self.progress_s = now_s
        """When the client last sent a byte or accepted one."""
        self.request: RawRequest | None = None
        self.stream: Stream | None = None
        self.body: Body | None = None
        """The body or frame that is being sent."""
        self.needed_bytes: int | None = None
        """The memory that a postponed response needs; ``None`` if it was not postponed."""
        self.last_frame: Body | None = None
        """The frame that was sent last or is being sent."""
        self.watched_events = 0
        """The events for which the event loop has registered the descriptor."""
        self.is_reused = False
        """Whether the connection has been idle after a response."""
        self._keep_alive = False
        self._head = bytearray()
        self._tls: ssl.SSLSocket | None = None
        """The socket, once TLS is negotiated on it."""
        self._handshake_done = self.policy.tls is None
        self._unsent: list[memoryview] = []

    @property
    def has_current_policy(self) -> bool:
        """Whether the access policy has not changed since the connection was accepted."""
        return self._policy_in_force() is self.policy

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.request is None

    @property
    def has_buffered_input(self) -> bool:
        """Whether TLS has already read bytes of the next request, for which no event will come."""
        return self._tls is not None and self._tls.pending() > 0

    @property
    def next_frame(self) -> Body | None:
        """The latest frame of the stream, if it has not been sent."""
        latest = None if self.stream is None else self.stream.feed.latest
        return None if latest is self.last_frame else latest

    def advance(self) -> Wait:
        """Do everything that is possible without blocking."""
        try:
            if self.request is not None:
                return self._write() if self._unsent or self.stream is None else self._discard_input()
            if not self._handshake_done:
                self._handshake()
            return self._read()
        except BlockingIOError:
            return Wait.READABLE if self.request is None else Wait.WRITABLE
        except OSError as error:
            wait = self._tls_wait(error)
            if wait is None:
                raise
            return wait

    def start_response(self, response: EncodedResponse, now_s: float) -> None:
        """Set the response that the next steps send."""
        self._head.clear()
        self.needed_bytes = None
        self.body = response.body
        self._unsent = [memoryview(part) for part in (response.head, response.body.data) if part]
        self.stream = response.stream
        self._keep_alive = response.keep_alive
        self.last_frame = None if response.stream is None else response.stream.body_frame
        self.started_s = self.progress_s = now_s

    def start_frame(self, frame: Body, now_s: float) -> None:
        """Set the frame that the next steps send. Everything before it must be sent."""
        self.body = frame
        self._unsent = [memoryview(frame.data)]
        self.started_s = self.progress_s = now_s

    def close(self) -> None:
        """Close the connection, with a TLS close_notify that is not waited for.

        A response that is not sent in full ends with a reset. Otherwise the kernel would keep the rest of it for a
        client that reads nothing, for minutes.
        """
        is_incomplete = bool(self._unsent)
        self.body = self.last_frame = None
        self._unsent = []
        with suppress(OSError, ValueError):
            if is_incomplete:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            elif self._tls is not None and self._handshake_done:
                self._tls.unwrap()
        if not is_incomplete:
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)
        self.socket.close()

    def _handshake(self) -> None:
        """Continue the TLS handshake. A client that starts in plain text is read, so that it gets an error response."""
        if self._tls is None:
            first = self.socket.recv(1, socket.MSG_PEEK)
            if self.policy.tls is None or first not in (b"", _TLS_HANDSHAKE):
                self._handshake_done = True
                return
            self._tls = self.policy.tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
            self.socket = self._tls
        self._tls.do_handshake()
        if not self.policy.allows_certificate(self._tls.getpeercert()):
            raise CertificateRejected("the client certificate has none of the allowed names")
        self._handshake_done = True

    def _tls_wait(self, error: OSError) -> Wait | None:
        """What TLS waits for, if that is all the error says."""
        if self._tls is None:
            return None
        import ssl  # noqa: PLC0415 - only agents with TLS load it

        if isinstance(error, ssl.SSLWantReadError):
            return Wait.READABLE
        return Wait.WRITABLE if isinstance(error, ssl.SSLWantWriteError) else None

    def _read(self) -> Wait:
        while True:
            left_bytes = _MAX_REQUEST_BYTES - len(self._head)
            if not left_bytes:
                return self._finish_request(is_too_large=True)
            chunk = self.socket.recv(min(left_bytes, _CHUNK_BYTES))
            searched = max(0, len(self._head) - 3)  # the end of the head may span two chunks
            self._head += chunk
            self.progress_s = time.monotonic()
            if not self._head:
                return Wait.CLOSE  # the client closed the connection without a request
            if not chunk or _END_OF_HEAD.search(self._head, searched):
                return self._finish_request()

    def _finish_request(self, *, is_too_large: bool = False) -> Wait:
        is_plain_text = self.policy.tls is not None and self._tls is None
        rejection = TLS_REQUIRED if is_plain_text else None
        self.request = RawRequest(bytes(self._head), is_too_large=is_too_large, rejection=rejection)
        return Wait.RESPONSE

    def _write(self) -> Wait:
        while self._unsent:
            # One call for head and body where possible: a head alone is another packet, which wakes up the client.
            sent = self.socket.sendmsg(self._unsent) if self._tls is None else self._tls.send(self._unsent[0])
            self.progress_s = time.monotonic()
            while self._unsent and sent >= len(self._unsent[0]):
                sent -= len(self._unsent.pop(0))
            if sent:
                self._unsent[0] = self._unsent[0][sent:]
        self.body = None
        if self._keep_alive:
            self.request = None
            return Wait.IDLE
        return Wait.CLOSE if self.stream is None else Wait.FRAME

    def _discard_input(self) -> Wait:
        """Detect that the client of a stream has closed the connection. Its input has no meaning."""
        try:
            while self.socket.recv(_CHUNK_BYTES):
                pass
        except BlockingIOError:
            return Wait.FRAME
        except OSError as error:
            if self._tls_wait(error) is None:
                raise
            return Wait.FRAME
        return Wait.CLOSE
