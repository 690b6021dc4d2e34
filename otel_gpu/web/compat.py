"""Other exporters' listeners: each answers on its own port with its own series, and with nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path

from otel_gpu.compat.exporters import EXPORTERS
from otel_gpu.compat.form import Scene
from otel_gpu.compat.listener import Listener
from otel_gpu.compat.render import CONTENT_TYPE, render
from otel_gpu.compat.retention import Retention
from otel_gpu.metrics.points import Reading
from otel_gpu.values import Address
from otel_gpu.web.exchange import Request, Response, Route
from otel_gpu.web.server import WebServer

log = logging.getLogger(__name__)


def compat_routes(
    listener: Listener, newest: Callable[[float], Reading | None], host_name: str, health: Route
) -> dict[str, Route]:
    """What a listener answers. ``newest`` gives a reading that is at most so many seconds old, if one can be had."""
    exporter = EXPORTERS[listener.exporter]
    retention = None if listener.retention_s is None else Retention(listener.retention_s)

    def metrics(_: Request) -> Response:
        reading = newest(listener.max_age_s)
        if reading is None:
            return Response("the first sample is under way\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        if retention is not None:
            reading = retention.of(reading)
        scene = Scene(reading, host_name, listener.kubernetes)
        return Response(render(exporter, scene, prefix=listener.prefix, labels=listener.labels), CONTENT_TYPE)

    routes: dict[str, Route] = {listener.path: metrics}
    if exporter.health is not None:
        routes[exporter.health] = health
    return routes


class CompatServers:
    """The listeners. Constructing them binds their addresses, all or none; UsageError says which cannot be had."""

    def __init__(
        self,
        listeners: Sequence[Listener],
        newest: Callable[[float], Reading | None],
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
                bound.callback(server.close)
                self.servers.append(server)
            bound.pop_all()

    @property
    def urls(self) -> dict[str, str]:
        """Where each exporter's series are, with the exporter's name."""
        pairs = zip(self.listeners, self.servers, strict=True)
        return {f"{server.url}{listener.path}": listener.exporter for listener, server in pairs}

    def start(self) -> None:
        """Begin to answer."""
        for server in self.servers:
            server.start()

    def close(self) -> None:
        """Stop answering and free the addresses."""
        for server in self.servers:
            server.close()
