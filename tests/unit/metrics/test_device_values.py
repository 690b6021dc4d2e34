from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.model import (
    EnergyBasis,
    GpuHealth,
    GpuReading,
    GpuTotals,
    MemorySplit,
    MigReading,
    MigReport,
)
from tests.builders import failed_gpu, gpu, mig, uuid_of
from tests.unit.metrics.builders import (
    BUSY,
    EPOCH_NS,
    IDLE,
    UNKNOWN,
    WORK,
    answer,
    device,
    points_of,
    process,
    split,
    values_by,
)

SILENT = answer(device(failed_gpu()))


# ---------------------------------------------------------------------------- hw


def test_a_gpu_is_named_with_its_model_and_vendor() -> None:
    (point,) = points_of("hw.gpu.memory.limit", answer(device(gpu(1), memory=split(limit=80))))
    assert point.attributes == {
        "hw.id": uuid_of(1),
        "gpu.index": "1",
        "hw.name": "NVIDIA A100-SXM4-80GB",
        "hw.model": "A100-SXM4-80GB",
        "hw.vendor": "NVIDIA",
    }
    assert (point.value, point.workload, point.start_ns) == (80, None, None)


def test_memory_used_leaves_out_what_the_driver_reserves() -> None:
    reading = answer(device(memory=split(limit=100, reserved=10, measured=30, overcount=5, unattributed=15)))
    assert values_by("hw.gpu.memory.usage", reading, "hw.id") == {uuid_of(0): 40}
    assert values_by("hw.gpu.memory.utilization", reading, "hw.id") == {uuid_of(0): 0.4}


def test_memory_of_size_0_has_no_fraction() -> None:
    assert points_of("hw.gpu.memory.utilization", answer(device(memory=split(limit=0, reserved=0)))) == []


def test_utilization_is_exported_by_task_as_far_as_the_driver_reports_it() -> None:
    reading = replace(gpu(), gpu_ratio=0.5, decoder_ratio=0.0)
    assert values_by("hw.gpu.utilization", answer(device(reading)), "hw.gpu.task") == {"general": 0.5, "decoder": 0.0}


def test_power_and_temperature_are_the_gpus() -> None:
    attribution = answer(device(gpu(power_w=70.5, temperature_c=40.0)))
    assert values_by("hw.power", attribution, "hw.id", "hw.type") == {(uuid_of(0), "gpu"): 70.5}
    assert values_by("hw.temperature", attribution, "hw.id") == {uuid_of(0): 40.0}


def test_energy_is_the_ledgers_in_joules_since_its_epoch() -> None:
    attribution = answer(device(gpu(energy_mj=5), totals=GpuTotals(1000, 200, 34)))
    (point,) = points_of("hw.energy", attribution)
    assert (point.value, point.start_ns, point.attributes["hw.type"]) == (1.234, EPOCH_NS, "gpu")
    assert values_by("gpu.device.energy", attribution, "gpu.energy.state") == {
        "attributed": 1.0,
        "idle": 0.2,
        "unattributed": 0.034,
    }
    assert {point.start_ns for point in points_of("gpu.device.energy", attribution)} == {EPOCH_NS}


@pytest.mark.parametrize(
    ("reading", "total_mj", "is_exported"),
    [
        (gpu(energy_mj=7), 0, True),
        (gpu(power_w=50.0), 0, True),
        (gpu(), 0, False),
        (failed_gpu(), 0, False),
        (failed_gpu(), 5, True),
    ],
    ids=["a counter", "power only", "neither", "lost from the first", "lost later"],
)
def test_energy_is_0_from_the_first_cycle_on_and_absent_where_it_is_not_counted(
    reading: GpuReading, total_mj: int, is_exported: bool
) -> None:
    attribution = answer(device(reading, totals=GpuTotals(total_mj, 0, 0)))
    assert [point.value for point in points_of("hw.energy", attribution)] == [total_mj / 1000] * is_exported
    assert len(points_of("gpu.device.energy", attribution)) == 3 * is_exported


def test_errors_are_there_at_0_as_far_as_the_driver_counts_them() -> None:
    reading = replace(gpu(), ecc_corrected=3, ecc_uncorrected=0, xid_errors=0)
    attribution = answer(device(reading))
    assert values_by("hw.errors", attribution, "error.type") == {"corrected": 3, "uncorrected": 0, "xid": 0}
    starts = {point.attributes["error.type"]: point.start_ns for point in points_of("hw.errors", attribution)}
    # ECC errors count over the life of the board, and have no start.
    assert starts == {"corrected": None, "uncorrected": None, "xid": EPOCH_NS}
    without_ecc = answer(device(replace(gpu(), xid_errors=2)))
    assert values_by("hw.errors", without_ecc, "error.type") == {"xid": 2}


@pytest.mark.parametrize("health", GpuHealth)
def test_status_has_every_state_and_one_of_them_is_1(health: GpuHealth) -> None:
    states = values_by("hw.status", answer(device(gpu(health=health))), "hw.state")
    assert states == {state: int(state == health) for state in ("ok", "degraded", "failed", "asleep", "paused")}


def test_a_gpu_that_does_not_answer_has_a_status_and_nothing_else() -> None:
    names = ["hw.gpu.memory.limit", "hw.gpu.memory.usage", "hw.gpu.memory.utilization", "hw.gpu.utilization"]
    names += ["hw.power", "hw.energy", "hw.temperature", "hw.errors", "gpu.device.memory.usage"]
    names += ["gpu.device.memory.overcount", "gpu.device.energy", "gpu.device.energy.info"]
    names += ["gpu.device.idle.memory", "gpu.device.process.count"]
    assert {name: points_of(name, SILENT) for name in names} == {name: [] for name in names}
    states = {"ok": 0, "degraded": 0, "failed": 1, "asleep": 0, "paused": 0}
    assert values_by("hw.status", SILENT, "hw.state") == states


# ---------------------------------------------------------------------------- memory


def test_memory_states_sum_to_the_limit_with_measured_net_of_overcount() -> None:
    memory = split(limit=100, reserved=2, measured=50, overcount=10, inferred=7, unattributed=3)
    attribution = answer(device(memory=memory))
    states = values_by("gpu.device.memory.usage", attribution, "gpu.memory.state")
    assert states == {"reserved": 2, "measured": 40, "inferred": 7, "unattributed": 3, "free": 48}
    assert sum(states.values()) == 100
    assert values_by("gpu.device.memory.overcount", attribution, "hw.id") == {uuid_of(0): 10}


def test_without_a_reserve_reported_there_is_no_such_state_and_the_sum_holds() -> None:
    states = values_by("gpu.device.memory.usage", answer(device(memory=split(reserved=None))), "gpu.memory.state")
    assert "reserved" not in states
    assert sum(states.values()) == 100


def partitioned(
    whole: MemorySplit, *instances: tuple[MigReading, MemorySplit | None]
) -> dict[tuple[str | None, str], int]:
    """Memory by instance and state."""
    reading = gpu(mig=[each for each, _ in instances])
    parts = [MigReport(each.uuid, each.profile, memory) for each, memory in instances]
    states = values_by(
        "gpu.device.memory.usage", answer(device(reading, memory=whole, mig=parts)), "gpu.mig.uuid", "gpu.memory.state"
    )
    assert sum(states.values()) == whole.limit_bytes
    assert min(states.values()) >= 0
    return states


def test_instances_and_the_rest_sum_to_the_limit_of_the_gpu() -> None:
    states = partitioned(
        split(limit=100, reserved=4, measured=30, inferred=5, unattributed=1),
        (mig("MIG-a", (1, 0)), split(limit=40, reserved=1, measured=20)),
        (mig("MIG-b", (2, 0)), split(limit=20, reserved=1, measured=8, inferred=5)),
    )
    assert states["MIG-a", "free"] == 19
    assert {state: states[None, state] for state in ("reserved", "measured", "inferred", "unattributed", "free")} == {
        "reserved": 2,
        "measured": 2,
        "inferred": 0,
        "unattributed": 1,
        "free": 35,
    }


def test_instances_that_claim_more_of_a_state_than_the_gpu_leave_nothing_negative() -> None:
    states = partitioned(
        split(limit=100, reserved=None, measured=10),
        (mig("MIG-a", (1, 0)), split(limit=40, reserved=3, measured=30)),
    )
    assert states["MIG-a", "measured"] == 30
    assert states[None, "measured"] == 0
    assert states[None, "free"] == 60


def test_compute_instances_that_share_memory_do_not_count_it_twice() -> None:
    shared = split(limit=40, measured=10)
    states = partitioned(split(limit=100, measured=25), (mig("MIG-a", (1, 0)), shared), (mig("MIG-b", (1, 1)), shared))
    assert {uuid for uuid, _ in states} == {None}
    assert states[None, "measured"] == 25


def test_instances_larger_than_their_gpu_are_counted_with_the_gpu() -> None:
    states = partitioned(
        split(limit=100, measured=25), (mig("MIG-a", (1, 0)), split(limit=60)), (mig("MIG-b", (2, 0)), split(limit=60))
    )
    assert {uuid for uuid, _ in states} == {None}


def test_an_instance_without_figures_is_with_the_rest() -> None:
    states = partitioned(
        split(limit=100, measured=25), (mig("MIG-a", (1, 0)), None), (mig("MIG-b", (None, None)), split(limit=10))
    )
    assert {uuid for uuid, _ in states} == {None, "MIG-b"}


def test_overcount_is_exported_by_instance() -> None:
    parts = [MigReport("MIG-a", "1g.10gb", split(limit=40, measured=9, overcount=4))]
    whole = split(measured=9, overcount=6)
    attribution = answer(device(gpu(mig=[mig("MIG-a", (1, 0))]), memory=whole, mig=parts))
    assert values_by("gpu.device.memory.overcount", attribution, "gpu.mig.uuid") == {"MIG-a": 4, None: 2}


def test_hardware_metrics_are_of_the_physical_gpu_only() -> None:
    parts = [MigReport("MIG-a", "1g.10gb", split(limit=40))]
    attribution = answer(device(gpu(mig=[mig("MIG-a", (1, 0))]), memory=split(), mig=parts))
    assert values_by("hw.gpu.memory.limit", attribution, "hw.id", "gpu.mig.uuid") == {(uuid_of(0), None): 100}


# ---------------------------------------------------------------------------- energy, processes


def test_the_basis_of_the_division_of_energy_is_exported() -> None:
    basis = EnergyBasis("counter", "resident", "learned", 40.0, "observed", 60.0, "assumed")
    (point,) = points_of("gpu.device.energy.info", answer(device(basis=basis, has_energy=True)))
    assert point.value == 1
    where = ("hw.id", "gpu.index")
    assert {key: value for key, value in point.attributes.items() if key not in where} == {
        "source": "counter",
        "policy": "resident",
        "model": "learned",
        "gpu.energy.idle.origin": "observed",
        "gpu.energy.held.origin": "assumed",
    }


def test_a_gpu_without_energy_has_no_basis_of_its_division() -> None:
    basis = EnergyBasis("power", "resident", "learned", 40.0, "assumed", 60.0, "assumed")
    without = device(basis=basis, has_energy=False)
    assert points_of("gpu.device.energy.info", answer(without)) == []


def test_processes_are_counted_by_state_and_instance_and_the_ended_are_not() -> None:
    parts = [MigReport("MIG-a", "1g.10gb", None)]
    processes = [
        process(1, state=BUSY, mig_uuid="MIG-a"),
        process(2, state=IDLE, mig_uuid="MIG-a", idle_bytes=5),
        process(3, state=IDLE, mig_uuid="MIG-gone", idle_bytes=7),
        process(4, state=None),
        process(5, state=UNKNOWN),
        process(6, state=BUSY, active=False),
    ]
    reading = replace(gpu(mig=[mig("MIG-a", (1, 0))]), utilization=WORK)
    attribution = answer(device(reading, mig=parts), processes=processes)
    assert values_by("gpu.device.process.count", attribution, "gpu.mig.uuid", "gpu.state") == {
        ("MIG-a", "busy"): 1,
        ("MIG-a", "idle"): 1,
        ("MIG-a", "unknown"): 0,
        (None, "busy"): 0,
        (None, "idle"): 1,
        (None, "unknown"): 2,
    }
    assert values_by("gpu.device.idle.memory", attribution, "gpu.mig.uuid", "gpu.mig.profile") == {
        ("MIG-a", "1g.10gb"): 5,
        (None, None): 7,
    }


def test_an_empty_gpu_has_0_processes_and_an_unlisted_one_no_point() -> None:
    empty, unlisted = answer(device(gpu(0, ()))), answer(device(gpu(0, None)))
    assert values_by("gpu.device.process.count", empty, "gpu.state") == {"busy": 0, "idle": 0, "unknown": 0}
    assert values_by("gpu.device.idle.memory", empty, "hw.id") == {uuid_of(0): 0}
    assert points_of("gpu.device.process.count", unlisted) == points_of("gpu.device.idle.memory", unlisted) == []


def test_idle_memory_is_absent_where_the_driver_reports_no_utilization() -> None:
    attribution = answer(device(gpu()), processes=[process(state=UNKNOWN, memory_bytes=5, idle_bytes=0)])
    assert points_of("gpu.device.idle.memory", attribution) == []
