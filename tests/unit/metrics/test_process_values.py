from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.metrics.catalogue import METRICS, Level
from otel_gpu.model import OVERFLOW_PROCESS, OVERFLOW_WORKLOAD, ProcessReport, Report, WorkloadRef
from tests.builders import CONTAINER, gpu, uuid_of
from tests.unit.metrics.builders import (
    BUSY,
    IDLE,
    SINCE_NS,
    UNKNOWN,
    WORK,
    answer,
    device,
    part,
    points_of,
    process,
    totals,
    values_by,
    workload,
)

PID = "process.pid"
METHOD = "gpu.attribution.method"


def with_processes(*processes: ProcessReport) -> Report:
    reading = replace(gpu(energy_mj=1), utilization=WORK)
    return answer(device(reading), workloads=[workload(part())], processes=processes)


def test_a_process_is_exported_under_its_workload_with_pid_and_name() -> None:
    (point,) = points_of("gpu.process.active", with_processes(process(100, name="vllm")))
    assert point.attributes == {
        "hw.id": uuid_of(0),
        "gpu.index": "0",
        "process.pid": 100,
        "process.executable.name": "vllm",
    }
    (of_workload,) = points_of("gpu.workload.access", with_processes())
    assert point.workload == of_workload.workload


def test_a_process_that_proc_never_showed_has_no_name_and_no_start() -> None:
    attribution = with_processes(process(name=None), process(7, start_time_s=1.7e9))
    assert values_by("gpu.process.active", attribution, PID, "process.executable.name") == {
        (100, None): 1,
        (7, "python3"): 1,
    }
    assert values_by("gpu.process.start_time", attribution, PID) == {7: 1.7e9}


def test_values_are_exported_as_far_as_they_are_known() -> None:
    attribution = with_processes(
        process(1, memory_bytes=5, sm_ratio=0.5, bandwidth_ratio=0.25, state=IDLE, idle_s=2.0, idle_bytes=5),
        process(2, state=BUSY, idle_bytes=0),
        process(3, state=UNKNOWN, idle_bytes=0),
    )
    assert values_by("gpu.process.memory.usage", attribution, PID, METHOD) == {(1, "measured"): 5}
    assert values_by("gpu.process.utilization", attribution, PID) == {1: 0.5}
    assert values_by("gpu.process.memory.bandwidth.utilization", attribution, PID) == {1: 0.25}
    assert values_by("gpu.process.idle.duration", attribution, PID) == {1: 2.0, 2: 0.0}
    assert values_by("gpu.process.idle.memory", attribution, PID) == {1: 5, 2: 0}


def test_counters_are_there_at_0_and_start_when_the_process_did() -> None:
    attribution = with_processes(process(totals=totals(estimated_mj=2000)))
    assert values_by("gpu.process.energy", attribution, METHOD) == {"measured": 0.0, "estimated": 2.0, "inferred": 0.0}
    assert values_by("gpu.process.compute.time", attribution, PID) == {100: 0.0}
    for name in ("gpu.process.energy", "gpu.process.compute.time"):
        assert {point.start_ns for point in points_of(name, attribution)} == {SINCE_NS}


def test_a_process_that_ended_uses_nothing_and_keeps_what_it_has_used() -> None:
    ended = process(
        memory_bytes=5,
        start_time_s=1.7e9,
        state=IDLE,
        idle_s=1.0,
        idle_bytes=5,
        active=False,
        totals=totals(measured_mj=1000, compute_us=3_000_000),
    )
    values = {
        "gpu.process.memory.usage": [0],
        "gpu.process.utilization": [0.0],
        "gpu.process.memory.bandwidth.utilization": [0.0],
        "gpu.process.idle.memory": [0],
        "gpu.process.idle.duration": [],
        "gpu.process.active": [0],
        "gpu.process.compute.time": [3.0],
        "gpu.process.energy": [1.0, 0.0, 0.0],
        "gpu.process.start_time": [1.7e9],
    }
    found = {name: [point.value for point in points_of(name, with_processes(ended))] for name in values}
    assert found == values


def test_of_two_processes_with_one_pid_and_name_the_younger_is_exported() -> None:
    attribution = with_processes(process(start_ticks=9), process(start_ticks=3, active=False))
    assert values_by("gpu.process.active", attribution, PID) == {100: 1}


@pytest.mark.parametrize("ref", [CONTAINER, OVERFLOW_WORKLOAD], ids=["listed", "overflow"])
def test_the_overflow_entry_is_marked_whether_or_not_its_workload_is_listed(ref: WorkloadRef) -> None:
    overflow = process(OVERFLOW_PROCESS.pid, start_ticks=OVERFLOW_PROCESS.start_ticks, name=None, ref=ref)
    marks = values_by("gpu.process.active", with_processes(overflow, process(5)), PID, "otel.metric.overflow")
    assert marks == {(0, True): 1, (5, None): 1}


def test_a_process_of_the_overflow_workload_is_not_marked() -> None:
    (point,) = points_of("gpu.process.active", with_processes(process(ref=OVERFLOW_WORKLOAD)))
    assert "otel.metric.overflow" not in point.attributes
    assert point.workload is not None
    assert dict(point.workload.attributes)["gpu.workload.id"] == "overflow"


def test_the_level_can_be_switched_off_and_the_others_stay() -> None:
    attribution = with_processes(process(state=BUSY, memory_bytes=5))
    for metric in METRICS:
        without = points_of(metric.name, attribution, process_level=False)
        if metric.level is Level.PROCESS:
            assert without == []
        elif metric.name != "otel_gpu.series":
            assert without == points_of(metric.name, attribution)
