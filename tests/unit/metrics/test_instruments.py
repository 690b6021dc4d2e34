"""The instruments on the ordinary SDK's provider and on the agent's own: the same values."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric, NumberDataPoint, Sum

from otel_gpu.agent.engine import Engine
from otel_gpu.clock import ManualClock
from otel_gpu.metrics.agent_values import SelfAccount, SelfStats
from otel_gpu.metrics.catalogue import BY_NAME, Kind
from otel_gpu.metrics.collect import CycleMetrics, MetricCollector
from otel_gpu.metrics.instruments import SharedCollection, create_instruments
from otel_gpu.metrics.provider import AgentMetrics
from otel_gpu.metrics.series import Collection
from otel_gpu.model import Report
from otel_gpu.sources.sim import SimulatedHost, demo_world
from tests.unit.metrics.builders import answer

Series = Mapping[tuple[str, tuple[tuple[str, Any], ...]], int | float]


class Watched:
    """A simulated host, sampled by calls of ``step``."""

    def __init__(self, seed: int = 1) -> None:
        self.clock = ManualClock()
        host = SimulatedHost(demo_world(seed), self.clock)
        self.engine = Engine(
            gpus=host.gpu_source(), processes=host.process_source(), names=[host.name_source()], clock=self.clock
        )
        self.account_asked = 0
        self.account = SelfAccount(started_ns=0, cpu_s=self.cpu_s, memory_bytes=lambda: 1 << 20)
        self.asked = 0
        self.cycles = CycleMetrics(self.fresh, self.account)

    def fresh(self) -> Report | None:
        self.asked += 1
        return self.engine.latest

    def cpu_s(self) -> float:
        self.account_asked += 1
        return 1.5

    def step(self) -> Report:
        self.clock.advance(5)
        return self.engine.sample()


def from_sdk(reader: InMemoryMetricReader) -> Series:
    data = reader.get_metrics_data()
    assert data is not None
    found = {}
    for metric in _metrics(data):
        for point in metric.data.data_points:
            assert isinstance(point, NumberDataPoint)
            found[metric.name, tuple(sorted((point.attributes or {}).items()))] = point.value
    return found


def _metrics(data: Any) -> list[Metric]:
    return [m for resource in data.resource_metrics for scope in resource.scope_metrics for m in scope.metrics]


def from_agent(collection: Collection | None) -> Series:
    assert collection is not None
    found = {}
    for block in collection.blocks:
        for point in block.points:
            identity = {} if point.workload is None else dict(point.workload.attributes)
            found[block.metric.name, tuple(sorted({**point.attributes, **identity}.items()))] = point.value
    return found


@pytest.fixture
def watched() -> Watched:
    host = Watched()
    for _ in range(4):
        host.step()
    return host


def test_the_sdk_and_the_agents_provider_give_the_same_values(watched: Watched) -> None:
    reader = InMemoryMetricReader()
    create_instruments(MeterProvider([reader]), watched.cycles.collect)
    metrics = AgentMetrics(watched.cycles)
    for _ in range(3):
        watched.step()
        sdk, agent = from_sdk(reader), from_agent(metrics.collect())
        assert len(agent) > 300
        assert sdk == agent


def test_every_instrument_has_the_kind_unit_and_description_of_the_catalogue(watched: Watched) -> None:
    reader = InMemoryMetricReader()
    create_instruments(MeterProvider([reader]), watched.cycles.collect)
    data = reader.get_metrics_data()
    seen = {metric.name: metric for metric in _metrics(data)}
    assert seen.keys() <= BY_NAME.keys()
    assert len(seen) > 30
    for name, metric in seen.items():
        declared = BY_NAME[name]
        assert (metric.unit, metric.description) == (declared.unit, declared.description)
        if isinstance(metric.data, Sum):
            assert metric.data.is_monotonic is (declared.kind is Kind.COUNTER)
        else:
            assert declared.kind is Kind.GAUGE


def test_the_first_callback_of_a_collection_asks_and_the_rest_share(watched: Watched) -> None:
    reader = InMemoryMetricReader()
    create_instruments(MeterProvider([reader]), watched.cycles.collect)
    watched.asked = 0
    for collections in (1, 2, 3):
        watched.step()
        reader.get_metrics_data()
        assert watched.asked == collections


def test_a_dropped_instrument_does_not_mix_two_cycles_in_a_collection() -> None:
    """A collection begins with an instrument that was called already, whichever is the first to be called."""
    stats = (SelfStats(0, cpu_s=cycle, memory_bytes=cycle) for cycle in range(100))
    collector = MetricCollector(lambda: next(stats))
    shared = SharedCollection(lambda: collector.collect(answer()))
    cpu, memory, errors = "otel_gpu.cpu.time", "otel_gpu.memory.usage", "otel_gpu.source.errors"

    def cycle_of(*instruments: str) -> list[float]:
        blocks = [shared.block(BY_NAME[name]) for name in instruments]
        points = [point for block in blocks if block and block.metric.name != errors for point in block.points]
        return [point.value for point in points]

    assert cycle_of(cpu, memory, errors) == [0, 0]
    assert cycle_of(memory, errors, cpu) == [1, 1]
    assert cycle_of(errors, cpu) == [2]
    assert cycle_of(errors, cpu, memory) == [3, 3]


def test_before_the_first_sample_there_is_nothing_to_observe() -> None:
    host = Watched()
    reader = InMemoryMetricReader()
    create_instruments(MeterProvider([reader]), host.cycles.collect)
    assert reader.get_metrics_data() is None
    assert AgentMetrics(host.cycles).collect() is None


def test_a_cycle_is_collected_once_however_many_exporters_ask(watched: Watched) -> None:
    metrics = AgentMetrics(watched.cycles)
    first = metrics.collect()
    watched.account_asked = 0
    assert [metrics.collect() for _ in range(3)] == [first] * 3
    assert watched.account_asked == 0
    watched.step()
    second = metrics.collect()
    assert second is not None
    assert second != first
    assert second.time_ns == watched.clock.wall_ns()
    assert watched.account_asked == 1


def test_exporters_wait_for_a_fresh_sample_at_the_same_time(watched: Watched) -> None:
    both_wait = threading.Barrier(2, timeout=10)

    def fresh() -> Report | None:
        both_wait.wait()
        return watched.engine.latest

    metrics = AgentMetrics(CycleMetrics(fresh, watched.account))
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: metrics.collect(), range(2))
    assert first == second
    assert first is not None


def test_an_older_report_does_not_replace_the_collection_of_a_newer_one(watched: Watched) -> None:
    older, newer = watched.step(), watched.step()
    reports = iter([newer, older])
    cycles = CycleMetrics(lambda: next(reports), watched.account)
    assert cycles.collect() == cycles.collect()


def test_series_that_ended_are_forgotten_at_once_by_the_agents_provider(watched: Watched) -> None:
    """The SDK keeps every attribute set for the life of the process; the agent's provider keeps none."""
    metrics = AgentMetrics(watched.cycles)
    for _ in range(150):
        watched.step()
    collection = metrics.collect()
    reported = {p.key.pid for p in (watched.engine.latest or pytest.fail("no sample")).processes}
    assert collection is not None
    exported = {
        point.attributes["process.pid"]
        for block in collection.blocks
        for point in block.points
        if "process.pid" in point.attributes
    }
    assert exported == reported
