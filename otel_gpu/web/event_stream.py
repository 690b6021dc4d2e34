"""``/api/events``: every cycle as server-sent events (HTML, 9.2), encoded once for all clients.

A cycle is two events: ``view`` with the view model, which the page and ``otel-gpu top --url`` draw, then
``attribution`` with the document of ``/api/attribution``.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from otel_gpu.export.document import document
from otel_gpu.model import Report
from otel_gpu.view.builder import Subject, ViewBuilder
from otel_gpu.view.codec import encode
from otel_gpu.web.request import Request
from otel_gpu.web.response import Feed, Response, Stream

log = logging.getLogger(__name__)

EVENTS_PATH: Final = "/api/events"
_RETRY: Final = b"retry: 2000\n\n"
"""Milliseconds until a browser that lost the connection requests the stream again."""

_UNBUFFERED: Final = {"X-Accel-Buffering": "no"}
"""Asks a proxy to pass data on as it comes. nginx defined the header; others support it."""


class EventStream:
    """The cycles of an agent as a stream. ``observe`` is called for every cycle, from one thread.

    ``fresh`` returns the newest report, or one of now. Any thread may call ``route``.
    """

    def __init__(self, subject: Subject, fresh: Callable[[], Report | None]) -> None:
        self.feed = Feed()
        self._fresh = fresh
        self._builder = ViewBuilder(subject)
        self._lock = threading.Lock()
        self._newest: Report | None = None
        self._failure: str | None = None

    def observe(self, report: Report) -> None:
        """Add a cycle to the history and send it to the clients. Never raises."""
        failure = None
        try:
            self._builder.observe(report)
            if self.feed.has_subscribers:
                self._publish(report)
        except Exception as error:  # a bug in the page must not stop the agent
            failure = type(error).__name__
            if failure != self._failure:
                log.error("sending a cycle to the page failed: %s: %s", failure, error)  # noqa: TRY400 - one line
        self._failure = failure

    def route(self, _: Request) -> Response:
        """The newest cycle with the history of the last hour, followed by each new cycle."""
        report = self._fresh()
        body, frame = _RETRY, None
        if report is not None:
            frame = self._publish(report)
            body += self._encode(report, newest_only=False)
        return Response(body, "text/event-stream", headers=_UNBUFFERED, stream=Stream(self.feed, frame))

    def _publish(self, report: Report) -> bytes | None:
        """The frame of a cycle, encoded once; the latest frame if this cycle is older."""
        with self._lock:
            newest = self._newest
            if newest is None or report.monotonic_ns > newest.monotonic_ns:
                self._newest = report
                self.feed.publish(self._encode(report, newest_only=True))
            return self.feed.latest

    def _encode(self, report: Report, *, newest_only: bool) -> bytes:
        view = self._builder.build(report, newest_slot_only=newest_only)
        cycle = cycle_id(report)
        return _encode_event("view", encode(view), cycle) + _encode_event("attribution", document(report), cycle)


def cycle_id(report: Report) -> str:
    """The identifier of a cycle in events and ETags."""
    return str(report.wall_ns)


def _encode_event(name: str, data: dict[str, Any], event_id: str) -> bytes:
    """One event. JSON in ASCII contains no line break that would end the field."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return f"event: {name}\nid: {event_id}\ndata: {text}\n\n".encode("ascii")
