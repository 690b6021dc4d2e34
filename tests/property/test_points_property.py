"""Laws of exported points, over simulated hosts and random histories: they add up, and every series is unique."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import cycle

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_gpu.agent.engine import Engine
from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.cost import Prices
from otel_gpu.attribution.options import AttributionOptions, EnergyPolicy
from otel_gpu.clock import ManualClock
from otel_gpu.export.prometheus import Exposition, PrometheusRenderer
from otel_gpu.metrics.agent_values import SelfAccount, SelfStats
from otel_gpu.metrics.catalogue import METRICS, Kind, Metric
from otel_gpu.metrics.collect import MetricCollector
from otel_gpu.metrics.labels import Resources
from otel_gpu.metrics.series import Collection, Point
from otel_gpu.model import Report, Snapshot
from otel_gpu.sources.sim import SimulatedHost, WorldSpec, demo_world
from tests.property.histories import histories
from tests.property.steady import steady_histories
from tests.property.test_sim_property import worlds

Exported = dict[str, list[Point]]
RESOURCES = Resources({"host.name": "node-1"}, {"service.name": "otel-gpu", "service.instance.id": "1"})

anywhere = st.one_of(st.integers(0, 1000).map(demo_world), worlds())
choices = st.builds(
    AttributionOptions,
    energy_policy=st.sampled_from(EnergyPolicy),
    retention_s=st.sampled_from([1.0, 300.0]),
    max_processes=st.sampled_from([2, 2000]),
    max_workloads=st.sampled_from([1, 2000]),
    prices=st.sampled_from([None, Prices("EUR", {"": 2.0}, 0.3)]),
)
steps_s = st.lists(st.sampled_from([1.0, 5.0, 5.0, 40.0]), min_size=1, max_size=6)
thorough = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def cycles(world: WorldSpec, steps: Iterable[float], chosen: AttributionOptions) -> Iterator[tuple[Report, Exported]]:
    """The report of each cycle of an agent on this host, and the points of each metric."""
    clock = ManualClock()
    host = SimulatedHost(world, clock)
    engine = Engine(
        gpus=host.gpu_source(),
        processes=host.process_source(),
        names=[host.name_source()],
        clock=clock,
        options=chosen,
    )
    own = SelfAccount(started_ns=clock.wall_ns(), cpu_s=lambda: 0.5, memory_bytes=lambda: 1 << 20)
    for step_s in (0.0, *steps):
        clock.advance(step_s)
        report = engine.sample()
        own.observe(report)
        collection = MetricCollector(own.stats, currency="EUR").collect(report)
        exported: Exported = {metric.name: [] for metric in METRICS}
        exported |= {block.metric.name: list(block.points) for block in collection.blocks}
        yield report, exported


def by_gpu(found: Iterable[Point], **where: str) -> dict[object, float]:
    """Sums of points by GPU, of those with these attributes."""
    sums: dict[object, float] = {}
    for point in found:
        if all(point.attributes[key.replace("_", ".")] == value for key, value in where.items()):
            sums[point.attributes["hw.id"]] = sums.get(point.attributes["hw.id"], 0) + point.value
    return sums


def millijoules(sums: dict[object, float]) -> dict[object, int]:
    return {gpu: round(joules * 1000) for gpu, joules in sums.items()}


@thorough
@given(anywhere, steps_s, choices)
def test_exported_values_add_up(world: WorldSpec, steps: list[float], chosen: AttributionOptions) -> None:
    for report, exported in cycles(world, steps, chosen):
        memory, energy = exported["gpu.device.memory.usage"], exported["gpu.device.energy"]
        assert by_gpu(memory) == by_gpu(exported["hw.gpu.memory.limit"])
        assert millijoules(by_gpu(energy)) == millijoules(by_gpu(exported["hw.energy"]))
        assert set(by_gpu(exported["hw.status"]).values()) == {1}
        assert not any(point.value for point in exported["otel_gpu.conservation.memory.error"])
        assert not any(point.value for point in exported["otel_gpu.conservation.energy.error"])
        assert all(point.value >= 0 for point in memory)
        attributed = millijoules(by_gpu(energy, gpu_energy_state="attributed"))
        for level in ("workload", "process"):  # without dropped accounts
            given_mj = millijoules(by_gpu(exported[f"gpu.{level}.energy"]))
            assert all(energy_mj <= attributed[gpu] for gpu, energy_mj in given_mj.items())
        if not any(workload.awaiting_names for workload in report.workloads):
            assert_workloads_sum_to_the_gpus(report, exported)


def assert_workloads_sum_to_the_gpus(report: Report, exported: Exported) -> None:
    held, memory = exported["gpu.workload.memory.usage"], exported["gpu.device.memory.usage"]
    measured = by_gpu(held, gpu_attribution_method="measured")
    inferred = by_gpu(held, gpu_attribution_method="inferred")
    claimed, over = by_gpu(memory, gpu_memory_state="measured"), by_gpu(exported["gpu.device.memory.overcount"])
    explained = by_gpu(memory, gpu_memory_state="inferred")
    for gpu in report.gpus:
        uuid = gpu.identity.uuid
        if gpu.mig is None:
            assert measured.get(uuid, 0) == claimed[uuid] + over[uuid]
            assert inferred.get(uuid, 0) == explained[uuid]


@thorough
@given(anywhere, steps_s, choices)
def test_every_series_is_unique_and_as_its_metric_declares(
    world: WorldSpec, steps: list[float], chosen: AttributionOptions
) -> None:
    for _, exported in cycles(world, steps, chosen):
        for metric in METRICS:
            found = exported[metric.name]
            series = {(point.workload, frozenset(point.attributes.items())) for point in found}
            assert len(series) == len(found), metric.name
            for point in found:
                assert_declared(metric, point)


def assert_declared(metric: Metric, point: Point) -> None:
    keys = tuple(a.key for a in metric.attributes if not a.optional or a.key in point.attributes)
    assert tuple(point.attributes) == keys
    for attribute in metric.attributes:
        value = point.attributes.get(attribute.key)
        assert type(value) is attribute.type or (attribute.optional and value is None)
        assert value is None or not attribute.values or value in attribute.values
        assert value != ""
    assert (point.workload is None) is (metric.level in ("device", "agent"))
    assert math.isfinite(point.value)
    one_or_none = metric.unit == "1" and metric.kind is Kind.UPDOWNCOUNTER
    counted = one_or_none or metric.unit in ("By", "{error}", "{process}", "{series}")
    assert type(point.value) is (int if counted else float)
    if metric.kind is not Kind.COUNTER:
        assert point.start_ns is None
    else:
        assert point.value >= 0
        assert point.start_ns is not None or metric.name == "hw.errors"


@thorough
@given(anywhere, steps_s, choices)
def test_no_counter_falls_while_its_start_is_unchanged(
    world: WorldSpec, steps: list[float], chosen: AttributionOptions
) -> None:
    before: dict[tuple[object, ...], tuple[float, int | None]] = {}
    for _, exported in cycles(world, steps, chosen):
        now: dict[tuple[object, ...], tuple[float, int | None]] = {
            (metric.name, point.workload, frozenset(point.attributes.items())): (point.value, point.start_ns)
            for metric in METRICS
            if metric.kind is Kind.COUNTER
            for point in exported[metric.name]
        }
        for series, (value, start_ns) in now.items():
            if series in before and before[series][1] == start_ns:
                assert value >= before[series][0], series
        before = now


class LongLived:
    """A collector and a renderer that are used for many cycles, compared with fresh ones in each."""

    def __init__(self) -> None:
        self._stats = SelfStats(started_ns=1)
        self._collector = self._fresh_collector()
        self._renderer = PrometheusRenderer(RESOURCES, created=True)
        self._last: Collection | None = None

    def _fresh_collector(self) -> MetricCollector:
        return MetricCollector(lambda: self._stats, currency="EUR")

    def assert_like_fresh_ones(self, report: Report) -> None:
        found, fresh = self._collector.collect(report), self._fresh_collector().collect(report)
        assert repr(found) == repr(fresh)  # equal are also 1 and 1.0, which are rendered differently
        for form in Exposition:
            assert self._renderer.render(found, form) == PrometheusRenderer(RESOURCES, created=True).render(fresh, form)
        self._assert_equal_series_are_one_object(found)

    def _assert_equal_series_are_one_object(self, found: Collection) -> None:
        last = {} if self._last is None else {block.metric.name: block.series for block in self._last.blocks}
        for block in found.blocks:
            before = last.get(block.metric.name)
            assert (before == block.series) is (before is block.series)
        self._last = found


@thorough
@given(anywhere, steps_s, choices)
def test_a_long_lived_collector_and_renderer_give_what_fresh_ones_give(
    world: WorldSpec, steps: list[float], chosen: AttributionOptions
) -> None:
    long_lived = LongLived()
    for report, _ in cycles(world, [*steps, *steps], chosen):
        long_lived.assert_like_fresh_ones(report)


@settings(thorough, max_examples=40)
@given(st.one_of(histories(), steady_histories()), choices, st.lists(st.booleans(), min_size=1, max_size=4))
def test_a_collector_and_a_renderer_give_what_fresh_ones_give_in_any_history_with_skipped_cycles(
    history: list[Snapshot], chosen: AttributionOptions, collected: list[bool]
) -> None:
    long_lived, attributor = LongLived(), Attributor(chosen)
    for snapshot, is_collected in zip(history, cycle(collected), strict=False):
        report = attributor.observe(snapshot)
        if is_collected:
            long_lived.assert_like_fresh_ones(report)
