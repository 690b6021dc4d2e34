"""Collections to expose, and expositions as a scraper parses them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from otel_gpu.agent.engine import Engine
from otel_gpu.attribution.cost import Prices
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.clock import ManualClock
from otel_gpu.export.prometheus import Exposition, PrometheusRenderer
from otel_gpu.metrics.agent_values import SelfAccount
from otel_gpu.metrics.catalogue import BY_NAME
from otel_gpu.metrics.collect import MetricCollector
from otel_gpu.metrics.labels import Resources, WorkloadIdentity
from otel_gpu.metrics.series import Collection, MetricBlock, Point
from otel_gpu.model import Report
from otel_gpu.sources.sim import SimulatedHost, demo_world

TIME_NS: Final = 1_700_000_000_000_000_000
RESOURCES: Final = Resources(
    shared={"host.name": "node-1", "host.id": "4f3c"},
    agent={"service.name": "otel-gpu", "service.instance.id": "6f8a", "service.version": "1.2.3"},
)
NOWHERE: Final = Resources({}, {})

Series = frozenset[tuple[str, str]]


def simulated_report(seed: int = 1) -> Report:
    """The report of an agent with prices on a simulated host after ten seconds."""
    clock = ManualClock()
    host = SimulatedHost(demo_world(seed), clock)
    engine = Engine(
        gpus=host.gpu_source(),
        processes=host.process_source(),
        names=[host.name_source()],
        clock=clock,
        options=AttributionOptions(prices=Prices("EUR", {"": 2.0}, 0.3)),
    )
    for step_s in (0.0, 5.0, 5.0):
        clock.advance(step_s)
        report = engine.sample()
    return report


def simulated(seed: int = 1) -> Collection:
    """The collection of that report."""
    report = simulated_report(seed)
    own = SelfAccount(started_ns=report.epoch_ns, cpu_s=lambda: 0.5, memory_bytes=lambda: 1 << 20)
    own.observe(report)
    return MetricCollector(own.stats, currency="EUR").collect(report)


def point_count(collection: Collection) -> int:
    """The number of points of a collection."""
    return sum(block.point_count for block in collection.blocks)


def collection(**points: Iterable[Point]) -> Collection:
    """A collection of metrics by their names, with ``_`` for ``.``."""
    by_name = {name.replace(".", "_"): metric for name, metric in BY_NAME.items()}
    return Collection(TIME_NS, tuple(MetricBlock.of(by_name[name], own) for name, own in points.items()))


def identity(**attributes: str) -> WorkloadIdentity:
    """A workload with these attributes beyond the three that all have, with ``_`` for ``.``."""
    known = {"gpu.workload.kind": "container", "gpu.workload.id": "c0ffee", "gpu.workload.name": "vllm"}
    return WorkloadIdentity((*known.items(), *((key.replace("_", "."), value) for key, value in attributes.items())))


def render(collection: Collection, resources: Resources, form: Exposition) -> bytes:
    """A collection in a format, by a renderer that has seen no other."""
    return PrometheusRenderer(resources).render(collection, form)


def parsed(exposition: bytes, form: Exposition) -> dict[str, Metric]:
    """The families of an exposition by their names; the official parser of OpenMetrics is a strict one."""
    parse = parse_openmetrics if form is Exposition.OPENMETRICS else parse_text
    families = list(parse(exposition.decode()))
    assert len({family.name for family in families}) == len(families)
    return {family.name: family for family in families}


def series(families: Mapping[str, Metric]) -> dict[tuple[str, Series], float]:
    """Values by name and labels. Empty labels, which the official reader writes, are as good as absent ones."""
    found: dict[tuple[str, Series], float] = {}
    for family in families.values():
        for sample in family.samples:
            key = sample.name, frozenset((name, value) for name, value in sample.labels.items() if value)
            assert key not in found, key
            found[key] = sample.value
    return found
