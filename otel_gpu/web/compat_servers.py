"""Servers for the metric names of other exporters: one port for each exporter, with its series only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from otel_gpu.config.groups import Listener
from otel_gpu.config.values import Address
from otel_gpu.metrics.rows import ReportRows
from otel_gpu.web.request import Request
from otel_gpu.web.response import NO_SAMPLE_YET, Response
from otel_gpu.web.router import Route
from otel_gpu.web.server import WebServer

log = logging.getLogger(__name__)


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
    from otel_gpu.compat.exporters import EXPORTERS  # noqa: PLC0415
    from otel_gpu.compat.render import CONTENT_TYPE, ProcessRetention, render  # noqa: PLC0415
    from otel_gpu.compat.schema import RenderContext  # noqa: PLC0415

    exporter = EXPORTERS[listener.exporter]
    retention = None if listener.retention_s is None else ProcessRetention(listener.retention_s)

    def metrics(_: Request) -> Response:
        rows = newest(listener.max_age_s)
        if rows is None:
            return NO_SAMPLE_YET
        if retention is not None:
            rows = retention.filter(rows)
        context = RenderContext(rows, host_name, listener.kubernetes)
        return Response(render(exporter, context, prefix=listener.prefix, labels=listener.labels), CONTENT_TYPE)

    routes: dict[str, Route] = {listener.path: metrics}
    if exporter.health is not None:
        routes[exporter.health] = health
    return routes
