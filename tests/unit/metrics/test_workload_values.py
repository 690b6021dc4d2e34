from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from otel_gpu.metrics.catalogue import METRICS, Level
from otel_gpu.model import (
    OVERFLOW_PROCESS,
    OVERFLOW_WORKLOAD,
    Cost,
    CostBasis,
    GpuHealth,
    GpuReading,
    GpuState,
    GpuTotals,
    MigReport,
    ProcessReport,
    Report,
    WorkloadGpu,
    WorkloadKind,
    WorkloadNames,
    WorkloadRef,
)
from tests.builders import CONTAINER, CONTAINER_ID, gpu, mig, uuid_of
from tests.unit.metrics.builders import (
    BUSY,
    IDLE,
    NAMES,
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

REPORTING = replace(gpu(energy_mj=1), utilization=WORK)
METHOD = "gpu.attribution.method"
PID = "process.pid"
STATE = "gpu.state"


def on(*parts: WorkloadGpu, reading: GpuReading = REPORTING) -> Report:
    """A workload with these parts of a GPU."""
    return answer(device(reading, totals=GpuTotals(0, 0, 0)), workloads=[workload(*parts)])


def only(name: str, attribution: Report) -> int | float | None:
    """The value of the metric's only point; ``None`` if it has none."""
    found = points_of(name, attribution)
    assert len(found) <= 1
    return found[0].value if found else None


# ---------------------------------------------------------------------------- whose, where, since when


def test_a_point_has_its_workload_and_its_device() -> None:
    (point,) = points_of("gpu.workload.utilization", on(part(sm_ratio=0.25)))
    assert point.value == 0.25
    assert point.attributes == {"hw.id": uuid_of(0), "gpu.index": "0"}
    assert point.workload is not None
    assert dict(point.workload.attributes)["gpu.workload.name"] == "vllm"


def test_a_part_of_an_instance_has_its_uuid() -> None:
    parts = [MigReport("MIG-a", "1g.10gb", None), MigReport("MIG-b", None, None)]
    attribution = answer(
        device(gpu(mig=[mig("MIG-a", (1, 0))]), mig=parts),
        workloads=[
            workload(
                part(mig_uuid="MIG-a", mig_profile="1g.10gb"),
                part(mig_uuid="MIG-b"),
                part(mig_uuid="MIG-gone", mig_profile="2g.20gb"),
            )
        ],
    )
    where = values_by("gpu.workload.access", attribution, "gpu.index", "gpu.mig.uuid", "gpu.mig.profile")
    assert set(where) == {("0", "MIG-a", "1g.10gb"), ("0", "MIG-b", None), ("0", "MIG-gone", "2g.20gb")}


def test_counters_of_a_gpu_that_is_gone_are_still_exported() -> None:
    attribution = answer(workloads=[workload(part(totals=totals(measured_mj=5, compute_us=7)))])
    assert values_by("gpu.workload.energy", attribution, "gpu.index", METHOD)["0", "measured"] == 0.005
    assert only("gpu.workload.compute.time", attribution) == 7e-6


@pytest.mark.parametrize(
    "name",
    [
        "gpu.workload.compute.time",
        "gpu.workload.energy",
        "gpu.workload.time",
        "gpu.workload.idle.memory.time",
        "gpu.workload.idle.energy",
        "gpu.workload.cost",
    ],
)
def test_counters_start_when_the_workload_did(name: str) -> None:
    attribution = on(part(costs=(Cost(BUSY, CostBasis.TIME, 1.0),)))
    assert {point.start_ns for point in points_of(name, attribution)} == {SINCE_NS}


# ---------------------------------------------------------------------------- what it has and does


def test_memory_is_exported_by_method_and_absent_where_unknown() -> None:
    name = "gpu.workload.memory.usage"
    assert values_by(name, on(part(measured=5, inferred_bytes=0)), METHOD) == {"measured": 5, "inferred": 0}
    assert values_by(name, on(part(measured=None, inferred_bytes=7)), METHOD) == {"inferred": 7}
    assert values_by(name, on(part()), METHOD) == {}


def test_confidence_is_of_inferred_memory_only() -> None:
    name = "gpu.workload.memory.confidence"
    assert only(name, on(part(inferred_bytes=7, confidence=0.5))) == 0.5
    assert only(name, on(part(measured=5, inferred_bytes=0))) is None
    assert only(name, on(part(measured=5, confidence=0.5))) is None


@pytest.mark.parametrize("name", ["gpu.workload.utilization", "gpu.workload.memory.bandwidth.utilization"])
def test_shares_that_the_driver_does_not_report_are_absent(name: str) -> None:
    assert only(name, on(part(sm_ratio=0.0, bandwidth_ratio=0.0))) == 0.0
    assert only(name, on(part())) is None


def test_every_method_of_energy_is_there_at_0_from_the_first_export() -> None:
    assert values_by("gpu.workload.energy", on(part()), METHOD) == {"measured": 0.0, "estimated": 0.0, "inferred": 0.0}
    used = on(part(totals=totals(measured_mj=1500, estimated_mj=1, inferred_mj=0, idle_mj=250)))
    assert values_by("gpu.workload.energy", used, METHOD) == {"measured": 1.5, "estimated": 0.001, "inferred": 0.0}
    assert only("gpu.workload.idle.energy", used) == 0.25


def test_energy_and_work_that_are_not_counted_are_absent_not_0() -> None:
    blind = on(part(), reading=gpu())
    for name in ("gpu.workload.energy", "gpu.workload.idle.energy", "gpu.workload.compute.time"):
        assert points_of(name, blind) == []
    assert only("gpu.workload.compute.time", on(part())) == 0.0


def test_every_state_of_time_is_there_at_0_from_the_first_export() -> None:
    used = part(totals=totals(busy_us=1_500_000, idle_us=250_000, idle_byte_us=3_000_000))
    assert values_by("gpu.workload.time", on(used), STATE) == {
        "busy": 1.5,
        "idle": 0.25,
        "allocated": 0.0,
        "unknown": 0.0,
    }
    assert only("gpu.workload.idle.memory.time", on(used)) == 3.0


@pytest.mark.parametrize(
    ("state", "idle_s", "expected"),
    [
        (BUSY, 0.0, 0.0),
        (BUSY, None, 0.0),
        (IDLE, 12.5, 12.5),
        (UNKNOWN, None, None),
        (UNKNOWN, 5.0, None),
        (None, None, None),
    ],
)
def test_idle_duration_is_0_when_busy_and_absent_when_unknown(
    state: GpuState | None, idle_s: float | None, expected: float | None
) -> None:
    assert only("gpu.workload.idle.duration", on(part(state=state, idle_s=idle_s))) == expected


@pytest.mark.parametrize(
    ("state", "idle_bytes", "expected"),
    [(BUSY, 0, 0), (BUSY, 3, 3), (IDLE, 5, 5), (UNKNOWN, 0, None), (UNKNOWN, 2, 2), (None, None, None)],
)
def test_idle_memory_is_absent_where_the_state_is_unknown(
    state: GpuState | None, idle_bytes: int | None, expected: int | None
) -> None:
    assert only("gpu.workload.idle.memory", on(part(state=state, idle_bytes=idle_bytes))) == expected


def test_an_allocation_that_no_runtime_reports_is_absent() -> None:
    assert points_of("gpu.workload.allocation", on(part(measured=5))) == []


def test_costs_are_exported_only_where_there_are_prices() -> None:
    costs = (Cost(BUSY, CostBasis.TIME, 0.0), Cost(IDLE, CostBasis.ENERGY, 1.25))
    keys = (STATE, "gpu.cost.basis", "gpu.cost.currency")
    assert values_by("gpu.workload.cost", on(part(costs=costs)), *keys, currency="EUR") == {
        ("busy", "time", "EUR"): 0.0,
        ("idle", "energy", "EUR"): 1.25,
    }
    assert points_of("gpu.workload.cost", on(part())) == []


# ---------------------------------------------------------------------------- coming and going


def test_a_workload_that_ended_uses_nothing_and_keeps_what_it_has_used() -> None:
    ended = part(
        measured=5,
        inferred_bytes=None,
        confidence=0.5,
        sm_ratio=0.5,
        bandwidth_ratio=None,
        state=IDLE,
        idle_s=5.0,
        idle_bytes=5,
        active=False,
        totals=totals(measured_mj=1000, compute_us=2_000_000),
    )
    attribution = on(ended)
    assert values_by("gpu.workload.memory.usage", attribution, METHOD) == {"measured": 0, "inferred": 0}
    values: dict[str, Any] = {
        "gpu.workload.utilization": 0.0,
        "gpu.workload.memory.bandwidth.utilization": 0.0,
        "gpu.workload.idle.memory": 0,
        "gpu.workload.access": 0,
        "gpu.workload.idle.duration": None,
        "gpu.workload.memory.confidence": None,
        "gpu.workload.compute.time": 2.0,
    }
    assert {name: only(name, attribution) for name in values} == values
    assert values_by("gpu.workload.energy", attribution, METHOD)["measured"] == 1.0
    assert only("gpu.workload.access", on(part())) == 1


def test_values_that_the_driver_never_reported_do_not_appear_at_the_end() -> None:
    ended = on(part(active=False), reading=gpu())
    for name in ("utilization", "memory.bandwidth.utilization", "idle.memory", "compute.time"):
        assert only(f"gpu.workload.{name}", ended) is None


def test_a_workload_that_is_held_back_has_no_points_nor_have_its_processes() -> None:
    attribution = answer(
        device(REPORTING), workloads=[workload(part(measured=5), held=True)], processes=[process(memory_bytes=5)]
    )
    assert points_of("gpu.workload.access", attribution) == []
    assert points_of("gpu.process.active", attribution) == []
    assert values_by("gpu.device.process.count", attribution, STATE)["unknown"] == 1


def test_after_a_rename_both_names_are_exported_each_with_its_processes() -> None:
    renamed = NAMES._replace(container="vllm-2")
    attribution = answer(
        workloads=[workload(part(active=False)), workload(part(), names=renamed, naming=1)],
        processes=[process(active=False), process(naming=1)],
    )
    for name in ("gpu.workload.access", "gpu.process.active"):
        found = {
            dict(p.workload.attributes)["gpu.workload.name"]: p.value
            for p in points_of(name, attribution)
            if p.workload
        }
        assert found == {"vllm": 0, "vllm-2": 1}


def test_renamed_and_renamed_back_is_one_series_again() -> None:
    """The first entry has not been forgotten yet, and has the names of the third."""
    names = [NAMES, WorkloadNames(container="other"), NAMES]
    attribution = answer(
        workloads=[
            workload(part(active=number == 2, measured=number), names=each, naming=number)
            for number, each in reversed(list(enumerate(names)))
        ],
        processes=[process(active=number == 2, naming=number) for number in (2, 0, 1)],
    )
    for name in ("gpu.workload.access", "gpu.process.active"):
        found = points_of(name, attribution)
        assert len({point.workload for point in found}) == len(found) == 2
        assert sum(point.value for point in found) == 1


def test_only_the_overflow_workload_is_marked() -> None:
    attribution = answer(
        device(REPORTING), workloads=[workload(part()), workload(part(), ref=OVERFLOW_WORKLOAD, names=None)]
    )
    marked = {}
    for point in points_of("gpu.workload.access", attribution):
        assert point.workload is not None
        marked[dict(point.workload.attributes)["gpu.workload.id"]] = point.attributes.get("otel.metric.overflow")
    assert marked == {CONTAINER_ID: None, "overflow": True}


def test_an_allocation_is_exported_in_gpus_and_0_once_ended() -> None:
    for active, allocation in ((True, 0.25), (False, 0.0)):
        [point] = points_of(
            "gpu.workload.allocation", answer(workloads=[workload(part(active=active, allocation=allocation))])
        )
        assert point.value == allocation


def test_a_workload_that_could_use_a_gpu_has_an_access_point_and_no_other() -> None:
    attribution = answer(device(REPORTING), workloads=[workload(part(active=False, possible=True))])
    names = [metric.name for metric in METRICS if metric.name.startswith("gpu.workload.")]
    found = {name: [point.value for point in points_of(name, attribution)] for name in names}
    assert found == {name: [1] if name == "gpu.workload.access" else [] for name in names}


@pytest.mark.parametrize(("health", "here"), [(GpuHealth.PAUSED, []), (GpuHealth.FAILED, [1]), (GpuHealth.OK, [1])])
def test_while_the_agent_is_paused_only_other_sources_show_presence(health: GpuHealth, here: list[int]) -> None:
    def said(name: str, **use: Any) -> list[float]:
        active = process(active=use["active"])
        attribution = answer(device(gpu(health=health)), workloads=[workload(part(**use))], processes=[active])
        return [point.value for point in points_of(name, attribution)]

    assert said("gpu.process.active", active=True) == here
    assert said("gpu.workload.access", active=True) == here
    assert said("gpu.workload.access", active=True, allocation=1.0) == [1]  # the runtime still reports the grant
    assert said("gpu.process.active", active=False) == [0]  # /proc shows the end
    assert said("gpu.workload.access", active=False) == [0]


# ---------------------------------------------------------------------------- processes


def with_processes(*processes: ProcessReport) -> Report:
    return answer(device(REPORTING), workloads=[workload(part())], processes=processes)


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


# ---------------------------------------------------------------------------- what is known

DECLARED = WorkloadNames(title="train", declared=(("slurm.job.account", "physics"), ("slurm.job.name", "train")))
JOB = WorkloadRef(WorkloadKind.SLURM_JOB, "7")


def test_what_a_job_says_of_itself_is_on_one_metric_and_no_resource() -> None:
    report = on(part(active=True, totals=totals()))
    named = replace(report, workloads=tuple(each._replace(ref=JOB, names=DECLARED) for each in report.workloads))
    [info] = points_of("gpu.workload.info", named)
    assert info.value == 1
    assert {key: info.attributes[key] for key in ("slurm.job.name", "slurm.job.account")} == {
        "slurm.job.name": "train",
        "slurm.job.account": "physics",
    }
    for metric in METRICS:
        for point in points_of(metric.name, named):
            labels = {**dict(point.workload.attributes if point.workload else ()), **point.attributes}
            is_info = metric.name == "gpu.workload.info"
            assert ("train" in labels.values(), "slurm.job.account" in labels) == (is_info, is_info)


def test_a_workload_has_one_info_per_device_under_its_present_names_also_after_its_end() -> None:
    first = workload(part(active=False, totals=totals()))._replace(names=WorkloadNames(container="a"), naming=0)
    second = workload(part(active=False, totals=totals()))._replace(names=WorkloadNames(container="b"), naming=1)
    report = answer(device(REPORTING, totals=GpuTotals(0, 0, 0)), workloads=[second, first])
    [info] = points_of("gpu.workload.info", report)
    assert info.workload is not None
    assert dict(info.workload.attributes)["container.name"] == "b"
    assert len(points_of("gpu.workload.access", report)) == 2


def test_a_workload_with_access_only_has_no_info() -> None:
    assert points_of("gpu.workload.info", on(part(possible=True))) == []
