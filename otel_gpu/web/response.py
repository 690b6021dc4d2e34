"""HTTP requests and responses as routes see them, and the compression of bodies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from isal import isal_zlib

from otel_gpu.web.feed import Following

_WORTH_COMPRESSING_BYTES: Final = 1024
_GZIP_LEVEL: Final = 1  # level 2 gives the same size in the same time, level 3 takes eight times as long (ADR 1)
_GZIP_FORMAT: Final = 16 + 15  # zlib's wbits: a gzip member, the largest window


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request. Names of headers are in lower case; ``query`` is what follows ``?``, as it was sent."""

    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """A route's answer. The server compresses it and adds its length; a route does neither.

    A response with ``following`` has no end: after its body come the frames of a feed, until a side hangs up.
    """

    body: str | bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)
    following: Following | None = None


Route = Callable[[Request], Response]


class Encoder:
    """Encodes responses for sending. Any thread may ask.

    The last compressed body is kept: several scrapers may ask for one cycle.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: tuple[bytes, bytes] = (b"", b"")

    def encode(self, response: Response, accept_encoding: str) -> tuple[bytes, dict[str, str]]:
        """The body as it is sent to a client that accepts these encodings, and all headers that are about it."""
        body = response.body
        if isinstance(body, str):
            body = body.encode("utf-8", "backslashreplace")
        headers = {"Content-Type": response.content_type, **response.headers}
        if response.following is not None:  # a body without an end is neither compressed nor counted
            return body, headers
        if len(body) > _WORTH_COMPRESSING_BYTES:
            headers["Vary"] = "Accept-Encoding"
            if accepts_gzip(accept_encoding):
                body = self._compressed(body)
                headers["Content-Encoding"] = "gzip"
        return body, {**headers, "Content-Length": str(len(body))}

    def _compressed(self, body: bytes) -> bytes:
        with self._lock:
            if body != self._last[0]:
                self._last = body, isal_zlib.compress(body, _GZIP_LEVEL, wbits=_GZIP_FORMAT)
            return self._last[1]


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header allows gzip (RFC 9110, 12.5.3)."""
    weights: dict[str, float] = {}
    for part in accept_encoding.lower().split(","):
        coding, _, parameter = part.partition(";")
        weights[coding.strip()] = _weight(parameter.strip())
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0


def _weight(parameter: str) -> float:
    """The value of ``q=0.5``; 1 without a weight, 0 for an invalid one."""
    name, _, value = parameter.partition("=")
    if not parameter or name.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0
