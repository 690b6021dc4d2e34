from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from otel_gpu.metrics.catalogue import METRICS
from otel_gpu.model import (
    OVERFLOW_WORKLOAD,
    Cost,
    CostBasis,
    GpuHealth,
    GpuReading,
    GpuState,
    GpuTotals,
    MigReport,
    Report,
    WorkloadGpu,
    WorkloadNames,
)
from tests.builders import CONTAINER_ID, gpu, mig, uuid_of
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
