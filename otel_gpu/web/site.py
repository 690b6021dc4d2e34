"""What is answered to a request, in memory: no socket, no waiting for a client. Fixed paths, GET and HEAD only."""

from __future__ import annotations

import http.client
import io
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, NamedTuple

from otel_gpu.errors import Unavailable
from otel_gpu.web.exchange import Encoder, Request, Response, Route
from otel_gpu.web.feed import Following
from otel_gpu.web.guard import Guard

log = logging.getLogger(__name__)

STATIC: Final = "/static/"
"""Where what the page is made of is served; nobody looks for it by hand."""

_HEADERS: Final = {
    "Cache-Control": "no-store",
    # Nothing from elsewhere, nothing inline, and no text that becomes markup (trusted types).
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_METHOD_NOT_ALLOWED: Final = Response(
    "only GET and HEAD are answered here\n", status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"}
)
_UNAUTHORIZED: Final = Response(
    "a user and a password are needed\n", status=HTTPStatus.UNAUTHORIZED, headers={"WWW-Authenticate": "Basic"}
)
TOO_MANY_FOLLOW: Final = Response(
    "as many follow already as may; try again\n",
    status=HTTPStatus.SERVICE_UNAVAILABLE,
    headers={"Retry-After": "5"},
)
SPEAK_TLS: Final = Response("this port speaks TLS; ask for https://\n", status=HTTPStatus.BAD_REQUEST)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client sent: its request's line and headers, or as much of them as came. ``refusal`` answers whatever."""

    head: bytes
    too_large: bool = False
    refusal: Response | None = None


class Answer(NamedTuple):
    """What is sent: head and body apart, because one body may be on its way to many; and what comes after it, if so."""

    head: bytes
    body: bytes = b""
    following: Following | None = None


class Site:
    """Routes, and what is said of paths that somebody may look for (``absent``). Any thread may ask."""

    def __init__(self, routes: Mapping[str, Route], absent: Mapping[str, str]) -> None:
        self._routes = dict(routes)
        self._absent = dict(absent)
        self._failing: dict[str, str] = {}
        self.encoder = Encoder()

    def answer(self, asked: Asked, guard: Guard) -> Answer:
        """All that is sent; empty to what is no request at all, such as a blank line."""
        handler = _Handler(self, asked, guard)
        return Answer(handler.wfile.getvalue(), handler.body, handler.following)

    def respond(self, request: Request) -> Response:
        """What a path answers."""
        route = self._routes.get(request.path)
        if route is None:
            paths = "  ".join(sorted(path for path in self._routes if not path.startswith(STATIC)))
            what = self._absent.get(request.path, "there is nothing here")
            return Response(f"{what}; try  {paths}\n", status=HTTPStatus.NOT_FOUND)
        try:
            response = route(request)
        except Exception as error:  # a bug in one route must not take the others along
            self._note(request.path, error)
            return Response("internal error\n", status=HTTPStatus.INTERNAL_SERVER_ERROR)
        if self._failing:
            self._note(request.path, None)
        return response

    def _note(self, path: str, error: Exception | None) -> None:
        """One log line when a route begins to fail, or fails in another way, and one when it works again."""
        before = self._failing.pop(path, None)
        if error is None:
            if before is not None:
                log.info("answering %s works again", path)
            return
        failure = self._failing[path] = type(error).__name__
        debugging = log.isEnabledFor(logging.DEBUG)
        if failure != before or debugging:
            log.error("answering %s failed: %s: %s", path, failure, error, exc_info=debugging and error)


class _Handler(BaseHTTPRequestHandler):
    """Python's parser of requests on bytes that are already here. Constructing it answers."""

    server_version = "otel-gpu"
    sys_version = ""
    wfile: io.BytesIO

    def __init__(self, site: Site, asked: Asked, guard: Guard) -> None:
        self._site = site
        self._asked = asked
        self._guard = guard
        self.body = b""
        self.following: Following | None = None
        super().__init__(None, ("", 0), None)  # type: ignore[arg-type]  # there is no socket, and no server

    def setup(self) -> None:
        """Read from what was sent, write to memory."""
        self.rfile = _Head(self._asked)
        self.wfile = io.BytesIO()

    def finish(self) -> None:
        """Keep what was written."""

    def do_GET(self) -> None:
        self._handle(self._site.respond)

    def do_HEAD(self) -> None:
        self._handle(self._site.respond)

    def _refuse(self) -> None:
        self._handle(lambda _: _METHOD_NOT_ALLOWED)

    # RFC 9110, 15.5.6: what is known and not allowed is 405; the base class says 501, which is for what nobody knows.
    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse  # noqa: N815 - the base class calls them so

    def _handle(self, route: Route) -> None:
        request = self._request()
        response = self._asked.refusal or self._unadmitted(request) or route(request)
        body, headers = self._site.encoder.encode(response, request.headers.get("accept-encoding", ""))
        self.send_response(response.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.body, self.following = body, response.following

    def _unadmitted(self, request: Request) -> Response | None:
        """What is said to who may not come in, or not now."""
        try:
            admitted = self._guard.admits(request.path, request.headers.get("authorization"))
        except Unavailable as error:
            return Response(f"{error}\n", status=HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": "1"})
        return None if admitted else _UNAUTHORIZED

    def _request(self) -> Request:
        path, _, query = self.path.partition("?")
        headers: dict[str, str] = {}
        for name, value in self.headers.items():  # RFC 9110, 5.3: several of one name are one, with commas
            key = name.lower()
            headers[key] = f"{headers[key]}, {value}" if key in headers else value
        return Request(path, query, headers)

    def end_headers(self) -> None:
        """Close the headers; every answer carries ours, the base class's own errors too."""
        for name, value in {**_HEADERS, **self._guard.headers}.items():
            if value:
                self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        log.debug(format, *args)


class _Head(io.BytesIO):
    """What a client sent. HTTPException where it sent too much is what the base class answers with 431."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked.head)
        self._too_large = asked.too_large

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        if not line and self._too_large:
            raise http.client.HTTPException("the request is too large")
        return line
