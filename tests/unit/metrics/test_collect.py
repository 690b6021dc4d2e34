from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from otel_gpu.metrics.agent_values import SelfAccount
from otel_gpu.metrics.catalogue import METRICS, Level
from otel_gpu.metrics.collect import CycleMetrics, MetricCollector
from otel_gpu.metrics.series import Collection, MetricBlock
from otel_gpu.model import MigReport, ProcessReport, Report
from tests.unit.metrics.builders import (
    EPOCH_NS,
    STATS,
    answer,
    collected,
    device,
    part,
    process,
    split,
    totals,
    workload,
)

USED = totals(measured_mj=7, compute_us=5)
SHARE = "gpu.process.utilization"


def cycle(*processes: ProcessReport) -> Report:
    return answer(device(memory=split()), workloads=[workload(part(measured=5, totals=USED))], processes=processes)


def test_a_collection_has_the_order_of_the_catalogue_and_no_metric_without_points() -> None:
    found = collected(cycle(process()))
    names = [block.metric.name for block in found.blocks]
    assert names == [metric.name for metric in METRICS if metric.name in names]
    assert all(block.points for block in found.blocks)
    assert "gpu.workload.cost" not in names


def test_the_number_of_series_is_that_of_the_points_in_the_collection_itself_included() -> None:
    found = collected(cycle(process()))
    assert found.blocks[-1].metric.name == "otel_gpu.series"
    assert found.blocks[-1].values == (sum(len(block.points) for block in found.blocks),)


def test_a_collection_is_as_of_when_the_host_was_read() -> None:
    assert collected(answer(at_ns=5)).time_ns == EPOCH_NS + 5


# ---------------------------------------------------------------------------- too many series


def names(found: Collection) -> set[str]:
    return {block.metric.name for block in found.blocks}


def values(found: Collection, name: str) -> list[int | float]:
    return [point.value for block in found.blocks if block.metric.name == name for point in block.points]


def test_series_of_processes_are_left_out_above_the_limit_and_nothing_else() -> None:
    whole = collected(cycle(process(1), process(2)))
    (most,) = values(whole, "otel_gpu.series")
    for limit, is_dropping in ((most, False), (most - 1, True)):
        collector = MetricCollector(lambda: STATS, max_series=int(limit))
        found = collector.collect(cycle(process(1), process(2)))
        of_processes = {block.metric.name: block for block in whole.blocks if block.metric.level is Level.PROCESS}
        dropped = sum(block.point_count for block in of_processes.values())
        assert names(found) == names(whole) - (of_processes.keys() if is_dropping else set())
        assert values(found, "otel_gpu.series.dropped") == [dropped if is_dropping else 0]
        assert values(found, "otel_gpu.series") == [most - dropped if is_dropping else most]
        assert collector.dropped_series == (dropped if is_dropping else 0)


def test_above_the_limit_workloads_and_gpus_are_always_exported() -> None:
    found = MetricCollector(lambda: STATS, max_series=1).collect(cycle(process(1)))
    assert {"gpu.device.memory.usage", "gpu.workload.energy", "otel_gpu.source.errors"} <= names(found)


def test_series_of_processes_return_once_there_is_room_to_spare() -> None:
    reports = [cycle(*(process(pid) for pid in range(1, count + 1))) for count in (12, 11, 1)]
    (most,) = values(collected(reports[1]), "otel_gpu.series")
    collector = MetricCollector(lambda: STATS, max_series=int(most))
    exported = ["gpu.process.active" in names(collector.collect(report)) for report in (reports[1], *reports)]
    assert exported == [True, False, False, True], "at the limit there is room, but none to spare"


def test_the_beginning_and_the_end_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    account = SelfAccount(started_ns=0, cpu_s=lambda: None, memory_bytes=lambda: None)
    many = [process(pid) for pid in range(1, 12)]
    reports = [cycle(), cycle(*many), cycle(*many), cycle()]
    left = [replace(report, monotonic_ns=number) for number, report in enumerate(reports)]
    limit = int(values(collected(cycle(*many)), "otel_gpu.series")[0]) - 1
    metrics = CycleMetrics(lambda: left.pop(0), account, max_series=limit)
    with caplog.at_level(logging.INFO):
        dropped = [(metrics.collect(), metrics.dropped_series)[1] for _ in reports]
    assert dropped == [0, dropped[1], dropped[1], 0]
    assert caplog.messages == [
        f"{dropped[1]} series of processes are not exported: with them, there are more than {limit}",
        "series of processes are exported again",
    ]


# ---------------------------------------------------------------------------- several reports
# tests/property/test_points_property.py has the law: a series set is the same object exactly while it is equal.


def blocks_of(*reports: Report) -> list[dict[str, MetricBlock]]:
    """The blocks of reports collected one after the other."""
    collector = MetricCollector(lambda: STATS)
    return [{block.metric.name: block for block in collector.collect(report).blocks} for report in reports]


def test_a_mig_instance_that_appears_and_ends_changes_the_memory_of_its_gpu() -> None:
    whole, halved = split(measured=9), [MigReport("MIG-1", "1g", split(limit=50, measured=4))]
    found = blocks_of(*[answer(device(memory=whole, mig=mig)) for mig in (None, halved, None)])
    memory = [block["gpu.device.memory.usage"] for block in found]
    assert [sum(point.value for point in block.points) for block in memory] == [whole.limit_bytes] * 3
    assert memory[0] == memory[2] != memory[1]


def test_a_value_that_is_absent_leaves_the_series_set_and_has_no_point() -> None:
    first, second, third = blocks_of(
        *[cycle(process(sm_ratio=ratio), process(101, sm_ratio=1.0)) for ratio in (1.0, None, 0.5)]
    )
    assert first[SHARE].series is second[SHARE].series is third[SHARE].series
    assert [len(block[SHARE].points) for block in (first, second, third)] == [2, 1, 2]
    assert second[SHARE].values == (None, 1.0)
