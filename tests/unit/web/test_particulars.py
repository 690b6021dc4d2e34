from __future__ import annotations

from dataclasses import replace
from typing import Any

from otel_gpu.export.document import document
from otel_gpu.model import (
    Cost,
    CostBasis,
    GpuState,
    GpuTotals,
    MethodEnergy,
    Report,
    SourceOutcome,
    SourceState,
)
from otel_gpu.web.particulars import About, particulars
from tests.builders import attribution, failed_gpu, gpu
from tests.unit.metrics.builders import SINCE_NS, WORK, answer, device, part, process, totals, workload

ABOUT = About("1.2.3", "node-1", 5.0)


def told(of: Report, about: About = ABOUT) -> dict[str, Any]:
    return particulars(of, about, {"at": [], "gpus": {}})


def test_it_stands_beside_the_document_entry_by_entry() -> None:
    cycle = attribution()
    beside, main = told(cycle), document(cycle)
    for key in ("gpus", "workloads", "processes", "sources"):
        assert len(beside[key]) == len(main[key]) > 1
    assert [len(each["gpus"]) for each in beside["workloads"]] == [len(each["gpus"]) for each in main["workloads"]]
    assert [each["health"] for each in beside["gpus"]] == ["ok", "ok", "failed"]
    assert beside["gpus"][2]["reason"] == "GPU is lost: it fell off the bus"
    assert beside["sources"] == ["degraded", "ok"]


def test_what_has_left_stands_in_neither() -> None:
    here = workload(part(measured=1))
    left = workload(part(measured=0, active=False))
    cycle = answer(device(), workloads=[left, here], processes=[process(1, active=False), process(2)])
    assert len(told(cycle)["workloads"]) == len(document(cycle)["workloads"]) == 1
    assert len(told(cycle)["processes"]) == len(document(cycle)["processes"]) == 1


def test_totals_are_told_by_method_with_their_beginning() -> None:
    sums = totals(measured_mj=5, estimated_mj=7, idle_us=3_000_000, idle_mj=2)
    cycle = answer(
        device(gpu(0, power_w=70), totals=GpuTotals(12, 1, 2)),
        workloads=[workload(part(measured=1, totals=sums))],
        processes=[process(1, totals=sums, energy=MethodEnergy(None, 7, None))],
    )
    beside = told(cycle)
    (entry,) = beside["workloads"][0]["gpus"]
    assert entry["energy_mj"] == {"measured": 5, "estimated": 7, "inferred": 0}
    assert (entry["idle_s"], entry["idle_mj"], entry["since"]) == (3.0, 2, SINCE_NS / 1e9)
    assert beside["processes"][0]["energy_mj"] == entry["energy_mj"]
    assert beside["processes"][0]["lately_mj"] == {"measured": None, "estimated": 7, "inferred": None}
    assert beside["gpus"][0]["energy_mj"] == {"attributed": 12, "idle": 1, "unattributed": 2}


def test_where_nobody_counts_there_is_no_total_and_where_somebody_does_0_is_0() -> None:
    def entry(*readings: Any) -> dict[str, Any]:
        (found,) = told(answer(*readings, workloads=[workload(part(measured=1))]))["workloads"][0]["gpus"]
        assert isinstance(found, dict)
        return found

    uncounted = entry(device(failed_gpu(0)))
    assert (uncounted["energy_mj"], uncounted["idle_s"]) == (None, None)
    reading = gpu(0, power_w=70)
    counted = entry(device(reading, totals=GpuTotals(0, 0, 0)))
    assert counted["energy_mj"] == {"measured": 0, "estimated": 0, "inferred": 0}
    assert counted["idle_s"] is None  # nobody tells who works
    working = replace(reading, utilization=WORK)
    assert entry(device(working, totals=GpuTotals(0, 0, 0)))["idle_s"] == 0.0


def test_cost_is_summed_and_that_of_idleness_told_apart() -> None:
    costs = (Cost(GpuState.BUSY, CostBasis.TIME, 2.0), Cost(GpuState.IDLE, CostBasis.TIME, 0.5))
    cycle = answer(device(), workloads=[workload(part(measured=1, costs=costs)), workload(part(measured=1))])
    priced, unpriced = (each["gpus"][0] for each in told(cycle, About("1", "n", 5.0, None, "EUR"))["workloads"])
    assert (priced["cost"], priced["idle_cost"]) == (2.5, 0.5)
    assert (unpriced["cost"], unpriced["idle_cost"]) == (None, None)


def test_0_of_who_is_undecided_is_no_idle_time() -> None:
    reading = device(replace(gpu(0, power_w=70), utilization=WORK), totals=GpuTotals(0, 0, 0))
    states = (GpuState.UNKNOWN, GpuState.BUSY)
    cycle = answer(reading, workloads=[workload(part(measured=1, state=state)) for state in states])
    assert [each["gpus"][0]["idle_s"] for each in told(cycle)["workloads"]] == [None, 0.0]


def test_0_of_who_is_undecided_is_no_cost() -> None:
    free, dear = (
        tuple(Cost(state, CostBasis.TIME, amount) for state in (GpuState.BUSY, GpuState.IDLE)) for amount in (0.0, 1.0)
    )
    parts = [
        part(measured=1, costs=free, state=GpuState.UNKNOWN),
        part(measured=1, costs=dear, state=GpuState.UNKNOWN),
        part(measured=1, costs=free, state=GpuState.BUSY),
    ]
    reading = device(replace(gpu(0, power_w=70), utilization=WORK))
    entries = told(answer(reading, workloads=[workload(each) for each in parts]))["workloads"]
    assert [(each["gpus"][0]["cost"], each["gpus"][0]["idle_cost"]) for each in entries] == [
        (None, None), (2.0, 1.0), (0.0, 0.0),
    ]  # fmt: skip


def test_what_was_paid_while_idle_is_not_known_where_nobody_can_tell_who_works() -> None:
    costs = (Cost(GpuState.UNKNOWN, CostBasis.TIME, 2.0), Cost(GpuState.IDLE, CostBasis.TIME, 0.0))
    (entry,) = told(answer(device(), workloads=[workload(part(measured=1, costs=costs))]))["workloads"]
    assert (entry["gpus"][0]["cost"], entry["gpus"][0]["idle_cost"]) == (2.0, None)


def test_whether_nobody_means_nobody_is_told() -> None:
    assert told(answer(device()))["all_told"] is True
    assert told(answer(device(), device(failed_gpu(1))))["all_told"] is False
    assert told(answer(sources=[SourceOutcome("nvml", SourceState.UNAVAILABLE, "no driver")]))["all_told"] is False
