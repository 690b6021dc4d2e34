"""A small HTTP server: fixed paths, GET and HEAD only, one short-lived thread per connection."""

from __future__ import annotations

import http.client
import io
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from types import MappingProxyType
from typing import Any, Final

from otel_gpu.errors import UsageError
from otel_gpu.values import Address
from otel_gpu.web.exchange import Request, Response, Route, encode
from otel_gpu.web.guard import Guard, GuardFile

__all__ = ["Request", "Response", "Route", "WebServer"]

log = logging.getLogger(__name__)

_SLOWEST_CLIENT_S: Final = 5.0
"""What a client may take for each of: the TLS handshake, the whole of its request, taking in the answer."""

_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_MOST_CONNECTIONS: Final = 64
_LARGEST_REQUEST_BYTES: Final = 128 * 1024
"""Line and headers together; the base class allows 64 KiB for a line, a hundred times."""

_TLS_HANDSHAKE: Final = b"\x16"  # RFC 8446, 5.1: the content type that every client begins with
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_METHOD_NOT_ALLOWED: Final = Response(
    "only GET and HEAD are answered here\n", status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"}
)
_UNAUTHORIZED: Final = Response(
    "a user and a password are needed\n", status=HTTPStatus.UNAUTHORIZED, headers={"WWW-Authenticate": "Basic"}
)
_SPEAK_TLS: Final = Response("this port speaks TLS; ask for https://\n", status=HTTPStatus.BAD_REQUEST)


class WebServer:
    """Serves routes on one address from construction (which binds it) to ``close``.

    ``web_config`` is a web configuration file: TLS, client certificates, passwords. Constructing reads it, and raises
    UsageError for whatever is wrong with it. ``absent`` says of paths that somebody may look for how to have them;
    ``remedy`` what to do if the address cannot be had.
    """

    def __init__(
        self,
        address: Address,
        routes: Mapping[str, Route],
        web_config: Path | None = None,
        *,
        absent: Mapping[str, str] = _NONE,
        remedy: str = "choose another with --listen HOST:PORT (port 0: any free one)",
        slowest_client_s: float = _SLOWEST_CLIENT_S,
        most_connections: int = _MOST_CONNECTIONS,
    ) -> None:
        guard = Guard if web_config is None else GuardFile(web_config).current
        self._scheme = "http" if guard().tls is None else "https"
        try:
            self._server = _Server(
                address,
                dict(routes),
                dict(absent),
                guard,
                slowest_client_s=slowest_client_s,
                most_connections=most_connections,
            )
        except (OSError, OverflowError, TypeError, ValueError) as error:  # bind() raises them all for what is no host
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"cannot listen on {address}: {reason}; {remedy}") from None
        self.address = Address(address.host, self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="otel-gpu-web", daemon=True)

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.address.host, self.address.host)  # noqa: S104
        return f"{self._scheme}://{Address(host, self.address.port)}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the address."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """Accepts in one thread; everything a client can delay happens in its own, and there are only so many."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        address: Address,
        routes: Mapping[str, Route],
        absent: Mapping[str, str],
        guard: Callable[[], Guard],
        *,
        slowest_client_s: float,
        most_connections: int,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.routes = routes
        self.absent = absent
        self.slowest_client_s = slowest_client_s
        self._guard = guard
        self._most_connections = most_connections
        self._free = threading.Semaphore(most_connections)
        self._was_full = False
        super().__init__((address.host, address.port), BaseHTTPRequestHandler)  # finish_request has its own

    def server_bind(self) -> None:
        """Bind, without the base class's look-up of this host's name: nobody uses it, and DNS may take its time."""
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a client a thread, if one is free; there is no queue to wait in."""
        if not self._free.acquire(blocking=False):
            level = logging.DEBUG if self._was_full else logging.WARNING
            log.log(level, "%d connections are open, more are refused; told once", self._most_connections)
            self._was_full = True
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was to be had
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer one client, in its thread."""
        guard = self._guard()
        if guard.tls is None:
            _Handler(request, client_address, self, guard)
            return
        request.settimeout(self.slowest_client_s)
        if request.recv(1, socket.MSG_PEEK) not in (b"", _TLS_HANDSHAKE):
            _Handler(request, client_address, self, guard, _SPEAK_TLS)
            return
        connection = guard.tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        try:
            connection.do_handshake()
            if not guard.allows(connection.getpeercert()):
                log.debug("a client's certificate has none of the names allowed: %s", client_address)
                return
            _Handler(connection, client_address, self, guard)
            connection.settimeout(0)  # say goodbye, and do not wait for theirs
            with suppress(OSError):
                connection.unwrap()
        finally:
            self.shutdown_request(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("a client broke off: %s: %s", client_address, sys.exc_info()[1])


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "otel-gpu"
    sys_version = ""

    def __init__(
        self, connection: Any, client_address: Any, server: _Server, guard: Guard, refusal: Response | None = None
    ) -> None:
        self._guard = guard
        self._refusal = refusal
        super().__init__(connection, client_address, server)

    def setup(self) -> None:
        """Read with a deadline for all of it: the base class's is for each packet, and a drop now and then is none."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Incoming(self.connection, self.server.slowest_client_s))

    def do_GET(self) -> None:
        self._handle(self._answer)

    def do_HEAD(self) -> None:
        self._handle(self._answer)

    def _refuse(self) -> None:
        self._handle(lambda _: _METHOD_NOT_ALLOWED)

    # RFC 9110, 15.5.6: what is known and not allowed is 405; the base class says 501, which is for what nobody knows.
    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse  # noqa: N815 - the base class calls them so

    def _handle(self, route: Route) -> None:
        self.connection.settimeout(self.server.slowest_client_s)
        request = self._request()
        if self._refusal is not None:
            response = self._refusal
        elif not self._guard.admits(request.path, request.headers.get("authorization")):
            response = _UNAUTHORIZED
        else:
            response = route(request)
        body, headers = encode(response, request.headers.get("accept-encoding", ""))
        self.send_response(response.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _request(self) -> Request:
        path, _, query = self.path.partition("?")
        headers: dict[str, str] = {}
        for name, value in self.headers.items():  # RFC 9110, 5.3: several of one name are one, with commas
            key = name.lower()
            headers[key] = f"{headers[key]}, {value}" if key in headers else value
        return Request(path, query, headers)

    def _answer(self, request: Request) -> Response:
        route = self.server.routes.get(request.path)
        if route is None:
            paths = "  ".join(sorted(self.server.routes))
            what = self.server.absent.get(request.path, "there is nothing here")
            return Response(f"{what}; try  {paths}\n", status=HTTPStatus.NOT_FOUND)
        try:
            return route(request)
        except Exception as error:  # a bug in one route must not take the others along
            log.error(  # noqa: TRY400 - the traceback is for debugging only
                "answering %s failed: %s: %s",
                self.path,
                type(error).__name__,
                error,
                exc_info=log.isEnabledFor(logging.DEBUG),
            )
            return Response("internal error\n", status=HTTPStatus.INTERNAL_SERVER_ERROR)

    def end_headers(self) -> None:
        """Close the headers; every answer carries ours, the base class's own errors too."""
        for name, value in {**_HEADERS, **self._guard.headers}.items():
            if value:
                self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        log.debug(format, *args)


class _Incoming(io.RawIOBase):
    """What a client sends, up to a deadline and a size for all of it."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        super().__init__()
        self._connection = connection
        self._until_s = time.monotonic() + seconds
        self._left_bytes = _LARGEST_REQUEST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for bytes. TimeoutError ends the connection; HTTPException is what the base class answers with 431."""
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        if not self._left_bytes:
            raise http.client.HTTPException("the request is too large")
        self._connection.settimeout(left_s)
        count = self._connection.recv_into(memoryview(buffer)[: self._left_bytes])
        self._left_bytes -= count
        return count
