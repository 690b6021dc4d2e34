"""``/api/events``: every cycle as it comes, by server-sent events (HTML, 9.2), encoded once for all who follow.

A cycle is two events: ``page`` with what the page shows beside the document, then ``attribution`` with the document
itself, the same as that of ``/api/attribution``.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from otel_gpu.export.document import document
from otel_gpu.model import Report
from otel_gpu.web.feed import Feed, Following
from otel_gpu.web.history import History
from otel_gpu.web.particulars import About, particulars
from otel_gpu.web.response import Request, Response

log = logging.getLogger(__name__)

PATH: Final = "/api/events"
_RETRY: Final = b"retry: 2000\n\n"
"""Milliseconds after which a browser that was cut off asks again."""

_UNBUFFERED: Final = {"X-Accel-Buffering": "no"}
"""Asks a proxy in between (nginx's word, which others know) to hand on what comes when it comes."""


class Events:
    """The cycles for who follows them. ``observe`` is for every cycle, from one thread; any thread may ask.

    ``fresh`` gives the newest cycle, or one of now.
    """

    def __init__(self, about: About, fresh: Callable[[], Report | None]) -> None:
        self.feed = Feed()
        self._about = about
        self._fresh = fresh
        self._history = History()
        self._lock = threading.Lock()
        self._newest: Report | None = None
        self._failure: str | None = None

    def observe(self, attribution: Report) -> None:
        """Take in a cycle, and tell it to whoever follows. The agent goes on, whatever comes of that."""
        failure = None
        try:
            self._history.observe(attribution)
            if self.feed.followed:
                self._publish(attribution)
        except Exception as error:  # a bug in what is shown must not end what is measured
            failure = type(error).__name__
            if failure != self._failure:
                log.error("telling a cycle to the page failed: %s: %s", failure, error)  # noqa: TRY400 - one line
        self._failure = failure

    def route(self, _: Request) -> Response:
        """What a new follower gets at once: the newest cycle with all of the last hour. The next come as they come."""
        attribution = self._fresh()
        body, told = _RETRY, None
        if attribution is not None:
            told = self._publish(attribution)
            body += self._frame(attribution, newest_only=False)
        return Response(body, "text/event-stream", headers=_UNBUFFERED, following=Following(self.feed, told))

    def _publish(self, attribution: Report) -> bytes | None:
        """The frame of a cycle, made once; the newest one's if this one is older."""
        with self._lock:
            newest = self._newest
            if newest is None or attribution.monotonic_ns > newest.monotonic_ns:
                self._newest = attribution
                self.feed.publish(self._frame(attribution, newest_only=True))
            return self.feed.newest

    def _frame(self, attribution: Report, *, newest_only: bool) -> bytes:
        beside = particulars(attribution, self._about, self._history.document(newest_only=newest_only))
        return _event("page", beside) + _event("attribution", document(attribution), cycle(attribution))


def cycle(attribution: Report) -> str:
    """What tells a cycle from others."""
    return str(attribution.wall_ns)


def _event(name: str, data: dict[str, Any], number: str | None = None) -> bytes:
    """One event. JSON in ASCII has no line end that a field could break at."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    id_line = "" if number is None else f"id: {number}\n"
    return f"event: {name}\n{id_line}data: {text}\n\n".encode("ascii")
