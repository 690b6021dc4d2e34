"""Parsing of HTTP requests: request line and headers (RFC 9112, 2 to 5). Anything malformed is rejected.

The parser of the standard library reads headers with the e-mail parser, which takes longer than the rest of a scrape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, NamedTuple

from otel_gpu.web.response import Response

_MAX_LINE_BYTES: Final = 16 * 1024
_MAX_HEADERS: Final = 100

_END_OF_HEAD: Final = re.compile(rb"\n\r?\n")
_HEADERS: Final = re.compile(rb"(?:[-!#$%&'*+.^_`|~0-9A-Za-z]+:[^\0\r\n]*\r?\n)*")  # RFC 9110, 5.1 and 5.5
_HOST: Final = re.compile(r"[!$&-.0-;=A-Z_a-z~%\[\]]*")  # RFC 3986, 3.2.2: a host and a port
_CONTROL: Final = re.compile(rb"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")
_VERSION: Final = re.compile(rb"HTTP/([0-9]{1,10})\.[0-9]{1,10}")
_KEEP_ALIVE_VERSION: Final = b"HTTP/1.1"
_COMMON_VERSIONS: Final = frozenset({_KEEP_ALIVE_VERSION, b"HTTP/1.0"})
_BODY_HEADERS: Final = frozenset({"content-length", "transfer-encoding"})

_MALFORMED: Final = Response("malformed request\n", status=HTTPStatus.BAD_REQUEST)
_LINE_TOO_LONG: Final = Response("request target too long\n", status=HTTPStatus.REQUEST_URI_TOO_LONG)
_TOO_LARGE: Final = Response("request headers too large\n", status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
_UNSUPPORTED_VERSION: Final = Response("only HTTP/1 is supported\n", status=HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request. Header names are in lower case; ``query`` is the text after ``?``, as sent."""

    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RawRequest:
    """The bytes of a request up to the end of its headers, or as many as arrived.

    ``rejection`` is the response to the request if it is well-formed but must not reach a route.
    """

    head: bytes
    is_too_large: bool = False
    rejection: Response | None = None


class ParsedRequest(NamedTuple):
    """A request, its method as sent, and whether the connection may carry another request after it."""

    method: str
    request: Request
    keep_alive: bool = False


def parse_request(raw: RawRequest) -> ParsedRequest | Response | None:
    """The request; the response that rejects it; ``None`` if there is no request line."""
    line, _, rest = raw.head.partition(b"\n")
    if len(line) > _MAX_LINE_BYTES:
        return _LINE_TOO_LONG
    words = line.split()
    if not words:
        return None
    rejection = _MALFORMED if _CONTROL.search(line) else _check_line(words, raw)
    if rejection is not None:
        return rejection
    end = _END_OF_HEAD.search(raw.head)
    if end is None:
        return _MALFORMED
    headers = _parse_headers(rest[: end.start() - len(line)], words[2])
    if isinstance(headers, Response):
        return headers
    target = words[1].decode("latin-1")
    if target.startswith("//"):  # a relative reference that starts with // names another host
        target = "/" + target.lstrip("/")
    path, _, query = target.partition("?")
    keep_alive = words[2] == _KEEP_ALIVE_VERSION and end.end() == len(raw.head) and _allows_keep_alive(headers)
    return ParsedRequest(words[0].decode("latin-1"), Request(path, query, headers), keep_alive)


def _check_line(words: list[bytes], raw: RawRequest) -> Response | None:
    """The response that rejects a malformed request line or an endless request."""
    if len(words) != 3:
        return _MALFORMED
    if words[2] not in _COMMON_VERSIONS:
        version = _VERSION.fullmatch(words[2])
        if version is None:
            return _MALFORMED
        if int(version[1]) != 1:
            return _UNSUPPORTED_VERSION
    return _TOO_LARGE if raw.is_too_large else None


def _contradicts_itself(version: bytes, headers: Mapping[str, str]) -> bool:
    """Whether a request of HTTP/1.1 names no valid host (RFC 9112, 3.2), or a request has two lengths (6.3).

    A proxy may understand such a request in another way.
    """
    host = headers.get("host", None if version != b"HTTP/1.0" else "")
    return host is None or not _HOST.fullmatch(host) or headers.keys() >= _BODY_HEADERS


def _allows_keep_alive(headers: Mapping[str, str]) -> bool:
    """Whether the client keeps the connection (RFC 9112, 9.3) and the request has no body.

    The length of a body is never interpreted, so a body cannot be mistaken for a request.
    """
    if not _BODY_HEADERS.isdisjoint(headers):
        return False
    options = headers.get("connection")
    return options is None or "close" not in (option.strip() for option in options.lower().split(","))


def _parse_headers(lines: bytes, version: bytes) -> dict[str, str] | Response:
    """Headers by name in lower case. Repeated headers are joined with commas (RFC 9110, 5.3)."""
    if not _HEADERS.fullmatch(lines):
        return _MALFORMED
    headers: dict[str, str] = {}
    header_lines = lines.decode("latin-1").split("\n")[:-1]
    if len(header_lines) > _MAX_HEADERS or (
        len(lines) > _MAX_LINE_BYTES and max(map(len, header_lines)) > _MAX_LINE_BYTES
    ):
        return _TOO_LARGE
    for line in header_lines:
        name, _, value = line.partition(":")
        key, value = name.lower(), value.strip(" \t\r")
        if key in headers:
            if key == "host":  # RFC 9112, 3.2
                return _MALFORMED
            value = f"{headers[key]}, {value}"
        headers[key] = value
    return _MALFORMED if _contradicts_itself(version, headers) else headers
