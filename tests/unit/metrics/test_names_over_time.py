"""A container renamed while it runs, and one whose name comes late: no series jumps, and nothing counts twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.export.deltas import Deltas
from otel_gpu.export.otlp_encoder import encode
from otel_gpu.metrics.agent_values import SelfStats
from otel_gpu.metrics.catalogue import Kind
from otel_gpu.metrics.collect import MetricCollector
from otel_gpu.metrics.labels import Resources
from otel_gpu.metrics.series import Collection, Point
from otel_gpu.model import HOST_WORKLOAD, Report, WorkloadNames
from tests.builders import CONTAINER, CONTAINER_ID, GIB, facts, gpu, listed, memory, snapshot

Series = tuple[str, tuple[tuple[str, object], ...], object]


class Cycles:
    """Cycles of a GPU that a container and the host share, each with the container's name or none."""

    def __init__(self) -> None:
        self._attributor = Attributor()
        self._collector = MetricCollector(lambda: SelfStats(0))
        self._cycle = 0

    def next(self, name: str | None) -> tuple[Report, Collection]:
        reading = replace(
            gpu(
                0,
                [listed(1, GIB), listed(2, GIB)],
                memory=memory(used_gib=2),
                energy_mj=1_000_000 + 700_003 * self._cycle,
            ),
            power_limit_w=400.0,
        )
        world = snapshot(
            reading,
            processes=[facts(1, CONTAINER, start_ticks=-9000), facts(2, HOST_WORKLOAD, start_ticks=-9000)],
            names={} if name is None else {CONTAINER_ID: WorkloadNames(container=name)},
            at_s=5.0 * self._cycle,
        )
        self._cycle += 1
        pending = frozenset({CONTAINER.key}) if name is None else frozenset()
        attribution = self._attributor.observe(replace(world, names_pending=pending))
        return attribution, self._collector.collect(attribution)


def series_of(collection: Collection) -> Mapping[Series, tuple[Kind, Point]]:
    return {
        (family.metric.name, tuple(sorted(point.attributes.items())), point.workload): (family.metric.kind, point)
        for family in collection.blocks
        for point in family.points
    }


HISTORIES = {
    "renamed": ["web", "web", "web", "shop", "shop", "shop", "shop"],
    "renamed twice and back": ["web", "web", "web", "shop", "shop", "web", "web", "web"],
    "late": [None, None, None, None, "web", "web", "web"],
    "in time": [None, "web", "web", "web", "web"],
    "source gone": ["web", "web", None, None, None],
}


@pytest.mark.parametrize("names", HISTORIES.values(), ids=HISTORIES.keys())
def test_no_series_jumps_and_workloads_sum_to_the_device(names: list[str | None]) -> None:
    cycles = Cycles()
    before: Mapping[Series, tuple[Kind, Point]] = {}
    for number, name in enumerate(names):
        attribution, collection = cycles.next(name)
        now = series_of(collection)
        for series, (kind, point) in now.items():
            if kind is not Kind.COUNTER or series not in before:
                continue
            earlier = before[series][1]
            if earlier.start_ns == point.start_ns:
                assert point.value >= earlier.value, (number, series)
            else:
                assert (point.start_ns or 0) > (earlier.start_ns or 0), (number, series)
        [device] = attribution.gpus
        assert device.totals is not None
        booked_mj = sum(
            part.totals.energy.total_mj or 0
            for workload in attribution.workloads
            for part in workload.gpus
            if part.totals is not None
        )
        assert booked_mj == device.totals.attributed_mj
        held = sum(
            point.value
            for (metric, _, workload), (_, point) in now.items()
            if metric == "gpu.workload.memory.usage" and workload is not None
        )
        waiting = any(workload.awaiting_names for workload in attribution.workloads)
        assert held == (GIB if waiting else 2 * GIB), "a renamed workload holds its memory once"
        before = {**before, **now}


def test_a_name_is_awaited_for_two_cycles_and_then_the_workload_is_exported_without() -> None:
    cycles = Cycles()
    identities = []
    for name in [None, None, None, "web"]:
        _, collection = cycles.next(name)
        names = {
            dict(point.workload.attributes).get("container.name")
            for family in collection.blocks
            for point in family.points
            if point.workload is not None and ("container.id", CONTAINER_ID) in point.workload.attributes
        }
        identities.append(names)
    assert identities == [set(), set(), {None}, {None, "web"}]


@pytest.mark.parametrize("names", HISTORIES.values(), ids=HISTORIES.keys())
def test_deltas_are_never_negative_and_sum_to_what_the_workloads_drew(names: list[str | None]) -> None:
    cycles, deltas, resources = Cycles(), Deltas(), Resources({"host.name": "here"}, {})
    sums_mj: dict[str, int] = {"gpu.workload.energy": 0, "attributed": 0}
    for name in names:
        attribution, collection = cycles.next(name)
        growth = deltas.growth(collection)
        deltas.accept(growth)
        for resource in encode(growth, resources, delta=True).resource_metrics:
            for metric in resource.scope_metrics[0].metrics:
                for point in metric.sum.data_points:
                    value = point.as_double if point.HasField("as_double") else point.as_int
                    if metric.sum.is_monotonic:
                        assert value >= 0, metric.name
                    if metric.name == "gpu.workload.energy":
                        sums_mj["gpu.workload.energy"] += round(value * 1000)
        totals = attribution.gpus[0].totals
        assert totals is not None
        sums_mj["attributed"] = totals.attributed_mj
    assert sums_mj["gpu.workload.energy"] == sums_mj["attributed"] > 0
