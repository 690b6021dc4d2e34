from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from otel_gpu.config.values import Address
from otel_gpu.export.prometheus import Exposition, PrometheusRenderer
from otel_gpu.metrics.series import Collection
from otel_gpu.web.bodies import Bodies, CycleBody
from otel_gpu.web.endpoints import METRICS_PATH, metrics_route
from otel_gpu.web.request import Request
from otel_gpu.web.response import Response
from tests.unit.export.exposition import RESOURCES, parsed, point_count, series, simulated
from tests.unit.web.harness import serving
from tests.web import ask

PROMETHEUS_2_42 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


class RenderRecorder(PrometheusRenderer):
    """A renderer that records the format of each call."""

    def __init__(self) -> None:
        super().__init__(RESOURCES)
        self.expositions: list[Exposition] = []

    def parts(self, collection: Collection, form: Exposition) -> Iterator[bytes]:
        self.expositions.append(form)
        return super().parts(collection, form)


@contextmanager
def serving_metrics(collect: Callable[[], Collection | None]) -> Iterator[Address]:
    route = metrics_route(collect, PrometheusRenderer(RESOURCES), Bodies())
    with serving({"/": lambda _: Response("page"), METRICS_PATH: route}) as server:
        yield server.address


def test_a_request_without_a_preference_gets_text() -> None:
    collection = simulated()
    with serving_metrics(lambda: collection) as address:
        answer = ask(address, "/metrics")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert len(series(parsed(answer.body.encode(), Exposition.TEXT))) == point_count(collection) + 1  # and target_info


def test_prometheus_gets_compressed_openmetrics() -> None:
    collection = simulated()
    with serving_metrics(lambda: collection) as address:
        answer = ask(address, "/metrics", headers={"Accept": PROMETHEUS_2_42, "Accept-Encoding": "gzip"})
    assert answer.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert answer.headers["Content-Encoding"] == "gzip"
    assert len(series(parsed(answer.body.encode(), Exposition.OPENMETRICS))) == point_count(collection) + 1


def test_each_cycle_is_rendered_once_per_format() -> None:
    cycle = simulated(seed=1)
    next_cycle = replace(simulated(seed=2), time_ns=cycle.time_ns + 1)
    renderer = RenderRecorder()
    collected = [cycle]
    route = metrics_route(lambda: collected[-1], renderer, Bodies())

    def scrape(accept: str = "") -> bytes:
        body = route(Request("/metrics", headers={"accept": accept})).body
        assert isinstance(body, CycleBody)
        return body.plain().data

    first = scrape()
    collected.append(replace(cycle))  # the same cycle in another object
    assert scrape() is first
    scrape(PROMETHEUS_2_42)
    scrape(PROMETHEUS_2_42)
    assert renderer.expositions == [Exposition.TEXT, Exposition.OPENMETRICS]
    collected.append(next_cycle)
    assert scrape() != first
    assert renderer.expositions == [Exposition.TEXT, Exposition.OPENMETRICS, Exposition.TEXT]


def test_before_the_first_sample_a_scrape_gets_503() -> None:
    with serving_metrics(lambda: None) as address:
        answer = ask(address, "/metrics")
    assert (answer.status, answer.body) == (503, "the first sample is under way\n")
