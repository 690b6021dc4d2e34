"""Endpoints: ``/metrics``, the page, the stream of cycles, and ports with the metric names of other exporters."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

from otel_gpu.config.compat_exporters import EXPORTERS
from otel_gpu.config.groups import Listener
from otel_gpu.config.values import Address
from otel_gpu.export.document import document
from otel_gpu.export.prometheus import Exposition, PrometheusRenderer, choose
from otel_gpu.export.table import render
from otel_gpu.metrics.rows import ReportRows
from otel_gpu.metrics.series import Collection
from otel_gpu.model import Report
from otel_gpu.view.builder import Subject, ViewBuilder
from otel_gpu.view.model import View, encode
from otel_gpu.view.text import KEY, LEGEND
from otel_gpu.web.request import Request
from otel_gpu.web.response import NO_SAMPLE_YET, Feed, Response, Stream
from otel_gpu.web.router import STATIC_PREFIX, Route
from otel_gpu.web.server import WebServer

log = logging.getLogger(__name__)

# ---------------------------------------------------------------------------- /metrics

METRICS_PATH: Final = "/metrics"


def metrics_route(collect: Callable[[], Collection | None], renderer: PrometheusRenderer) -> Route:
    """A route that returns the newest collection in the format the scraper prefers.

    Each cycle, identified by its ``time_ns``, is rendered once per format for all scrapers.
    """
    lock = threading.Lock()
    rendered: dict[Exposition, tuple[int, bytes]] = {}

    def route(request: Request) -> Response:
        collection = collect()
        if collection is None:
            return NO_SAMPLE_YET
        exposition = choose(request.headers.get("accept", ""))
        with lock:
            if exposition not in rendered or rendered[exposition][0] != collection.time_ns:
                rendered[exposition] = collection.time_ns, renderer.render(collection, exposition)
            return Response(rendered[exposition][1], exposition.value)

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

    def view(self, report: Report) -> View:
        """The view of a cycle, without its history."""
        return self._builder.build(report, newest_slot_only=True)

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


# ---------------------------------------------------------------------------- metric names of other exporters


class CompatServers:
    """One server per listener. Construction binds all addresses or none; UsageError says which cannot be bound."""

    def __init__(
        self,
        listeners: Sequence[Listener],
        newest: Callable[[float], ReportRows | None],
        *,
        host: str,
        host_name: str,
        health: Route,
        web_config: Path | None,
    ) -> None:
        self.listeners = tuple(listeners)
        self.servers: list[WebServer] = []
        with ExitStack() as bound:
            for listener in self.listeners:
                for note in listener.notes:
                    log.warning("%s", note)
                server = WebServer(
                    Address(listener.address.host or host, listener.address.port),
                    compat_routes(listener, newest, host_name, health),
                    web_config,
                    remedy=f"choose another with --compat {listener.exporter}:PORT",
                )
                bound.callback(server.stop)
                self.servers.append(server)
            bound.pop_all()

    @property
    def urls(self) -> dict[str, str]:
        """The URL of each exporter's series, with the exporter's name."""
        pairs = zip(self.listeners, self.servers, strict=True)
        return {f"{server.url}{listener.path}": listener.exporter for listener, server in pairs}

    def start(self) -> None:
        """Start to serve requests."""
        for server in self.servers:
            server.start()

    def stop(self) -> None:
        """Close every connection and free the addresses."""
        for server in self.servers:
            server.stop()


def compat_routes(
    listener: Listener, newest: Callable[[float], ReportRows | None], host_name: str, health: Route
) -> dict[str, Route]:
    """The routes of a listener. ``newest`` returns the rows of a report of at most that age in seconds, if possible."""
    # Imported here: most agents have no listener, and the exporters take memory.
    from otel_gpu.compat.families import FAMILIES  # noqa: PLC0415
    from otel_gpu.compat.render import CONTENT_TYPE, ProcessRetention, render  # noqa: PLC0415
    from otel_gpu.compat.schema import RenderContext  # noqa: PLC0415

    families, health_path = FAMILIES[listener.exporter], EXPORTERS[listener.exporter].health
    retention = None if listener.retention_s is None else ProcessRetention(listener.retention_s)

    def metrics(_: Request) -> Response:
        rows = newest(listener.max_age_s)
        if rows is None:
            return NO_SAMPLE_YET
        if retention is not None:
            rows = retention.filter(rows)
        context = RenderContext(rows, host_name, listener.kubernetes)
        return Response(render(families, context, prefix=listener.prefix, labels=listener.labels), CONTENT_TYPE)

    routes: dict[str, Route] = {listener.path: metrics}
    if health_path is not None:
        routes[health_path] = health
    return routes
