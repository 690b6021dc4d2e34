"""HTTP responses: what a route returns, response streams, and gzip compression."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from isal import isal_zlib

_MAX_UNCOMPRESSED_BYTES: Final = 1024
_GZIP_LEVEL: Final = 1  # level 2 gives the same size in the same time, level 3 takes eight times as long (ADR 1)
_GZIP_FORMAT: Final = 16 + 15  # zlib's wbits: a gzip member, the largest window


class Feed:
    """Frames for any number of subscribers, of which only the latest is kept. Any thread may publish.

    A frame is one bytes object for all subscribers. Frames are compared by identity.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notify: dict[object, Callable[[], None]] = {}
        self.latest: bytes | None = None

    @property
    def has_subscribers(self) -> bool:
        """Whether a new frame would be sent to anything."""
        return bool(self._notify)

    def publish(self, frame: bytes) -> None:
        """Make this the latest frame and notify the subscribers."""
        with self._lock:
            self.latest = frame
            callbacks = set(self._notify.values())  # a server with many subscribers is notified once
        for notify in callbacks:
            notify()

    def subscribe(self, subscriber: object, notify: Callable[[], None]) -> None:
        """Call ``notify`` for each new frame, from any thread."""
        with self._lock:
            self._notify[subscriber] = notify

    def unsubscribe(self, subscriber: object) -> None:
        """Stop notifying a subscriber. An unknown one is ignored."""
        with self._lock:
            self._notify.pop(subscriber, None)


@dataclass(frozen=True, slots=True)
class Stream:
    """The frames of a feed that follow a response body. ``body_frame`` is the frame that the body already contains."""

    feed: Feed
    body_frame: bytes | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """The response of a route. The server compresses the body and adds Content-Length; a route does neither.

    A response with a ``stream`` has no end: the frames of a feed follow its body until either side closes the
    connection.
    """

    body: str | bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: Stream | None = None


NO_SAMPLE_YET: Final = Response("the first sample is under way\n", status=HTTPStatus.SERVICE_UNAVAILABLE)


class Encoder:
    """Encodes response bodies. Any thread may use it.

    The last compressed body is kept, because several scrapers may request one cycle.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: tuple[bytes, bytes] = (b"", b"")

    def encode(self, response: Response, accept_encoding: str) -> tuple[bytes, dict[str, str]]:
        """The body as sent to a client with this Accept-Encoding, and the headers that describe it."""
        body = response.body
        if isinstance(body, str):
            body = body.encode("utf-8", "backslashreplace")
        headers = {"Content-Type": response.content_type, **response.headers}
        if response.stream is not None:  # a body without an end has no length and is not compressed
            return body, headers
        if len(body) > _MAX_UNCOMPRESSED_BYTES:
            headers["Vary"] = "Accept-Encoding"
            if accepts_gzip(accept_encoding):
                with self._lock:
                    if body != self._last[0]:
                        self._last = body, isal_zlib.compress(body, _GZIP_LEVEL, wbits=_GZIP_FORMAT)
                    body = self._last[1]
                headers["Content-Encoding"] = "gzip"
        return body, {**headers, "Content-Length": str(len(body))}


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header allows gzip (RFC 9110, 12.5.3)."""
    weights: dict[str, float] = {}
    for part in accept_encoding.lower().split(","):
        coding, _, parameter = part.partition(";")
        weights[coding.strip()] = _parse_weight(parameter.strip())
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0


def _parse_weight(parameter: str) -> float:
    """The value of ``q=0.5``; 1 without a weight, 0 for an invalid one."""
    name, _, value = parameter.partition("=")
    if not parameter or name.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0
