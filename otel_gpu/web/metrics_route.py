"""``/metrics``: the endpoint that Prometheus scrapes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from otel_gpu.export.prometheus import Exposition, PrometheusRenderer, choose
from otel_gpu.metrics.series import Collection
from otel_gpu.web.request import Request
from otel_gpu.web.response import NO_SAMPLE_YET, Response
from otel_gpu.web.router import Route

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
