"""Laws of what is exported, over simulated hosts: it adds up, and every series is one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import cycle

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.options import AttributionOptions, EnergyPolicy, Prices
from otel_gpu.clock import ManualClock
from otel_gpu.engine import Engine
from otel_gpu.export.otlp_wire import WireEncoder
from otel_gpu.export.prometheus import Exposition, PrometheusText, render
from otel_gpu.metrics.catalogue import BY_NAME, METRICS, Kind, Metric
from otel_gpu.metrics.collection import Collection, MetricBlock, Resources
from otel_gpu.metrics.columns import Columns
from otel_gpu.metrics.layout import Layout
from otel_gpu.metrics.points import Point, Reading, family, points
from otel_gpu.metrics.selfstats import SelfAccount, SelfStats
from otel_gpu.model import Snapshot
from otel_gpu.sources.sim import SimulatedHost, WorldSpec, demo_world
from tests.property.steady import steady_histories
from tests.property.test_sim_property import worlds

Told = dict[str, list[Point]]
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


def cycles(world: WorldSpec, steps: Iterable[float], chosen: AttributionOptions) -> Iterator[tuple[Reading, Told]]:
    """What each cycle of an agent on this host exports."""
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
        attribution = engine.sample()
        own.observe(attribution)
        reading = Reading.of(attribution, own.stats(), currency="EUR")
        exported = {metric.name: list(points(metric.name, reading)) for metric in METRICS}
        yield reading, exported


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
def test_what_is_exported_adds_up(world: WorldSpec, steps: list[float], chosen: AttributionOptions) -> None:
    for reading, told in cycles(world, steps, chosen):
        memory, energy = told["gpu.device.memory.usage"], told["gpu.device.energy"]
        assert by_gpu(memory) == by_gpu(told["hw.gpu.memory.limit"])
        assert millijoules(by_gpu(energy)) == millijoules(by_gpu(told["hw.energy"]))
        assert set(by_gpu(told["hw.status"]).values()) == {1}
        assert not any(point.value for point in told["otel_gpu.conservation.memory.error"])
        assert not any(point.value for point in told["otel_gpu.conservation.energy.error"])
        assert all(point.value >= 0 for point in memory)
        attributed = millijoules(by_gpu(energy, gpu_energy_state="attributed"))
        for level in ("workload", "process"):  # what was forgotten is missing from these
            given_mj = millijoules(by_gpu(told[f"gpu.{level}.energy"]))
            assert all(energy_mj <= attributed[gpu] for gpu, energy_mj in given_mj.items())
        if not any(workload.held for workload in reading.attribution.workloads):
            assert_workloads_have_what_the_gpus_say(reading, told)


def assert_workloads_have_what_the_gpus_say(reading: Reading, told: Told) -> None:
    held, memory = told["gpu.workload.memory.usage"], told["gpu.device.memory.usage"]
    measured = by_gpu(held, gpu_attribution_method="measured")
    inferred = by_gpu(held, gpu_attribution_method="inferred")
    claimed, over = by_gpu(memory, gpu_memory_state="measured"), by_gpu(told["gpu.device.memory.overcount"])
    explained = by_gpu(memory, gpu_memory_state="inferred")
    for device in reading.devices:
        uuid = device.gpu.identity.uuid
        if device.gpu.mig is None:
            assert measured.get(uuid, 0) == claimed[uuid] + over[uuid]
            assert inferred.get(uuid, 0) == explained[uuid]


@thorough
@given(anywhere, steps_s, choices)
def test_every_series_is_one_and_says_what_its_metric_declares(
    world: WorldSpec, steps: list[float], chosen: AttributionOptions
) -> None:
    for _, told in cycles(world, steps, chosen):
        for metric in METRICS:
            found = told[metric.name]
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
        assert not attribute.values or value in attribute.values
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
def test_no_counter_falls_while_its_start_stands(
    world: WorldSpec, steps: list[float], chosen: AttributionOptions
) -> None:
    before: dict[tuple[object, ...], tuple[float, int | None]] = {}
    for _, told in cycles(world, steps, chosen):
        now: dict[tuple[object, ...], tuple[float, int | None]] = {
            (metric.name, point.workload, frozenset(point.attributes.items())): (point.value, point.start_ns)
            for metric in METRICS
            if metric.kind is Kind.COUNTER
            for point in told[metric.name]
        }
        for series, (value, start_ns) in now.items():
            if series in before and before[series][1] == start_ns:
                assert value >= before[series][0], series
        before = now


@thorough
@given(anywhere, steps_s, choices)
def test_what_is_kept_from_cycle_to_cycle_is_told_and_written_as_if_nothing_were(
    world: WorldSpec, steps: list[float], chosen: AttributionOptions
) -> None:
    keeping = Keeping()
    for alone, told in cycles(world, [*steps, *steps], chosen):
        keeping.assert_told_and_written(alone, told)


@settings(thorough, max_examples=40)
@given(steady_histories(), choices, st.lists(st.booleans(), min_size=1, max_size=4))
def test_of_still_cycles_too_whether_or_not_each_is_collected(
    history: list[Snapshot], chosen: AttributionOptions, collected: list[bool]
) -> None:
    keeping, attributor = Keeping(), Attributor(chosen)
    for snapshot, is_collected in zip(history, cycle(collected), strict=False):
        attribution = attributor.observe(snapshot)
        if is_collected:
            alone = Reading.of(attribution, SelfStats(started_ns=1), currency="EUR")
            keeping.assert_told_and_written(
                alone, {metric.name: list(points(metric.name, alone)) for metric in METRICS}
            )


class Keeping:
    """Collections and exporters that keep what they can."""

    def __init__(self) -> None:
        self._layout, self._columns = Layout(), Columns()
        self._wire, self._text = WireEncoder(RESOURCES), PrometheusText(RESOURCES)

    def assert_told_and_written(self, alone: Reading, told: Told) -> None:
        """Compare with a reading and its points by somebody who has kept nothing."""
        reading = Reading.of(alone.attribution, alone.stats, currency="EUR", layout=self._layout)
        found = [family(metric, reading, self._columns) for metric in METRICS]
        blocks = tuple(each for each in found if each is not None)
        assert {each.metric.name: repr(list(each.points)) for each in blocks} == {
            name: repr(points) for name, points in told.items() if points
        }
        kept, fresh = (Collection(reading.attribution.wall_ns, each) for each in (blocks, of_points(told)))
        assert list(self._wire.batches(kept)) == list(WireEncoder(RESOURCES).batches(fresh))
        for exposition in Exposition:
            assert self._text.render(kept, exposition) == render(fresh, RESOURCES, exposition)


def of_points(told: Told) -> tuple[MetricBlock, ...]:
    return tuple(MetricBlock.of(BY_NAME[name], points) for name, points in told.items() if points)
