"""Unary gRPC calls over a node's unix sockets: the container runtime (CRI) and the kubelet (pod-resources).

The gRPC library takes 20 MB of memory for the life of the process and 3 ms of CPU per connection. A unary call takes
one HTTP/2 stream (RFC 9113; gRPC in it: doc/PROTOCOL-HTTP2.md of github.com/grpc/grpc) and a tenth of the CPU. A
complete message is a good answer: its headers are not read. The headers of a failed call are, with hpack (RFC 7541).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from otel_gpu.bounded_io import Deadline, one_line
from otel_gpu.clock import Clock
from otel_gpu.errors import Unavailable, Unsupported
from otel_gpu.sources.names.poller import Poller, PublishedNames
from otel_gpu.sources.unix_socket import connect as connect_socket
from otel_gpu.sources.unix_socket import failure_reason

MAX_MESSAGE_BYTES: Final = 8 << 20
"""Largest answer: twice gRPC's default, and many times that of a node of 500 containers."""

_FIXES: Final[Mapping[type[OSError], str]] = {
    FileNotFoundError: "in a container, mount the host's directory there",
    PermissionError: "run the agent as root, which owns it on most nodes",
}
_MAX_PATH_BYTES: Final = 107
"""The size of ``sun_path`` (unix(7)) without the terminating zero."""
_MAX_HEADER_BYTES: Final = 1 << 16
_MAX_FRAME_BYTES: Final = 16_384  # of frames to a client that allows no larger ones
_RECEIVE_BYTES: Final = 1 << 16

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 7, 8, 9
_END_STREAM, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x4, 0x8, 0x20
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _INITIAL_WINDOW_SIZE = 1, 2, 4
_DEFAULT_WINDOW_BYTES: Final = 65_535
_WINDOW_BYTES: Final = MAX_MESSAGE_BYTES + _MAX_FRAME_BYTES  # the answer and its framing, without padding
_STREAM: Final = 1

_OK, _PERMISSION_DENIED, _UNIMPLEMENTED = 0, 7, 12
_STATUS_NAMES: Final = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)


class _Frame(NamedTuple):
    kind: int
    flags: int
    payload: bytes
    """Without padding and priority."""


class GrpcConnection:
    """A connection for one unary call. Any thread may close it, which ends a call in progress."""

    def __init__(self, path: str, connection: socket.socket, timeout_s: float, clock: Clock) -> None:
        self._path = path
        self._connection = connection
        self._timeout_s = timeout_s
        self._clock = clock
        self._received = bytearray()

    def call(self, method: str, request: bytes = b"") -> bytes:
        """The answer to a method, given by its full name. Raises ``Unsupported`` if the server lacks the method."""
        name = method.rpartition("/")[2]
        try:
            return self._call(method, request)
        except TimeoutError:
            raise Unavailable(f"{self._path}: no answer to {name} within {self._timeout_s:g} s") from None
        except OSError as error:
            raise Unavailable(f"{self._path}: connection lost during {name}: {error.strerror or error}") from None

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):  # the server may have closed it
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _call(self, method: str, request: bytes) -> bytes:
        name = method.rpartition("/")[2]
        deadline = Deadline(self._timeout_s, self._clock.monotonic_ns)
        self._connection.settimeout(deadline.left_s())
        self._connection.sendall(_request(method, request))
        body, headers, is_last = bytearray(), bytearray(), False
        header_blocks: list[bytes] = []
        for frame in self._frames(name, deadline):
            if frame.kind == _DATA:
                body += frame.payload
                if max(_stated_length(body), len(body) - 5) > MAX_MESSAGE_BYTES:
                    raise Unavailable(f"{self._path}: the answer to {name} is over {MAX_MESSAGE_BYTES >> 20} MiB")
            elif frame.kind in (_HEADERS, _CONTINUATION):
                headers += frame.payload
                if sum(map(len, header_blocks)) + len(headers) > _MAX_HEADER_BYTES:
                    raise self._not_grpc(name)
                if headers and frame.flags & _END_HEADERS:
                    header_blocks.append(bytes(headers))
                    headers.clear()
            if frame.kind in (_DATA, _HEADERS) and frame.flags & _END_STREAM:
                is_last = True  # but for the continuation of its headers
            if is_last and (frame.kind == _DATA or frame.flags & _END_HEADERS):
                break
        if (message := _message(body)) is None:
            raise self._failure(method, header_blocks)
        return message

    def _frames(self, name: str, deadline: Deadline) -> Iterator[_Frame]:
        """The frames that the server sends. Raises ``Unavailable`` when the server ends the call or the connection."""
        while True:
            head = self._receive(9, name, deadline)
            length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            if length > _MAX_FRAME_BYTES:
                raise self._not_grpc(name)
            payload = self._receive(length, name, deadline)
            if kind == _RST_STREAM or (kind == _GOAWAY and not _is_graceful(payload)):
                raise Unavailable(f"{self._path}: the server ended {name} without an answer")
            if kind in (_DATA, _HEADERS):
                payload = _without_padding(kind, flags, payload)
            yield _Frame(kind, flags, payload)

    def _receive(self, size: int, name: str, deadline: Deadline) -> bytes:
        while len(self._received) < size:
            self._connection.settimeout(deadline.left_s())
            chunk = self._connection.recv(_RECEIVE_BYTES)
            if not chunk:
                if not self._received.startswith(b"HTTP/"):
                    raise Unavailable(f"{self._path}: the server closed the connection during {name}")
                raise self._not_grpc(name)
            self._received += chunk
        received = bytes(self._received[:size])
        del self._received[:size]
        # A silent connection times out in recv. One that always has something to read times out here.
        deadline.left_s()
        return received

    def _not_grpc(self, name: str) -> Unavailable:
        return Unavailable(f"{self._path}: the answer to {name} is not gRPC; is this the right socket?")

    def _failure(self, method: str, header_blocks: Sequence[bytes]) -> Unavailable | Unsupported:
        """The meaning of an answer without a message, by its status."""
        # Imported only here: most agents never see a failed call.
        from urllib.parse import unquote  # noqa: PLC0415

        import hpack  # noqa: PLC0415

        service, _, name = method.strip("/").rpartition("/")
        headers: dict[str, str] = {}
        try:
            decoder = hpack.Decoder(_MAX_HEADER_BYTES)
            for block in header_blocks:
                headers.update((str(key), str(value)) for key, value, *_ in decoder.decode(block))
        except hpack.HPACKError:
            return self._not_grpc(name)
        if (code := _status_code(headers)) is None:
            http_status = headers.get(":status", "200")
            if http_status == "200":
                return self._not_grpc(name)
            return Unavailable(f"{self._path}: the answer to {name} is HTTP {one_line(http_status, 3)}, not gRPC")
        if code == _UNIMPLEMENTED:
            return Unsupported(f"{self._path}: the server does not implement {name} of {service}")
        message = one_line(unquote(headers.get("grpc-message", ""))) or "no reason given"
        status = _STATUS_NAMES[code] if code < len(_STATUS_NAMES) else f"status {code}"
        outcome = {
            _OK: f"the answer to {name} is not one whole message",
            _PERMISSION_DENIED: f"{name} is not allowed: {message}",
        }.get(code, f"{name} failed: {status}: {message}")
        return Unavailable(f"{self._path}: {outcome}")


# ---------------------------------------------------------------------------- the socket


def open_connection(endpoint: str, timeout_s: float, clock: Clock) -> GrpcConnection:
    """Connect to an endpoint. Its call takes at most ``timeout_s``. Raises ``Unavailable``."""
    path = socket_path(endpoint)
    return GrpcConnection(path, connect(path), timeout_s, clock)


def socket_path(endpoint: str) -> str:
    """The path of an endpoint: a path, or a URL as in the kubelet's configuration (``unix:///run/x.sock``)."""
    path = endpoint.removeprefix("unix:")
    if path.startswith("//"):
        path = path.removeprefix("//")
    if not path.startswith("/") or "\0" in path:
        raise Unavailable(f"{endpoint!r} is not a socket path: use an absolute path, with or without unix://")
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise Unavailable(f"{path}: a socket path has at most {_MAX_PATH_BYTES} bytes; mount it at a shorter path")
    return path


def connect(path: str) -> socket.socket:
    """Connect to the socket at a path, at once or not at all. ``Unavailable`` says what is wrong with the path."""
    try:
        return connect_socket(path)
    except OSError as error:
        fix = next((f"; {fix}" for kind, fix in _FIXES.items() if isinstance(error, kind)), "")
        raise Unavailable(f"{path}: {failure_reason(error)}{fix}") from None


# ---------------------------------------------------------------------------- frames


def _request(method: str, message: bytes) -> bytes:
    """Everything the client sends. The windows have room for the largest answer, so that no update follows."""
    settings = {_HEADER_TABLE_SIZE: 0, _ENABLE_PUSH: 0, _INITIAL_WINDOW_SIZE: _WINDOW_BYTES}
    headers = b"".join(
        (
            b"\x83",  # :method POST, by its index in the static table (RFC 7541, appendix A), as the next ones
            b"\x86",  # :scheme http
            b"\x04" + _literal(method),  # :path
            b"\x01" + _literal("localhost"),  # :authority
            b"\x0f\x10" + _literal("application/grpc"),  # content-type
            b"\x00" + _literal("te") + _literal("trailers"),
        )
    )
    return b"".join(
        (
            _PREFACE,
            _frame(_SETTINGS, b"".join(_number(key, 2) + _number(value, 4) for key, value in settings.items())),
            _frame(_WINDOW_UPDATE, _number(_WINDOW_BYTES - _DEFAULT_WINDOW_BYTES, 4)),
            _frame(_HEADERS, headers, _END_HEADERS, _STREAM),
            _frame(_DATA, b"\0" + _number(len(message), 4) + message, _END_STREAM, _STREAM),  # not compressed
        )
    )


def _message(body: bytearray) -> bytes | None:
    """The message in a body: one, not compressed, complete. A failed call has none."""
    is_complete = len(body) >= 5 and body[0] == 0 and _stated_length(body) == len(body) - 5
    return bytes(body[5:]) if is_complete else None


def _status_code(headers: Mapping[str, str]) -> int | None:
    text = headers.get("grpc-status", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 2 else None


def _stated_length(body: bytearray) -> int:
    return int.from_bytes(body[1:5], "big") if len(body) >= 5 else 0


def _is_graceful(goaway: bytes) -> bool:
    """Whether the server answers our stream before it closes the connection."""
    return int.from_bytes(goaway[:4], "big") >= _STREAM and not any(goaway[4:8])


def _without_padding(kind: int, flags: int, payload: bytes) -> bytes:
    if payload and flags & _PADDED:
        payload = payload[1 : -payload[0] or None]
    return payload[5:] if kind == _HEADERS and flags & _PRIORITY else payload


def _frame(kind: int, payload: bytes, flags: int = 0, stream: int = 0) -> bytes:
    return _number(len(payload), 3) + bytes((kind, flags)) + _number(stream, 4) + payload


def _literal(text: str) -> bytes:
    """A string literal of fewer than 127 bytes, without Huffman coding."""
    return bytes((len(text),)) + text.encode("ascii")


def _number(number: int, length: int) -> bytes:
    return number.to_bytes(length, "big")


# ---------------------------------------------------------------------------- a poller that makes calls

M = TypeVar("M", bound=Message)


class GrpcPoller:
    """Runs ``poll`` on a thread, which calls the service and sleeps in turn; again after a failure.

    Each call has a connection of its own: an agent calls every few seconds at most.
    """

    def __init__(
        self,
        name: str,
        endpoint: str,
        published: PublishedNames,
        poll: Callable[[], None],
        *,
        timeout_s: float,
        clock: Clock,
    ) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._clock = clock
        self._poller = Poller(name, published, lambda _: poll())
        self._connection: GrpcConnection | None = None

    def start(self) -> None:
        """Start the thread unless it runs."""
        self._poller.start()

    def wake(self) -> None:
        """End ``sleep``: there is something to look up."""
        self._poller.wake()

    def close(self) -> None:
        """Stop the thread. A call in progress ends."""
        self._poller.stop(timeout_s=0.0)
        if (connection := self._connection) is not None:
            connection.close()
        self._poller.stop()

    # -- within ``poll`` ----------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether ``poll`` must return."""
        return self._poller.stopping

    def call(self, method: str, kind: type[M], request: bytes = b"") -> M:
        """The answer to a method, given by its full name. Raises ``Unsupported`` if the service lacks the method."""
        raw = self._call(method, request)
        try:
            return kind.FromString(raw)
        except DecodeError:
            name, path = method.rpartition("/")[2], socket_path(self._endpoint)
            raise Unavailable(f"{path}: cannot decode the answer to {name} ({len(raw):,} bytes)") from None

    def sleep(self, seconds: float) -> bool:
        """Wait after an answer, at most this long; true if woken."""
        self._poller.reset_backoff()
        return self._poller.sleep(seconds)

    def _call(self, method: str, request: bytes) -> bytes:
        connection = self._connection = open_connection(self._endpoint, self._timeout_s, self._clock)
        try:
            # close() sets stopping before it looks for a connection: either it is seen here, or the connection there.
            if self.stopping:
                raise Unavailable("closed")
            return connection.call(method, request)
        finally:
            self._connection = None
            connection.close()
