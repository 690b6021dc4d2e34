from __future__ import annotations

from otel_gpu.metrics.catalogue import METRICS
from otel_gpu.metrics.collect import MetricCollector
from otel_gpu.metrics.series import MetricBlock
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
