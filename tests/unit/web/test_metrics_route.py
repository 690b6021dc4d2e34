from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from otel_gpu.export.prometheus import Exposition, PrometheusRenderer
from otel_gpu.metrics.series import Collection
from otel_gpu.values import Address
from otel_gpu.web.metrics_route import PATH, metrics_route
from otel_gpu.web.response import Response
from otel_gpu.web.server import WebServer
from tests.unit.export.exposition import RESOURCES, parsed, point_count, series, simulated
from tests.web import ask

PROMETHEUS_2_42 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


@contextmanager
def serving(source: Callable[[], Collection | None]) -> Iterator[Address]:
    routes = {"/": lambda _: Response("page"), PATH: metrics_route(source, PrometheusRenderer(RESOURCES))}
    server = WebServer(Address("127.0.0.1", 0), routes)
    server.start()
    try:
        yield server.address
    finally:
        server.close()


def test_a_request_without_a_preference_gets_text() -> None:
    collection = simulated()
    with serving(lambda: collection) as address:
        answer = ask(address, "/metrics")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert len(series(parsed(answer.body.encode(), Exposition.TEXT))) == point_count(collection) + 1  # and target_info


def test_prometheus_gets_openmetrics_compressed() -> None:
    collection = simulated()
    with serving(lambda: collection) as address:
        answer = ask(address, "/metrics", headers={"Accept": PROMETHEUS_2_42, "Accept-Encoding": "gzip"})
    assert answer.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert answer.headers["Content-Encoding"] == "gzip"
    assert len(series(parsed(answer.body.encode(), Exposition.OPENMETRICS))) == point_count(collection) + 1


def test_every_scrape_has_a_fresh_collection() -> None:
    collections = iter([simulated(seed) for seed in (1, 2)])
    with serving(lambda: next(collections)) as address:
        first, second = (ask(address, "/metrics").body for _ in range(2))
    assert first != second


def test_before_the_first_sample_a_scrape_fails_and_says_why() -> None:
    with serving(lambda: None) as address:
        answer = ask(address, "/metrics")
    assert (answer.status, answer.body) == (503, "the first sample is under way\n")


def test_another_path_answers_where_the_metrics_are() -> None:
    with serving(lambda: None) as address:
        assert "/metrics" in ask(address, "/nowhere").body
