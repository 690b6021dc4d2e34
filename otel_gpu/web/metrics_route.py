"""``/metrics``: what Prometheus scrapes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http import HTTPStatus

from otel_gpu.export.prometheus import Exposition, PrometheusText, choose
from otel_gpu.metrics.collection import Collection, Resources
from otel_gpu.web.exchange import Parts, Request, Response, Route

PATH = "/metrics"


def metrics_route(collect: Callable[[], Collection | None], resources: Resources) -> Route:
    """A route that answers with a fresh collection, in the format that the scraper likes best."""
    text = PrometheusText(resources)
    one_at_a_time = threading.Lock()
    rendered: dict[Exposition, tuple[Collection, Parts]] = {}  # many scrapers ask for one cycle: it is written once

    def answer(request: Request) -> Response:
        collection = collect()
        if collection is None:
            return Response("the first sample is under way\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        exposition = choose(request.headers.get("accept", ""))
        with one_at_a_time:
            written = rendered.get(exposition)
            if written is None or written[0] is not collection:
                written = rendered[exposition] = collection, text.parts(collection, exposition)
        return Response(written[1], exposition.value)

    return answer
