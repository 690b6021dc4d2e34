"""What another exporter's listener answers: its series, rendered from the newest report."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from otel_gpu.compat.exporters import EXPORTERS
from otel_gpu.compat.form import Scene
from otel_gpu.compat.listener import Listener
from otel_gpu.compat.render import CONTENT_TYPE, render
from otel_gpu.compat.retention import Retention
from otel_gpu.metrics.rows import ReportRows
from otel_gpu.web.response import Request, Response, Route


def compat_routes(
    listener: Listener, newest: Callable[[float], ReportRows | None], host_name: str, health: Route
) -> dict[str, Route]:
    """The routes of a listener. ``newest`` gives the rows of a report of at most that age in seconds, if it can."""
    exporter = EXPORTERS[listener.exporter]
    retention = None if listener.retention_s is None else Retention(listener.retention_s)

    def metrics(_: Request) -> Response:
        rows = newest(listener.max_age_s)
        if rows is None:
            return Response("the first sample is under way\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        if retention is not None:
            rows = retention.of(rows)
        scene = Scene(rows, host_name, listener.kubernetes)
        return Response(render(exporter, scene, prefix=listener.prefix, labels=listener.labels), CONTENT_TYPE)

    routes: dict[str, Route] = {listener.path: metrics}
    if exporter.health is not None:
        routes[exporter.health] = health
    return routes
