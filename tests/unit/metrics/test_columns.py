"""What is told as it was is the same object from cycle to cycle: exporters write it once."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from otel_gpu.metrics.catalogue import BY_NAME, METRICS
from otel_gpu.metrics.collection import MetricBlock
from otel_gpu.metrics.columns import Columns
from otel_gpu.metrics.layout import Layout
from otel_gpu.metrics.points import Reading, family
from otel_gpu.model import MemorySplit, MigReport, ProcessReport, Report
from tests.unit.metrics.builders import IDLE, NAMES, STATS, answer, device, part, process, split, totals, workload

USED = totals(measured_mj=7, compute_us=5)
TURNS = ((100, 101), (100,), (101,), (100, 101))
ENERGY, SHARE = "gpu.process.energy", "gpu.process.utilization"


class Told:
    """Cycles told one after the other."""

    def __init__(self) -> None:
        self.layout, self.columns = Layout(), Columns()

    def __call__(self, attribution: Report) -> dict[str, MetricBlock]:
        reading = Reading.of(attribution, STATS, layout=self.layout)
        found = {metric.name: family(metric, reading, self.columns) for metric in METRICS}
        return {name: each for name, each in found.items() if each is not None}


def cycle(*processes: ProcessReport, memory: MemorySplit | None = None) -> Report:
    used = part(measured=5, totals=USED)
    return answer(device(memory=memory or split()), workloads=[workload(used)], processes=processes)


def test_a_cycle_like_the_last_one_gives_the_same_families() -> None:
    told = Told()
    first, second = (told(cycle(process(sm_ratio=0.5, totals=USED, state=IDLE, idle_s=1.0))) for _ in range(2))
    assert first.keys() == second.keys()
    assert len(first) > 20
    assert all(second[name] is each for name, each in first.items())


def test_a_value_that_changes_changes_its_family_and_no_other_and_leaves_the_series() -> None:
    told = Told()
    first, second = told(cycle(process(sm_ratio=0.5))), told(cycle(process(sm_ratio=0.25)))
    assert [name for name, each in second.items() if each is not first[name]] == [SHARE]
    assert second[SHARE].series is first[SHARE].series
    assert [point.value for point in second[SHARE].points] == [0.25]


@pytest.mark.parametrize(("before", "after"), [(0.0, -0.0), (1, 1.0), (1.0, 1), (0.5, None), (None, 0.0)])
def test_what_is_written_otherwise_is_another_value(before: float | None, after: float | None) -> None:
    told = Told()
    first, second = (told(cycle(process(sm_ratio=ratio), process(101, sm_ratio=0.1))) for ratio in (before, after))
    assert first[SHARE] is not second[SHARE]
    values = [each for each in (after, 0.1) if each is not None]
    assert list(map(repr, second[SHARE].values)) == list(map(repr, values))


def test_who_comes_changes_the_series_of_processes_and_not_those_of_workloads_and_gpus() -> None:
    told = Told()
    one, other = process(totals=USED), process(101, totals=USED)
    first, second = told(cycle(one)), told(cycle(one, other))
    changed = {name for name, each in second.items() if each.series is not first[name].series}
    assert changed == {name for name in second if name.startswith("gpu.process.")} > {ENERGY}
    assert len(second[ENERGY].points) == 2 * len(first[ENERGY].points)


def test_a_counter_that_begins_anew_is_another_series() -> None:
    told = Told()
    first, second = (told(cycle(process(totals=USED._replace(since_ns=since_ns)))) for since_ns in (4, 5))
    assert first[ENERGY].series is not second[ENERGY].series
    assert {point.start_ns for point in second[ENERGY].points} == {5}
    assert first["gpu.process.active"] is second["gpu.process.active"]


def test_a_rename_is_told_under_the_new_name() -> None:
    told = Told()
    told(answer(device(), workloads=[workload(part())], processes=[process()]))
    renamed = workload(part(), names=replace(NAMES, container="other"))
    found = told(answer(device(), workloads=[renamed], processes=[process()]))
    for name in ("gpu.workload.access", "gpu.process.active"):
        (point,) = found[name].points
        assert point.workload is not None
        assert dict(point.workload.attributes)["container.name"] == "other"


def test_an_instance_that_comes_and_goes_changes_what_is_told_of_its_gpu() -> None:
    told = Told()
    whole, halved = split(measured=9), [MigReport("MIG-1", "1g", split(limit=50, measured=4))]
    found = [told(answer(device(memory=whole, mig=mig))) for mig in (None, halved, None)]
    held = [sum(each["gpu.device.memory.usage"].values) for each in found]
    assert held == [whole.limit_bytes] * 3
    assert [len(each["gpu.device.memory.overcount"].values) for each in found] == [1, 2, 1]


def test_who_may_be_idle_and_who_is_not_take_turns_without_others_being_told_for_them() -> None:
    told = Told()
    for idle in (100, 101, 100, 101):
        everybody = [process(pid, state=IDLE if pid == idle else None, idle_s=float(pid)) for pid in (100, 101)]
        (point,) = told(cycle(*everybody))["gpu.process.idle.duration"].points
        assert (point.attributes["process.pid"], point.value) == (idle, idle)


def test_who_has_no_value_for_a_while_keeps_the_place_among_the_others() -> None:
    told = Told()
    idle = [[process(pid, state=IDLE if pid in now else None, idle_s=0.5) for pid in (100, 101)] for now in TURNS]
    found = [told(cycle(*everybody))["gpu.process.idle.duration"] for everybody in idle]
    assert len({id(each.cells.series) for each in found}) == 1
    assert [each.cells.values for each in found] == [(0.5, 0.5), (0.5, None), (None, 0.5), (0.5, 0.5)]
    assert [[point.attributes["process.pid"] for point in each.points] for each in found] == [*map(list, TURNS)]
    assert [list(after.cells.changed(before.cells)) for before, after in pairwise(found)] == [[1], [0, 1], [0]]


def test_of_a_counter_the_values_that_stand_are_the_same_objects() -> None:
    told = Told()
    used = [(1_001, 2_002), (1_001, 3_003), (1_001, 3_003), (1, 3_003)]
    cycles = [
        cycle(*(process(100 + n, totals=totals(measured_mj=each)) for n, each in enumerate(pair))) for pair in used
    ]
    found = [told(each)[ENERGY] for each in cycles]
    assert [each.values[:2] for each in found] == [(one / 1e3, other / 1e3) for one, other in used]
    assert [list(after.cells.changed(before.cells)) for before, after in pairwise(found)] == [[1], [], [0]]
    assert found[1] is found[2]


def test_values_of_one_method_stand_together_in_the_order_of_the_rows() -> None:
    energy = Told()(cycle(*(process(pid, totals=totals(measured_mj=1)) for pid in (100, 101))))[ENERGY]
    assert energy.series.runs == 3
    told = [(each.attributes["gpu.attribution.method"], each.attributes["process.pid"]) for each in energy.points]
    assert told == [(method, pid) for method in ("measured", "estimated", "inferred") for pid in (100, 101)]


@pytest.mark.parametrize("before", [0, 0.0, -0.0, 1, 1.0, None, math.nan])
@pytest.mark.parametrize("after", [0, 0.0, -0.0, 1, 1.0, None, math.nan])
def test_a_metric_is_the_same_object_if_and_only_if_it_is_written_alike(
    before: float | None, after: float | None
) -> None:
    told = Told()
    first, second = (told(cycle(process(sm_ratio=ratio), process(101, sm_ratio=0.1))) for ratio in (before, after))
    assert (first[SHARE] is second[SHARE]) is (repr(before) == repr(after))


def test_nothing_is_kept_of_what_is_no_longer_told() -> None:
    told = Told()
    for pid in range(100, 150):
        told(cycle(process(pid, totals=USED)))
        kept = told.columns._last[ENERGY]
        assert {each.get("process.pid") for each in kept.family.series.attributes} == {pid}
    told(answer())
    assert all(name.startswith("otel_gpu.") for name in told.columns._last)


def test_points_of_a_family_are_those_it_was_made_of() -> None:
    made = Told()(cycle(process(sm_ratio=0.5)))[SHARE]
    assert MetricBlock.of(BY_NAME[SHARE], made.points) == made
