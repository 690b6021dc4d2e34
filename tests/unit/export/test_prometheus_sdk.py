"""The official reader as a second opinion: the instruments on an ordinary SDK provider, scraped."""

from __future__ import annotations

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, Metric

from otel_gpu.export.prometheus import Exposition
from otel_gpu.metrics.catalogue import METRICS
from otel_gpu.metrics.instruments import create_instruments
from otel_gpu.metrics.labels import Resources
from otel_gpu.metrics.names import prometheus_name
from otel_gpu.metrics.series import Collection
from tests.unit.export.exposition import parsed, render, series, simulated

SHARED = {"host.name": "node-1", "host.id": "4f3c", "deployment.environment": "prod"}


def scraped(collection: Collection) -> dict[str, Metric]:
    """The families that the official reader exposes. It has one Resource, so the workload is on the points."""
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(
        disable_target_info=True,
        scope_info_enabled=False,
        resource_attribute_filter=lambda _: True,
        registry=registry,
    )
    provider = MeterProvider([reader], Resource(SHARED))
    try:
        create_instruments(provider, lambda: collection)
        return {family.name: family for family in registry.collect()}
    finally:
        provider.shutdown()


def test_the_official_reader_has_the_same_series_except_for_the_suffix_ratio() -> None:
    collection = simulated()
    official = scraped(collection)
    ratios = {prometheus_name(metric) for metric in METRICS} - official.keys()
    # OpenTelemetry's specification wants _ratio on gauges of unit 1, as the Collector has it; the reader has not.
    renamed = {f"{name}_ratio": name for name in official if f"{name}_ratio" in ratios}
    ours = parsed(render(collection, Resources(SHARED, {}), Exposition.TEXT), Exposition.TEXT)
    found = {(renamed.get(name, name), labels): value for (name, labels), value in series(ours).items()}
    assert found == series(official)
    assert len(found) > 500
    assert {official[renamed.get(name, name)].type for name in ours} == {"counter", "gauge"}
    assert all(official[renamed.get(name, name)].type == family.type for name, family in ours.items())
