"""``/metrics``: what Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from otel_gpu.export.prometheus import PrometheusText, choose
from otel_gpu.metrics.collection import Collection, Resources
from otel_gpu.web.exchange import Request, Response, Route

PATH = "/metrics"


def metrics_route(collect: Callable[[], Collection | None], resources: Resources) -> Route:
    """A route that answers with a fresh collection, in the format that the scraper likes best."""
    text = PrometheusText(resources)

    def answer(request: Request) -> Response:
        collection = collect()
        if collection is None:
            return Response("the first sample is under way\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        exposition = choose(request.headers.get("accept", ""))
        return Response(text.render(collection, exposition), exposition.value)

    return answer
