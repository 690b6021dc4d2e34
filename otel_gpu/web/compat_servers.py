"""Other exporters' listeners: each answers on its own port with its own series, and with nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from otel_gpu.compat.listener import Listener
from otel_gpu.metrics.rows import ReportRows
from otel_gpu.values import Address
from otel_gpu.web.response import Route
from otel_gpu.web.server import WebServer

log = logging.getLogger(__name__)


class CompatServers:
    """The listeners. Constructing them binds their addresses, all or none; UsageError says which cannot be had."""

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
                from otel_gpu.web.compat_routes import compat_routes  # noqa: PLC0415 - most agents have no listener

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
