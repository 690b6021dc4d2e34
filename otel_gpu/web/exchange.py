"""What a client asks and what it is answered."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from otel_gpu.web.feed import Following
from otel_gpu.web.gzipped import GzippedParts

Parts = tuple[bytes, ...]
"""A body that is sent as one; parts that come again, as the same objects, are compressed once."""

_WORTH_COMPRESSING_BYTES: Final = 1024
_GZIP_LEVEL: Final = 6  # a tenth smaller than 4 in the same time; 9 takes three times as long for another hundredth


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for. Names of headers are in lower case; what stands after ``?`` is as it was sent."""

    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """What a path answers. The server compresses and counts; a route does neither.

    One with a ``following`` has no end: after its body come the frames of a feed, until somebody hangs up.
    """

    body: str | bytes | Parts
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)
    following: Following | None = None


Route = Callable[[Request], Response]


class Encoder:
    """Makes of responses what is sent. Any thread may ask.

    What was compressed last is kept: many scrapers ask for one cycle, and compressing takes longer than all the rest.
    """

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._last: tuple[bytes | Parts, bytes] = (b"", b"")
        self._parts = GzippedParts()

    def encode(self, response: Response, accept_encoding: str) -> tuple[bytes, dict[str, str]]:
        """The body as it is sent to a client that accepts these encodings, and all headers that are about it."""
        body = response.body
        if isinstance(body, str):
            body = body.encode("utf-8", "backslashreplace")
        headers = {"Content-Type": response.content_type, **response.headers}
        if response.following is not None:  # what is compressed, or counted, has an end
            return _joined(body), headers
        if (sum(map(len, body)) if isinstance(body, tuple) else len(body)) > _WORTH_COMPRESSING_BYTES:
            headers["Vary"] = "Accept-Encoding"
            if accepts_gzip(accept_encoding):
                body = self._compressed(body)
                headers["Content-Encoding"] = "gzip"
        sent = _joined(body)
        return sent, {**headers, "Content-Length": str(len(sent))}

    def _compressed(self, body: bytes | Parts) -> bytes:
        with self._one_at_a_time:
            plain, packed = self._last
            if body is not plain:
                if isinstance(body, bytes):
                    packed = gzip.compress(body, _GZIP_LEVEL, mtime=0)
                else:
                    packed = self._parts.pack(body)
                self._last = body, packed
            return packed


def _joined(body: bytes | Parts) -> bytes:
    return body if isinstance(body, bytes) else b"".join(body)


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header allows gzip (RFC 9110, 12.5.3)."""
    weights: dict[str, float] = {}
    for part in accept_encoding.lower().split(","):
        coding, _, parameter = part.partition(";")
        weights[coding.strip()] = _weight(parameter.strip())
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0


def _weight(parameter: str) -> float:
    """The value of ``q=0.5``; 1 without one, 0 if it is none."""
    name, _, value = parameter.partition("=")
    if not parameter or name.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0
