"""What is answered to a request, in memory: no socket, no waiting for a client. Fixed paths, GET and HEAD only."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, NamedTuple

from otel_gpu.errors import Unavailable
from otel_gpu.web.access_policy import Guard
from otel_gpu.web.feed import Following
from otel_gpu.web.request import NOTHING_ASKED, Asked, parse_head
from otel_gpu.web.response import Encoder, Request, Response, Route

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
_CLOSE: Final = "Connection: close\r\n"
_ANSWERED: Final = frozenset({"GET", "HEAD"})
# RFC 9110, 15.5.6: what is known and not allowed is 405; 501 is for what nobody knows.
_METHODS: Final = _ANSWERED | {"POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"}
_UNKNOWN_METHOD: Final = Response("only GET and HEAD are answered here\n", status=HTTPStatus.NOT_IMPLEMENTED)
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


class Answer(NamedTuple):
    """What is sent: head and body apart, because one body may be on its way to many; and what comes after it, if so.

    The connection of one that ``stays`` is for the client's next request; any other ends with its answer.
    """

    head: bytes
    body: bytes = b""
    following: Following | None = None
    stays: bool = False


class Site:
    """Routes, and what is said of paths that somebody may look for (``absent``). Any thread may ask."""

    def __init__(self, routes: Mapping[str, Route], absent: Mapping[str, str]) -> None:
        self._routes = dict(routes)
        self._absent = dict(absent)
        self._failing: dict[str, str] = {}
        self.encoder = Encoder()
        self._shared: tuple[Guard | None, str] = (None, "")

    def answer(self, asked: Asked, guard: Guard) -> Answer:
        """All that is sent; empty to what is no request at all, such as a blank line."""
        head = parse_head(asked)
        if head is None:
            return Answer(b"")
        if isinstance(head, Response):
            return self._written(head, NOTHING_ASKED, guard)
        method, request, stays = head
        if method not in _METHODS:
            response = _UNKNOWN_METHOD
        else:
            response = asked.refusal or _unadmitted(request, guard) or self._allowed(method, request)
        log.debug("%s %s: %d", method, request.path, response.status)
        answer = self._written(response, request, guard, stays=stays)
        return answer if method != "HEAD" else Answer(answer.head, stays=answer.stays)

    def _allowed(self, method: str, request: Request) -> Response:
        return self.respond(request) if method in _ANSWERED else _METHOD_NOT_ALLOWED

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

    def _written(self, response: Response, request: Request, guard: Guard, *, stays: bool = False) -> Answer:
        """A response as it is sent: its own headers, and ours and the guard's, which are the same for all.

        Who is refused may have meant something else by what it says next, and is let go. The version is ours, whatever
        the client's (RFC 9110, 2.5).
        """
        body, headers = self.encoder.encode(response, request.headers.get("accept-encoding", ""))
        known, shared = self._shared
        if known is not guard:
            shared = "".join(_line(*each) for each in {**_HEADERS, **guard.headers}.items() if each[1])
            self._shared = guard, shared
        status, following = response.status, response.following
        stays = stays and following is None and status < HTTPStatus.BAD_REQUEST
        text = (
            f"HTTP/1.1 {status:d} {status.phrase}\r\nServer: otel-gpu\r\nDate: {formatdate(usegmt=True)}\r\n"
            f"{'' if stays else _CLOSE}{''.join(_line(*each) for each in headers.items())}{shared}\r\n"
        )
        return Answer(text.encode("latin-1"), body, following, stays)


def _line(name: str, value: str) -> str:
    return f"{name}: {value}\r\n"


def _unadmitted(request: Request, guard: Guard) -> Response | None:
    """What is said to who may not come in, or not now."""
    try:
        admitted = guard.admits(request.path, request.headers.get("authorization"))
    except Unavailable as error:
        return Response(f"{error}\n", status=HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": "1"})
    return None if admitted else _UNAUTHORIZED
