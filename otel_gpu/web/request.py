"""Reads the head of a request: its line and headers (RFC 9112, 2 to 5). What is not as it should be is refused.

Python's own reader takes it for a mail, which takes longer than all else that is done to answer a scrape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, NamedTuple

from otel_gpu.web.response import Request, Response

_LONGEST_LINE_BYTES: Final = 64 * 1024
_MOST_HEADERS: Final = 100

_END: Final = re.compile(rb"\n\r?\n")
_HEADERS: Final = re.compile(rb"(?:[-!#$%&'*+.^_`|~0-9A-Za-z]+:[^\0\r\n]*\r?\n)*")  # RFC 9110, 5.1 and 5.5
_CONTROL: Final = re.compile(rb"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")
_VERSION: Final = re.compile(rb"HTTP/([0-9]{1,10})\.[0-9]{1,10}")
_KEEPS: Final = b"HTTP/1.1"
_USUAL: Final = frozenset({_KEEPS, b"HTTP/1.0"})
_OF_A_BODY: Final = frozenset({"content-length", "transfer-encoding"})

NO_REQUEST: Final = Response("this is no request\n", status=HTTPStatus.BAD_REQUEST)
_LINE_TOO_LONG: Final = Response("the address is too long\n", status=HTTPStatus.REQUEST_URI_TOO_LONG)
_TOO_LARGE: Final = Response("the request is too large\n", status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
_OTHER_VERSION: Final = Response("HTTP/1 is spoken here\n", status=HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client sent: its request's line and headers, or as much of them as came. ``refusal`` answers whatever."""

    head: bytes
    too_large: bool = False
    refusal: Response | None = None


NOTHING_ASKED: Final = Request("")


class Head(NamedTuple):
    """A request, and its method as it was sent; whether another may come after it."""

    method: str
    request: Request
    stays: bool = False


def parse_head(asked: Asked) -> Head | Response | None:
    """A request; what is answered to one that is refused; None if nothing was asked."""
    line, _, rest = asked.head.partition(b"\n")
    if len(line) > _LONGEST_LINE_BYTES:
        return _LINE_TOO_LONG
    words = line.split()
    if not words:
        return None
    refusal = NO_REQUEST if _CONTROL.search(line) else _refused(words, asked)
    if refusal is not None:
        return refusal
    found = _END.search(asked.head)
    if found is None:
        return NO_REQUEST
    headers = _headers(rest[: found.start() - len(line)])
    if isinstance(headers, Response):
        return headers
    target = words[1].decode("latin-1")
    if target.startswith("//"):  # it would be somebody else's in a reference
        target = "/" + target.lstrip("/")
    path, _, query = target.partition("?")
    stays = words[2] == _KEEPS and found.end() == len(asked.head) and _may_stay(headers)
    return Head(words[0].decode("latin-1"), Request(path, query, headers), stays)


def _refused(words: list[bytes], asked: Asked) -> Response | None:
    """What is said to a request whose line is none, or which does not come to an end."""
    if len(words) != 3:
        return NO_REQUEST
    if words[2] not in _USUAL:
        version = _VERSION.fullmatch(words[2])
        if version is None:
            return NO_REQUEST
        if int(version[1]) != 1:
            return _OTHER_VERSION
    return _TOO_LARGE if asked.too_large else None


def _may_stay(headers: Mapping[str, str]) -> bool:
    """Whether a client wants its connection kept (RFC 9112, 9.3), and what it says next can only be a request.

    Where a body begins and ends is not looked for: nobody's body can pass for somebody's request.
    """
    if not _OF_A_BODY.isdisjoint(headers):
        return False
    wishes = headers.get("connection")
    return wishes is None or "close" not in (wish.strip() for wish in wishes.lower().split(","))


def _headers(lines: bytes) -> dict[str, str] | Response:
    """Headers by their names in lower case. Several of one name are one, with commas (RFC 9110, 5.3)."""
    if not _HEADERS.fullmatch(lines):
        return NO_REQUEST
    headers: dict[str, str] = {}
    each_line = lines.decode("latin-1").split("\n")[:-1]
    if len(each_line) > _MOST_HEADERS or (
        len(lines) > _LONGEST_LINE_BYTES and max(map(len, each_line)) > _LONGEST_LINE_BYTES
    ):
        return _TOO_LARGE
    for line in each_line:
        name, _, value = line.partition(":")
        key, value = name.lower(), value.strip(" \t\r")
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return headers
