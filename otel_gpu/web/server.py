"""A small HTTP server: fixed paths, GET and HEAD only, one short-lived thread per connection."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, ClassVar, Final

from otel_gpu.errors import UsageError
from otel_gpu.values import Address

log = logging.getLogger(__name__)

_SLOWEST_CLIENT_S: Final = 5.0
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class Response:
    """What a path answers."""

    body: str
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


Route = Callable[[], Response]


class WebServer:
    """Serves routes on one address from construction (which binds it) to ``close``."""

    def __init__(self, address: Address, routes: Mapping[str, Route]) -> None:
        handler = type("Handler", (_Handler,), {"routes": dict(routes)})
        try:
            self._server = _server_class(address.host)((address.host, address.port), handler)
        except (OSError, OverflowError, TypeError, ValueError) as error:  # bind() raises them all for what is no host
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(
                f"cannot listen on {address}: {reason}; choose another with --listen HOST:PORT (port 0: any free one)"
            ) from None
        self.address = Address(address.host, self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="otel-gpu-web", daemon=True)

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.address.host, self.address.host)  # noqa: S104
        return f"http://{Address(host, self.address.port)}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the address."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


def _server_class(host: str) -> type[ThreadingHTTPServer]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return type("Server", (_Server,), {"address_family": family})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def server_bind(self) -> None:
        """Bind, without the base class's look-up of this host's name: nobody uses it, and DNS may take its time."""
        TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("a client broke off: %s", client_address)


class _Handler(BaseHTTPRequestHandler):
    routes: ClassVar[Mapping[str, Route]] = {}
    timeout = _SLOWEST_CLIENT_S
    server_version = "otel-gpu"
    sys_version = ""

    def do_GET(self) -> None:
        self._send(self._answer())

    def do_HEAD(self) -> None:
        self._send(self._answer(), with_body=False)

    def _refuse(self) -> None:
        response = Response("only GET and HEAD are answered here\n", status=HTTPStatus.METHOD_NOT_ALLOWED)
        self._send(response, allow="GET, HEAD")

    # RFC 9110, 15.5.6: what is known and not allowed is 405; the base class says 501, which is for what nobody knows.
    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse  # noqa: N815 - the base class calls them so

    def _answer(self) -> Response:
        route = self.routes.get(self.path.partition("?")[0])
        if route is None:
            paths = "  ".join(sorted(self.routes))
            return Response(f"there is nothing here; try  {paths}\n", status=HTTPStatus.NOT_FOUND)
        try:
            return route()
        except Exception as error:  # a bug in one route must not take the others along
            log.error(  # noqa: TRY400 - the traceback is for debugging only
                "answering %s failed: %s: %s",
                self.path,
                type(error).__name__,
                error,
                exc_info=log.isEnabledFor(logging.DEBUG),
            )
            return Response("internal error\n", status=HTTPStatus.INTERNAL_SERVER_ERROR)

    def _send(self, response: Response, *, with_body: bool = True, allow: str | None = None) -> None:
        body = response.body.encode("utf-8", "backslashreplace")
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(body)))
        if allow is not None:
            self.send_header("Allow", allow)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def end_headers(self) -> None:
        """Close the headers; every answer carries ours, the base class's own errors too."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        log.debug(format, *args)
