"""HTTP responses: what a route returns, response streams, and the choice of gzip."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from otel_gpu.web.bodies import Bodies, Body, CycleBody, gzipped

_MAX_UNCOMPRESSED_BYTES: Final = 1024


class Feed:
    """Frames for any number of subscribers, of which only the latest is kept. Any thread may publish.

    A frame is one object for all subscribers. Frames are compared by identity.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notify: dict[object, Callable[[], None]] = {}
        self.latest: Body | None = None

    @property
    def has_subscribers(self) -> bool:
        """Whether a new frame would be sent to anything."""
        return bool(self._notify)

    def publish(self, frame: Body) -> None:
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
    body_frame: Body | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """The response of a route. The server compresses the body and adds Content-Length; a route does neither.

    A body of more than a few lines is a ``CycleBody``: many clients may ask for it at the same time.

    A response with a ``stream`` has no end: the frames of a feed follow its body until either side closes the
    connection.
    """

    body: str | bytes | CycleBody
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: Stream | None = None


NO_SAMPLE_YET: Final = Response("the first sample is under way\n", status=HTTPStatus.SERVICE_UNAVAILABLE)


class Encoder:
    """Encodes response bodies. Any thread may use it.

    The last compressed body of fixed bytes is kept: the page's files do not change.
    """

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._lock = threading.Lock()
        self._last: tuple[bytes, bytes] = (b"", b"")

    def encode(self, response: Response, accept_encoding: str) -> tuple[Body, dict[str, str]]:
        """The body as sent to a client with this Accept-Encoding, and the headers that describe it.

        Postponed if there is no memory for it now.
        """
        headers = {"Content-Type": response.content_type, **response.headers}
        content = response.body
        if isinstance(content, str):
            content = content.encode("utf-8", "backslashreplace")
        if response.stream is not None:  # a body without an end has no length and is not compressed
            return self._plain(content), headers
        if isinstance(content, CycleBody) or len(content) > _MAX_UNCOMPRESSED_BYTES:
            headers["Vary"] = "Accept-Encoding"
            if accepts_gzip(accept_encoding):
                headers["Content-Encoding"] = "gzip"
                body = content.compressed() if isinstance(content, CycleBody) else self._compressed(content)
                return body, {**headers, "Content-Length": str(len(body.data))}
        body = self._plain(content)
        return body, {**headers, "Content-Length": str(len(body.data))}

    def _plain(self, content: bytes | CycleBody) -> Body:
        return content.plain() if isinstance(content, CycleBody) else self._bodies.adopted(content)

    def _compressed(self, content: bytes) -> Body:
        with self._lock:
            if content != self._last[0]:
                self._last = content, b"".join(gzipped([content]))
            return self._bodies.adopted(self._last[1])


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
