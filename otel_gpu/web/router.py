"""Routing: from the bytes of a request to the bytes of its response, without I/O. Fixed paths, GET and HEAD only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, NamedTuple

from otel_gpu.bounded_io import one_line
from otel_gpu.errors import Unavailable
from otel_gpu.web.access_policy import AccessPolicy
from otel_gpu.web.bodies import Bodies, Body, Postponed
from otel_gpu.web.hosts import LoopbackHosts
from otel_gpu.web.request import RawRequest, Request, parse_request
from otel_gpu.web.response import Encoder, Response, Stream

log = logging.getLogger(__name__)

Route = Callable[[Request], Response]

STATIC_PREFIX: Final = "/static/"
"""Paths of the page's own files. They are not listed in 404 responses."""

_HEADERS: Final = {
    "Cache-Control": "no-store",
    # No other origins, no inline scripts or styles, and no text that becomes markup (trusted types).
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_CLOSE: Final = "Connection: close\r\n"
_SUPPORTED_METHODS: Final = frozenset({"GET", "HEAD"})
# RFC 9110, 15.5.6: 405 is for a known method that is not allowed, 501 for an unknown one.
_KNOWN_METHODS: Final = _SUPPORTED_METHODS | {"POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"}
_METHODS_TEXT: Final = "only GET and HEAD are supported\n"
_UNKNOWN_METHOD: Final = Response(_METHODS_TEXT, status=HTTPStatus.NOT_IMPLEMENTED)
_METHOD_NOT_ALLOWED: Final = Response(
    _METHODS_TEXT, status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"}
)
_UNAUTHORIZED: Final = Response(
    "user name and password required\n", status=HTTPStatus.UNAUTHORIZED, headers={"WWW-Authenticate": "Basic"}
)
TOO_MANY_STREAMS: Final = Response(
    "too many clients of the event stream; try again\n",
    status=HTTPStatus.SERVICE_UNAVAILABLE,
    headers={"Retry-After": "5"},
)
BUSY: Final = Response(
    "too many responses at a time; try again\n",
    status=HTTPStatus.SERVICE_UNAVAILABLE,
    headers={"Retry-After": "5"},
)
TLS_REQUIRED: Final = Response("this port requires TLS; use https://\n", status=HTTPStatus.BAD_REQUEST)

_NO_BODY: Final = Body(b"")
_UNPARSED: Final = Request("")


class EncodedResponse(NamedTuple):
    """The bytes of a response. Head and body are apart because many responses may share one body.

    After a response without ``keep_alive`` and without a ``stream`` the connection is closed.
    """

    head: bytes
    body: Body = _NO_BODY
    stream: Stream | None = None
    keep_alive: bool = False


class Router:
    """Routes by path, with hints for paths that are not served (``absent``). Any thread may use it.

    With ``hosts``, requests for other hosts are refused while no client has to authenticate itself.
    """

    def __init__(
        self,
        routes: Mapping[str, Route],
        absent: Mapping[str, str],
        bodies: Bodies,
        hosts: LoopbackHosts | None = None,
    ) -> None:
        self._routes = dict(routes)
        self._absent = dict(absent)
        self._failures: dict[str, str] = {}
        self._encoder = Encoder(bodies)
        self._hosts = hosts
        self._common_headers: tuple[AccessPolicy | None, str] = (None, "")

    def handle(self, raw: RawRequest, policy: AccessPolicy) -> EncodedResponse:
        """The response to a request; empty if there is no request line, such as for a blank line.

        Postponed if there is no memory for its body now.
        """
        parsed = parse_request(raw)
        if parsed is None:
            return EncodedResponse(b"")
        if isinstance(parsed, Response):
            return self._encode(parsed, _UNPARSED, policy)
        method, request, keep_alive = parsed
        if method not in _KNOWN_METHODS:
            response = _UNKNOWN_METHOD
        else:
            response = (
                raw.rejection
                or self._check_host(request, policy)
                or _check_access(request, policy)
                or self._dispatch(method, request)
            )
        log.debug("%s %s: %d", method, request.path, response.status)
        encoded = self._encode(response, request, policy, keep_alive=keep_alive)
        return encoded if method != "HEAD" else EncodedResponse(encoded.head, keep_alive=encoded.keep_alive)

    def _check_host(self, request: Request, policy: AccessPolicy) -> Response | None:
        """The response that rejects a request for another host, as a browser sends it after DNS rebinding."""
        host = request.headers.get("host", "")
        if self._hosts is None or policy.authenticates or self._hosts.allow(host):
            return None
        text = f"the host {one_line(host)} is not allowed here; allow it with --allowed-hosts\n"
        return Response(text, status=HTTPStatus.MISDIRECTED_REQUEST)

    def _dispatch(self, method: str, request: Request) -> Response:
        if method not in _SUPPORTED_METHODS:
            return _METHOD_NOT_ALLOWED
        route = self._routes.get(request.path)
        if route is None:
            paths = "  ".join(sorted(path for path in self._routes if not path.startswith(STATIC_PREFIX)))
            reason = self._absent.get(request.path, "not found")
            return Response(f"{reason}; available paths:  {paths}\n", status=HTTPStatus.NOT_FOUND)
        try:
            response = route(request)
        except Postponed:
            raise
        except Exception as error:  # a bug in one route must not affect the others
            self._log_failure(request.path, error)
            return Response("internal error\n", status=HTTPStatus.INTERNAL_SERVER_ERROR)
        if self._failures:
            self._log_recovery(request.path)
        return response

    def _log_failure(self, path: str, error: Exception) -> None:
        """Log once when a route starts to fail, or fails with another type of error."""
        failure = type(error).__name__
        previous = self._failures.get(path)
        self._failures[path] = failure
        debugging = log.isEnabledFor(logging.DEBUG)
        if failure != previous or debugging:
            log.error("request for %s failed: %s: %s", path, failure, error, exc_info=debugging and error)

    def _log_recovery(self, path: str) -> None:
        if self._failures.pop(path, None) is not None:
            log.info("requests for %s succeed again", path)

    def _encode(
        self, response: Response, request: Request, policy: AccessPolicy, *, keep_alive: bool = False
    ) -> EncodedResponse:
        """Encode a response with its own headers and the common ones of the server and the policy.

        An error response closes the connection, because the bytes that follow may not be a request. The version is the
        server's, whatever the client's (RFC 9110, 2.5).
        """
        body, headers = self._encoder.encode(response, request.headers.get("accept-encoding", ""))
        known_policy, common = self._common_headers
        if known_policy is not policy:
            standing = {**_HEADERS, **policy.headers}
            common = "".join(f"{name}: {value}\r\n" for name, value in standing.items() if value)
            self._common_headers = policy, common
        status, stream = response.status, response.stream
        keep_alive = keep_alive and stream is None and status < HTTPStatus.BAD_REQUEST
        own = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = (
            f"HTTP/1.1 {status:d} {status.phrase}\r\nServer: otel-gpu\r\nDate: {formatdate(usegmt=True)}\r\n"
            f"{'' if keep_alive else _CLOSE}{own}{common}\r\n"
        )
        return EncodedResponse(head.encode("latin-1"), body, stream, keep_alive)


def _check_access(request: Request, policy: AccessPolicy) -> Response | None:
    """The response that rejects an unauthenticated request; ``None`` if the request is allowed."""
    try:
        allowed = policy.allows_request(request.path, request.headers.get("authorization"))
    except Unavailable as error:
        return Response(f"{error}\n", status=HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": "1"})
    return None if allowed else _UNAUTHORIZED
