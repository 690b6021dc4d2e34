"""Endpoints: ``/metrics``, the page, the stream of cycles, and ports with the metric names of other exporters."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from html import escape
from importlib.resources import files
from itertools import chain
from pathlib import Path
from string import Template
from typing import Any, Final

from otel_gpu.config.compat_exporters import EXPORTERS
from otel_gpu.config.groups import Listener
from otel_gpu.config.values import Address
from otel_gpu.export.document import document, to_json
from otel_gpu.export.prometheus import PrometheusRenderer, choose
from otel_gpu.export.table import render
from otel_gpu.metrics.rows import report_rows
from otel_gpu.metrics.series import Collection
from otel_gpu.model import Report
from otel_gpu.view.builder import Subject, ViewBuilder
from otel_gpu.view.model import Problem, View, encode
from otel_gpu.view.text import KEY, LEGEND
from otel_gpu.web.bodies import Bodies, Body, CycleBody, Postponed
from otel_gpu.web.request import Request
from otel_gpu.web.response import NO_SAMPLE_YET, Feed, Response, Stream
from otel_gpu.web.router import STATIC_PREFIX, Route
from otel_gpu.web.server import WebListener, WebServer

log = logging.getLogger(__name__)

# ---------------------------------------------------------------------------- /metrics

METRICS_PATH: Final = "/metrics"


def metrics_route(collect: Callable[[], Collection | None], renderer: PrometheusRenderer, bodies: Bodies) -> Route:
    """A route that returns the newest collection in the format the scraper prefers.

    Each cycle, identified by its ``time_ns``, is rendered once per format and compression for all scrapers.
    """

    def route(request: Request) -> Response:
        collection = collect()
        if collection is None:
            return NO_SAMPLE_YET
        exposition = choose(request.headers.get("accept", ""))
        key = (METRICS_PATH, exposition)
        body = CycleBody(bodies, key, collection.time_ns, lambda: renderer.parts(collection, exposition))
        return Response(body, exposition.value)

    return route


# ---------------------------------------------------------------------------- the page

_CONTENT_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class Page:
    """The HTML of the page. Text from containers is escaped.

    ``view_of`` returns the view of a report. ``metrics``: whether ``/metrics`` is served.
    """

    def __init__(self, view_of: Callable[[Report], View], *, refresh_s: int, metrics: bool = False) -> None:
        self._view_of = view_of
        paths = {"/api/attribution": "JSON", "/metrics": "metrics", "/healthz": "health", "/readyz": "readiness"}
        links = [f'<a href="{path}">{name}</a>' for path, name in paths.items() if metrics or path != "/metrics"]
        text = files(__package__).joinpath("static", "index.html").read_text(encoding="utf-8")
        legend = [f'<li><span class="swatch {kind}"></span>{name}</li>' for kind, name in LEGEND.items()]
        parts = {"links": "\n".join(links), "legend": "\n".join(legend), "key": " ".join(KEY)}
        self._page = Template(Template(text).safe_substitute(refresh_s=refresh_s, **parts))

    def route(self, fresh: Callable[[], Report | None], bodies: Bodies) -> Route:
        """A route that returns the page with the table of the newest report."""

        def route(_: Request) -> Response:
            report = fresh()
            content_type = "text/html; charset=utf-8"
            if report is None:
                return Response(self.render(None), content_type)
            body = CycleBody(bodies, "/", report.wall_ns, lambda: [self.render(report).encode("utf-8", "replace")])
            return Response(body, content_type)

        return route

    def render(self, report: Report | None) -> str:
        """The page with the table of this report, for browsers without scripts."""
        table = "the first sample is under way"
        if report is not None:
            table = render(report, self._view_of(report), width=160)
        return self._page.substitute(table=escape(table))


def static_routes() -> dict[str, Route]:
    """Routes of the page's style sheet, scripts and icon. The files are read once."""
    routes: dict[str, Route] = {}
    for file in files(__package__).joinpath("static").iterdir():
        content_type = _CONTENT_TYPES.get(file.name.rpartition(".")[2])
        if content_type is not None:
            routes[STATIC_PREFIX + file.name] = _fixed_route(Response(file.read_bytes(), content_type))
    return routes


def _fixed_route(response: Response) -> Route:
    return lambda _: response


# ---------------------------------------------------------------------------- /api/events
#
# Every cycle as server-sent events (HTML, 9.2), encoded once for all clients. A cycle is two events: ``view`` with the
# view model, which the page and ``otel-gpu top --url`` draw, then ``attribution`` with the document of
# ``/api/attribution``.

EVENTS_PATH: Final = "/api/events"
_RETRY: Final = b"retry: 2000\n\n"
"""Milliseconds until a browser that lost the connection requests the stream again."""

_UNBUFFERED: Final = {"X-Accel-Buffering": "no"}
"""Asks a proxy to pass data on as it comes. nginx defined the header; others support it."""


class EventStream:
    """The cycles of an agent as a stream. ``observe`` is called for every cycle, from one thread.

    ``latest`` returns the newest report, ``agent_problems`` those that a report does not show. Any thread may call
    ``route``.
    """

    def __init__(
        self,
        subject: Subject,
        latest: Callable[[], Report | None],
        bodies: Bodies,
        *,
        agent_problems: Callable[[], tuple[Problem, ...]] = tuple,
    ) -> None:
        self.feed = Feed()
        self._bodies = bodies
        self._latest = latest
        self._builder = ViewBuilder(subject, agent_problems)
        self._lock = threading.Lock()
        self._published: tuple[Report, Body] | None = None
        self._failure: str | None = None

    def observe(self, report: Report) -> None:
        """Add a cycle to the history and send it to the clients. Never raises."""
        failure = None
        try:
            self._builder.observe(report)
            if self.feed.has_subscribers:
                self._publish(report, wait=True)
        except Postponed:  # clients miss this cycle
            log.debug("no room to send a cycle to the page")
        except Exception as error:  # a bug in the page must not stop the agent
            failure = type(error).__name__
            if failure != self._failure:
                log.error("sending a cycle to the page failed: %s: %s", failure, error)  # noqa: TRY400 - one line
        self._failure = failure

    def view(self, report: Report) -> View:
        """The view of a cycle, without its history."""
        return self._builder.build(report, newest_slot_only=True)

    def route(self, _: Request) -> Response:
        """The newest cycle with the history of the last hour, followed by each new cycle."""
        published = self._published
        if published is None or not self.feed.has_subscribers:  # then no cycle was published since the last client left
            report = self._latest()
            if report is None:
                return Response(_RETRY, "text/event-stream", headers=_UNBUFFERED, stream=Stream(self.feed))
            published = self._publish(report)
        report, frame = published
        body = CycleBody(
            self._bodies,
            EVENTS_PATH,
            report.wall_ns,
            lambda: chain([_RETRY], self._events(report, newest_only=False)),
        )
        return Response(body, "text/event-stream", headers=_UNBUFFERED, stream=Stream(self.feed, frame))

    def _publish(self, report: Report, *, wait: bool = False) -> tuple[Report, Body]:
        """Publish the frame of a cycle, encoded once, unless a newer one is published; returns the newest."""
        published = self._published
        if published is not None and report.monotonic_ns <= published[0].monotonic_ns:
            return published
        key = (EVENTS_PATH, "frame")
        frame = self._bodies.shared(key, report.wall_ns, lambda: self._events(report, newest_only=True), wait=wait)
        with self._lock:
            published = self._published
            if published is None or report.monotonic_ns > published[0].monotonic_ns:
                published = self._published = (report, frame)
                self.feed.publish(frame)
            return published

    def _events(self, report: Report, *, newest_only: bool) -> Iterator[bytes]:
        view = self._builder.build(report, newest_slot_only=newest_only)
        cycle = cycle_id(report)
        yield _encode_event("view", encode(view), cycle)
        yield _encode_event("attribution", document(report), cycle)


def report_route(fresh: Callable[[], Report | None], bodies: Bodies) -> Route:
    """A route that returns the newest Report as JSON."""

    def report_json(request: Request) -> Response:
        report = fresh()
        if report is None:
            return NO_SAMPLE_YET
        body = CycleBody(bodies, request.path, report.wall_ns, lambda: [to_json(report).encode(), b"\n"])
        return Response(body, "application/json", headers={"ETag": f'"{cycle_id(report)}"'})

    return report_json


def cycle_id(report: Report) -> str:
    """The identifier of a cycle in events and ETags."""
    return str(report.wall_ns)


def _encode_event(name: str, data: dict[str, Any], event_id: str) -> bytes:
    """One event. JSON in ASCII contains no line break that would end the field."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return f"event: {name}\nid: {event_id}\ndata: {text}\n\n".encode("ascii")


# ---------------------------------------------------------------------------- metric names of other exporters


class CompatListeners:
    """The listeners of other exporters' names. UsageError says which address cannot be bound."""

    def __init__(
        self,
        server: WebServer,
        listeners: Sequence[Listener],
        newest: Callable[[float], Report | None],
        bodies: Bodies,
        *,
        host: str,
        host_name: str,
        health: Route,
        web_config: Path | None,
        allowed_hosts: Sequence[str] = (),
    ) -> None:
        self._exporters: dict[WebListener, Listener] = {}
        for listener in listeners:
            for note in listener.notes:
                log.warning("%s", note)
            bound = server.listen(
                Address(listener.address.host or host, listener.address.port),
                compat_routes(listener, newest, host_name, health, bodies),
                web_config,
                remedy=f"choose another with --compat {listener.exporter}:PORT",
                allowed_hosts=allowed_hosts,
            )
            self._exporters[bound] = listener

    @property
    def addresses(self) -> list[Address]:
        """The bound addresses, in the order of the listeners."""
        return [bound.address for bound in self._exporters]

    @property
    def urls(self) -> dict[str, str]:
        """The URL of each exporter's series, with the exporter's name."""
        return {f"{bound.url}{listener.path}": listener.exporter for bound, listener in self._exporters.items()}


def compat_routes(
    listener: Listener, newest: Callable[[float], Report | None], host_name: str, health: Route, bodies: Bodies
) -> dict[str, Route]:
    """The routes of a listener. ``newest`` returns a report of at most that age in seconds, if possible."""
    # Imported here: most agents have no listener, and the exporters take memory.
    from otel_gpu.compat.families import FAMILIES  # noqa: PLC0415
    from otel_gpu.compat.render import CONTENT_TYPE, ProcessRetention, render_parts  # noqa: PLC0415
    from otel_gpu.compat.schema import RenderContext  # noqa: PLC0415

    families, health_path = FAMILIES[listener.exporter], EXPORTERS[listener.exporter].health
    retention = None if listener.retention_s is None else ProcessRetention(listener.retention_s)

    def parts(report: Report) -> Iterator[bytes]:
        rows = report_rows(report)
        if retention is not None:
            rows = retention.filter(rows)
        context = RenderContext(rows, host_name, listener.kubernetes)
        return render_parts(families, context, prefix=listener.prefix, labels=listener.labels)

    def metrics(_: Request) -> Response:
        report = newest(listener.max_age_s)
        if report is None:
            return NO_SAMPLE_YET
        body = CycleBody(bodies, (listener.exporter, listener.path), report.wall_ns, lambda: parts(report))
        return Response(body, CONTENT_TYPE)

    routes: dict[str, Route] = {listener.path: metrics}
    if health_path is not None:
        routes[health_path] = health
    return routes
