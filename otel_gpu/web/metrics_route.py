"""``/metrics``: the endpoint that Prometheus scrapes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http import HTTPStatus

from otel_gpu.export.prometheus import Exposition, PrometheusRenderer, choose
from otel_gpu.metrics.series import Collection
from otel_gpu.web.response import Request, Response, Route

PATH = "/metrics"


def metrics_route(collect: Callable[[], Collection | None], renderer: PrometheusRenderer) -> Route:
    """A route that answers with the newest collection, in the format that the scraper prefers."""
    lock = threading.Lock()
    rendered: dict[Exposition, tuple[Collection, bytes]] = {}  # a cycle is rendered once for all scrapers

    def answer(request: Request) -> Response:
        collection = collect()
        if collection is None:
            return Response("the first sample is under way\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        form = choose(request.headers.get("accept", ""))
        with lock:
            if form not in rendered or rendered[form][0] != collection:
                rendered[form] = collection, renderer.render(collection, form)
            return Response(rendered[form][1], form.value)

    return answer
