"""The instruments on the ordinary SDK's provider and on the agent's own: the same values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric, NumberDataPoint, Sum
from opentelemetry.sdk.metrics.view import View

from otel_gpu.clock import ManualClock
from otel_gpu.engine import Engine
from otel_gpu.metrics.catalogue import BY_NAME, METRICS, Kind
from otel_gpu.metrics.collection import Collection
from otel_gpu.metrics.instruments import create_instruments
from otel_gpu.metrics.points import Reading
from otel_gpu.metrics.provider import AgentMeterProvider, AgentMetrics
from otel_gpu.metrics.readings import Readings, SharedReading
from otel_gpu.metrics.selfstats import SelfAccount, SelfStats
from otel_gpu.model import Report
from otel_gpu.sources.sim import SimulatedHost, demo_world
from tests.unit.metrics.builders import answer

Series = Mapping[tuple[str, tuple[tuple[str, Any], ...]], int | float]


class Watched:
    """A simulated host, sampled when told."""

    def __init__(self, seed: int = 1) -> None:
        self.clock = ManualClock()
        host = SimulatedHost(demo_world(seed), self.clock)
        self.engine = Engine(
            gpus=host.gpu_source(), processes=host.process_source(), names=[host.name_source()], clock=self.clock
        )
        self.account = SelfAccount(started_ns=0, cpu_s=lambda: 1.5, memory_bytes=lambda: 1 << 20)
        self.asked = 0
        self.readings = Readings(self.fresh, self.account)

    def fresh(self) -> Report | None:
        self.asked += 1
        return self.engine.latest

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
    for family in collection.blocks:
        for point in family.points:
            identity = point.workload.complete() if point.workload is not None else {}
            found[family.metric.name, tuple(sorted({**point.attributes, **identity}.items()))] = point.value
    return found


@pytest.fixture
def watched() -> Watched:
    host = Watched()
    for _ in range(4):
        host.step()
    return host


def test_the_sdk_and_the_agents_provider_give_the_same_values(watched: Watched) -> None:
    reader = InMemoryMetricReader()
    create_instruments(MeterProvider([reader]), watched.readings.newest)
    metrics = AgentMetrics(watched.readings)
    for _ in range(3):
        watched.step()
        sdk, agent = from_sdk(reader), from_agent(metrics.collect())
        assert len(agent) > 300
        assert sdk == agent


def test_every_instrument_has_the_kind_unit_and_description_of_the_catalogue(watched: Watched) -> None:
    reader = InMemoryMetricReader()
    create_instruments(MeterProvider([reader]), watched.readings.newest)
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
    create_instruments(MeterProvider([reader]), watched.readings.newest)
    watched.asked = 0
    for collections in (1, 2, 3):
        watched.step()
        reader.get_metrics_data()
        assert watched.asked == collections


def test_a_dropped_instrument_does_not_mix_two_cycles_in_a_collection() -> None:
    """The rule counts who was served, not who comes first."""
    cycles = (Reading.of(answer(), SelfStats(0, cpu_s=cycle, memory_bytes=cycle)) for cycle in range(100))
    shared = SharedReading(lambda: next(cycles))
    cpu, memory, errors = "otel_gpu.cpu.time", "otel_gpu.memory.usage", "otel_gpu.source.errors"

    def cycle_of(*instruments: str) -> list[float]:
        return [point.value for name in instruments for point in shared.points(name) if name != errors]

    assert cycle_of(cpu, memory, errors) == [0, 0]
    assert cycle_of(memory, errors, cpu) == [1, 1]
    assert cycle_of(errors, cpu) == [2]
    assert cycle_of(errors, cpu, memory) == [3, 3]


def test_before_the_first_sample_there_is_nothing_to_observe() -> None:
    host = Watched()
    reader = InMemoryMetricReader()
    create_instruments(MeterProvider([reader]), host.readings.newest)
    assert reader.get_metrics_data() is None
    assert AgentMetrics(host.readings).collect() is None


def test_a_cycle_is_collected_once_however_many_ask(watched: Watched) -> None:
    metrics = AgentMetrics(watched.readings)
    first = metrics.collect()
    assert metrics.collect() is first
    watched.step()
    second = metrics.collect()
    assert second is not None
    assert second is not first
    assert second.time_ns == watched.clock.wall_ns()


def test_every_collection_tells_its_number_of_series_from_the_first_on(watched: Watched) -> None:
    readers = [InMemoryMetricReader(), InMemoryMetricReader()]
    create_instruments(MeterProvider(readers), watched.readings.newest)
    metrics = AgentMetrics(watched.readings)
    counts = set()
    for _ in range(20):
        for told in (from_agent(metrics.collect()), *map(from_sdk, readers)):
            assert told["otel_gpu.series", ()] == len(told)
            counts.add(len(told))
        watched.step()
    assert len(counts) > 1


def test_series_that_ended_are_forgotten_at_once_by_the_agents_provider(watched: Watched) -> None:
    """The SDK keeps every attribute set for the life of the process; here nothing is kept between collections."""
    metrics = AgentMetrics(watched.readings)
    for _ in range(150):
        watched.step()
    collection = metrics.collect()
    told = {p.key.pid for p in (watched.engine.latest or pytest.fail("no sample")).processes}
    assert collection is not None
    exported = {
        point.attributes["process.pid"]
        for family in collection.blocks
        for point in family.points
        if "process.pid" in point.attributes
    }
    assert exported == told


def test_instruments_that_are_not_of_the_catalogue_do_nothing_on_the_agents_provider() -> None:
    provider = AgentMeterProvider()
    meter = provider.get_meter("somebody")
    meter.create_counter("sync").add(1)
    meter.create_observable_gauge("gpu.workload.utilization", [lambda _: [Observation(1)]])
    assert provider.collect(7) == Collection(7, ())


def test_a_callback_that_is_no_function_is_refused() -> None:
    provider = AgentMeterProvider()
    generator: Any = (each for each in [[Observation(1)]])
    provider.get_meter("somebody").create_observable_gauge("gpu.workload.utilization", [generator])
    with pytest.raises(TypeError, match="functions"):
        provider.collect(0)


def test_names_of_instruments_are_unique() -> None:
    created: list[str] = []

    class Meter:
        def create(self, name: str, callbacks: list[Callable[[CallbackOptions], Any]], unit: str, text: str) -> None:
            assert callbacks
            assert text
            created.append(name)

        create_observable_gauge = create_observable_counter = create_observable_up_down_counter = create

    class Provider:
        def get_meter(self, name: str, version: str) -> Meter:
            return Meter()

    def nothing() -> Reading | None:
        return None

    create_instruments(Provider(), nothing)  # type: ignore[arg-type]  # as much of a provider as is used
    assert created == [metric.name for metric in METRICS]
    assert len(set(created)) == len(created)


def test_an_sdk_view_can_drop_what_somebody_does_not_want(watched: Watched) -> None:
    from opentelemetry.sdk.metrics.view import DropAggregation  # noqa: PLC0415

    reader = InMemoryMetricReader()
    views = [View(instrument_name="gpu.process.*", aggregation=DropAggregation())]
    create_instruments(MeterProvider([reader], views=views), watched.readings.newest)
    names = {name for name, _ in from_sdk(reader)}
    assert not any(name.startswith("gpu.process.") for name in names)
    assert "gpu.workload.energy" in names
