"""dcgm-exporter: figures of a GPU, divided among the workloads that share it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from otel_gpu.model import (
    EnergySplit,
    GpuReading,
    GpuTotals,
    MethodEnergy,
    MigReport,
    Report,
    WorkloadKind,
    WorkloadNames,
    WorkloadRef,
    WorkloadReport,
)
from tests.builders import DRIVER, MIB, listed, mig
from tests.builders import gpu as reading_of
from tests.unit.attribution.played import CYCLE_MJ, JOB, WEB, Played, gpu_with, old
from tests.unit.compat.series import lines, values
from tests.unit.export.exposition import simulated_report
from tests.unit.metrics.builders import answer, device, part, split, totals, workload

NAME = "dcgm-exporter"
OTHER = WorkloadRef(WorkloadKind.CONTAINER, "b" * 64)
UNIT = WorkloadRef(WorkloadKind.SYSTEMD_UNIT, "camera.service")
PEER = WorkloadNames(container="train", pod="train-0", namespace="research")


def reading() -> GpuReading:
    base = reading_of(power_w=200, temperature_c=60, gpu_ratio=0.9, energy_mj=5_000)
    identity = replace(base.identity, pci_bus_id="0000:1b:00.0", minor=3)
    return replace(
        base,
        identity=identity,
        memory_controller_ratio=0.4,
        sm_clock_mhz=1410,
        memory_clock_mhz=1215,
        xid_errors=0,
    )


def shared(**changes: Any) -> Report:
    """Two pods and a unit that share a GPU."""
    uses = (
        part(measured=40 * MIB, sm_ratio=0.4, bandwidth_ratio=0.1, energy=MethodEnergy(0, 500, 0)),
        part(measured=20 * MIB, sm_ratio=0.2, bandwidth_ratio=0.1, energy=MethodEnergy(0, 300, 0)),
        part(measured=10 * MIB, sm_ratio=0.0, bandwidth_ratio=0.0, energy=MethodEnergy(0, 100, 0)),
    )
    energies = (totals(estimated_mj=5_000), totals(estimated_mj=3_000), totals(measured_mj=100))
    parts = [use._replace(totals=energy) for use, energy in zip(uses, energies, strict=True)]
    gpu = device(
        replace(reading(), **changes),
        memory=split(limit=100 * MIB, reserved=5 * MIB, measured=70 * MIB, unattributed=5 * MIB),
        totals=GpuTotals(9_000, 700, 300),
    )
    report = answer(
        gpu._replace(energy=EnergySplit(1_000, 900, 80, 20)),
        workloads=[
            workload(parts[0]),
            workload(parts[1], ref=OTHER, names=PEER),
            workload(parts[2], ref=UNIT, names=None),
        ],
    )
    return replace(report, driver=DRIVER)


def parts_of(family: str, attribution: Report) -> dict[str, float]:
    return values(NAME, f"DCGM_FI_DEV_{family}", attribution, "container")


def test_the_labels_are_those_of_dcgm_exporter() -> None:
    device_ = (
        'gpu="0",UUID="GPU-0",pci_bus_id="00000000:1B:00.0",device="nvidia3",modelName="NVIDIA A100-SXM4-80GB",'
        'GPU_I_PROFILE="",GPU_I_ID="",Hostname="node-1",DCGM_FI_DRIVER_VERSION="570.124.06"'
    )
    assert lines(NAME, "DCGM_FI_DEV_GPU_TEMP", shared(), host_name="node-1") == [
        f'DCGM_FI_DEV_GPU_TEMP{{{device_},container="vllm",namespace="inference",pod="vllm-0"}} 60',
        f'DCGM_FI_DEV_GPU_TEMP{{{device_},container="train",namespace="research",pod="train-0"}} 60',
        f'DCGM_FI_DEV_GPU_TEMP{{{device_},container="camera.service",namespace="",pod=""}} 60',
    ]


# ---------------------------------------------------------------------------- shared GPU


@pytest.mark.parametrize(
    ("family", "parts", "whole"),
    [
        ("GPU_UTIL", (60, 30, 0, None), 90),
        ("MEM_COPY_UTIL", (20, 20, 0, None), 40),
        ("POWER_USAGE", (100, 60, 20, 20), 200),
        ("FB_USED", (40, 20, 10, 5), 75),
        ("TOTAL_ENERGY_CONSUMPTION", (5_000, 3_000, 100, 1_000), 9_100),
    ],
)
def test_each_workload_on_a_shared_gpu_has_its_part(family: str, parts: tuple[float | None, ...], whole: float) -> None:
    found = parts_of(family, shared())
    named = dict(zip(("vllm", "train", "camera.service", ""), parts, strict=True))
    assert found == pytest.approx({name: part for name, part in named.items() if part is not None})
    assert sum(found.values()) == pytest.approx(whole)


@pytest.mark.parametrize(("family", "value"), [("GPU_TEMP", 60), ("SM_CLOCK", 1410), ("MEM_CLOCK", 1215)])
def test_undivided_figures_are_on_every_workload_and_not_on_the_remainder(family: str, value: float) -> None:
    assert parts_of(family, shared()) == dict.fromkeys(["vllm", "train", "camera.service"], value)


def test_free_memory_is_divided_in_proportion_to_used_memory() -> None:
    used, free = parts_of("FB_USED", shared()), parts_of("FB_FREE", shared())
    assert sum(free.values()) == 20
    assert used.keys() == free.keys()
    for name in used:
        # Rounded to bytes.
        assert used[name] / (used[name] + free[name]) == pytest.approx(75 / 95, abs=1 / MIB)


def test_a_workload_without_memory_has_no_free_memory() -> None:
    gpu = device(reading(), memory=split(limit=100 * MIB, reserved=0, measured=40 * MIB))
    report = answer(
        gpu, workloads=[workload(part(measured=40 * MIB)), workload(part(measured=0), ref=OTHER, names=PEER)]
    )
    assert parts_of("FB_USED", report) == {"vllm": 40, "train": 0}
    assert parts_of("FB_FREE", report) == {"vllm": 60}


def test_free_memory_is_divided_equally_if_all_workloads_hold_nothing() -> None:
    gpu = device(reading(), memory=split(limit=100 * MIB, reserved=0))
    report = answer(gpu, workloads=[workload(part(measured=0)), workload(part(measured=0), ref=OTHER, names=PEER)])
    assert parts_of("FB_USED", report) == {"vllm": 0, "train": 0}
    assert parts_of("FB_FREE", report) == {"vllm": 50, "train": 50}


def test_an_unknown_share_of_memory_is_absent_and_belongs_to_the_remainder() -> None:
    gpu = device(reading(), memory=split(limit=100 * MIB, reserved=0, unattributed=40 * MIB))
    report = answer(gpu, workloads=[workload(part()), workload(part(), ref=OTHER, names=PEER)])
    assert parts_of("FB_USED", report) == {"": 40}
    assert parts_of("FB_FREE", report) == {"": 60}


# ---------------------------------------------------------------------------- GPU with at most one workload


GAUGES = ("SM_CLOCK", "MEM_CLOCK", "GPU_TEMP", "POWER_USAGE", "GPU_UTIL", "MEM_COPY_UTIL", "XID_ERRORS", "FB_USED")


def alone(*workloads: WorkloadReport) -> Report:
    """A GPU with 60 MiB in use, of which 40 MiB are measured, and half of its energy attributed."""
    gpu = device(
        reading(),
        memory=split(limit=100 * MIB, reserved=0, measured=40 * MIB, unattributed=20 * MIB),
        totals=GpuTotals(500, 400, 100),
    )
    return answer(gpu._replace(energy=EnergySplit(1_000, 500, 400, 100)), workloads=workloads)


def one_pod() -> WorkloadReport:
    use = part(measured=40 * MIB, sm_ratio=0.41, bandwidth_ratio=0.1, energy=MethodEnergy(500, 0, 0))
    return workload(use._replace(totals=totals(measured_mj=500)))


WHOLE = dict(zip((*GAUGES, "FB_FREE"), (1410, 1215, 60, 200, 90, 40, 0, 60, 40), strict=True))


def test_a_pod_alone_on_a_gpu_has_all_figures_of_the_gpu() -> None:
    report = alone(one_pod())
    assert {family: parts_of(family, report) for family in WHOLE} == {
        family: {"vllm": pytest.approx(value)} for family, value in WHOLE.items()
    }


def test_a_gpu_without_workloads_has_one_series_per_family() -> None:
    report = alone()
    assert {family: parts_of(family, report) for family in WHOLE} == {
        family: {"": pytest.approx(value)} for family, value in WHOLE.items()
    }


def test_workloads_that_left_or_only_may_use_the_gpu_take_no_part() -> None:
    left = workload(part(measured=MIB, active=False, energy=MethodEnergy(0, 9, 0)), ref=OTHER, names=PEER)
    could = workload(part(possible=True), ref=UNIT, names=None)
    report = alone(one_pod(), left, could)
    for family, value in WHOLE.items():
        assert parts_of(family, report) == {"vllm": pytest.approx(value)}, family


def test_a_workload_is_not_alone_while_the_names_of_another_are_resolved() -> None:
    held = workload(part(measured=20 * MIB), ref=OTHER, names=None)._replace(awaiting_names=True)
    report = alone(one_pod(), held)
    assert parts_of("FB_USED", report) == {"vllm": 40, "": 20}
    assert parts_of("POWER_USAGE", report) == {"vllm": 100, "": 100}
    assert parts_of("GPU_TEMP", report) == {"vllm": 60}


def test_energy_is_divided_even_if_a_workload_is_alone_so_that_counters_do_not_jump() -> None:
    before = parts_of("TOTAL_ENERGY_CONSUMPTION", alone(one_pod()))
    joined = workload(part(measured=MIB)._replace(totals=totals()), ref=OTHER, names=PEER)
    during = parts_of("TOTAL_ENERGY_CONSUMPTION", alone(one_pod(), joined))
    assert before == {"vllm": 500, "": 500}
    assert during == before | {"train": 0}


def test_energy_never_falls_and_rises_by_the_gpus_energy() -> None:
    played = Played()
    seen: list[dict[str, float]] = []
    refs = {1: WEB, 2: JOB}
    for there in ((1,), (1,), (1, 2), (1, 2), (2,), (), (1,), (1, 2), ()):
        reading_ = replace(gpu_with(*map(listed, there)), utilization=played.rows(*((pid, 40) for pid in there)))
        report = played.next(reading_, processes=[old(pid, refs[pid]) for pid in there])
        seen.append(parts_of("TOTAL_ENERGY_CONSUMPTION", report))
        if len(seen) > 1:
            rose = {name: value - seen[-2].get(name, 0) for name, value in seen[-1].items()}
            assert min(rose.values()) >= 0
            assert seen[-1].keys() >= seen[-2].keys()
            assert sum(rose.values()) == CYCLE_MJ
    assert set(seen[-1]) == {"web", "job", ""}


# ---------------------------------------------------------------------------- unknown values


@pytest.mark.parametrize(
    ("errors", "last", "exported"), [(0, None, 0), (3, 79, 79), (None, None, None), (2, None, None)]
)
def test_the_last_xid_is_exported_and_is_zero_only_without_errors(
    errors: int | None, last: int | None, exported: float | None
) -> None:
    assert parts_of("XID_ERRORS", shared(xid_errors=errors, last_xid=last)).get("vllm") == exported


def test_work_of_unknown_origin_belongs_to_the_remainder() -> None:
    report = answer(
        device(reading()),
        workloads=[workload(part(sm_ratio=None)), workload(part(sm_ratio=None), ref=OTHER, names=PEER)],
    )
    assert parts_of("GPU_UTIL", report) == {"": 90}
    assert parts_of("POWER_USAGE", report) == {"": 200}
    idle = replace(report, gpus=(device(replace(reading(), gpu_ratio=0.0)),))
    assert parts_of("GPU_UTIL", idle) == {"": 0}


def test_a_known_zero_is_zero_even_if_all_workloads_are_idle() -> None:
    gpu = device(replace(reading(), gpu_ratio=0.01))._replace(energy=EnergySplit(0, 0, 0, 0))
    use = part(sm_ratio=0.0, energy=MethodEnergy(0, 0, 0))
    report = answer(gpu, workloads=[workload(use), workload(use, ref=OTHER, names=PEER)])
    assert parts_of("GPU_UTIL", report) == {"vllm": 0, "train": 0, "": 1}
    assert parts_of("POWER_USAGE", report) == {"vllm": 0, "train": 0, "": 200}


def test_figures_that_the_driver_does_not_report_are_absent() -> None:
    report = answer(device(), workloads=[workload(part())])
    families = ("GPU_UTIL", "MEM_COPY_UTIL", "POWER_USAGE", "TOTAL_ENERGY_CONSUMPTION", "FB_USED", "FB_FREE")
    assert [parts_of(family, report) for family in (*families, "GPU_TEMP", "SM_CLOCK", "MEM_CLOCK", "XID_ERRORS")] == [
        {}
    ] * 10


def test_lists_that_exceed_used_memory_are_scaled_down() -> None:
    gpu = device(memory=split(limit=100 * MIB, reserved=0, measured=50 * MIB, overcount=10 * MIB))
    uses = (part(measured=40 * MIB), part(measured=10 * MIB))
    report = answer(gpu, workloads=[workload(uses[0]), workload(uses[1], ref=OTHER, names=PEER)])
    assert parts_of("FB_USED", report) == pytest.approx({"vllm": 32, "train": 8})


def test_an_ended_pod_has_its_energy_only() -> None:
    report = shared()
    ended = report.workloads[0]._replace(
        gpus=(report.workloads[0].gpus[0]._replace(active=False, energy=MethodEnergy()),)
    )
    report = replace(report, workloads=(ended, *report.workloads[1:]))
    assert parts_of("TOTAL_ENERGY_CONSUMPTION", report)["vllm"] == 5_000
    for family in ("GPU_UTIL", "MEM_COPY_UTIL", "POWER_USAGE", "FB_USED", "GPU_TEMP", "SM_CLOCK", "XID_ERRORS"):
        assert "vllm" not in parts_of(family, report), family


def test_the_remainders_energy_does_not_jump_when_a_pod_is_dropped() -> None:
    report = shared()
    assert parts_of("TOTAL_ENERGY_CONSUMPTION", replace(report, workloads=()))[""] == 1_000


def test_memory_of_mig_instances_is_divided_per_instance() -> None:
    instances = [
        MigReport("MIG-1", "1g.10gb", split(limit=30 * MIB, reserved=0, measured=10 * MIB, unattributed=2 * MIB)),
        MigReport("MIG-2", "2g.20gb", split(limit=40 * MIB, reserved=0, measured=20 * MIB)),
    ]
    gpu = device(
        replace(reading(), mig=(mig("MIG-1", (7, 0)), mig("MIG-2", (3, 0)))),
        memory=split(limit=100 * MIB, reserved=0, measured=30 * MIB, unattributed=2 * MIB),
        mig=instances,
    )
    uses = [
        part(mig_uuid="MIG-1", mig_profile="1g.10gb", measured=10 * MIB, energy=MethodEnergy(0, 500, 0)),
        part(mig_uuid="MIG-2", mig_profile="2g.20gb", measured=15 * MIB, energy=MethodEnergy(0, 250, 0)),
        part(mig_uuid="MIG-2", mig_profile="2g.20gb", measured=5 * MIB, energy=MethodEnergy(0, 0, 0)),
    ]
    report = answer(
        gpu._replace(energy=EnergySplit(1_000, 750, 250, 0)),
        workloads=[
            workload(uses[0]),
            workload(uses[1], ref=OTHER, names=PEER),
            workload(uses[2], ref=UNIT, names=None),
        ],
    )
    places = ("GPU_I_ID", "GPU_I_PROFILE", "container")
    first, second = ("7", "1g.10gb", "vllm"), ("3", "2g.20gb", "train")
    third, remainder = ("3", "2g.20gb", "camera.service"), ("", "", "")
    assert values(NAME, "DCGM_FI_DEV_FB_USED", report, *places) == {first: 12, second: 15, third: 5}
    assert values(NAME, "DCGM_FI_DEV_FB_FREE", report, *places) == {first: 18, second: 15, third: 5, remainder: 30}
    assert values(NAME, "DCGM_FI_DEV_POWER_USAGE", report, *places) == {first: 100, second: 50, third: 0, remainder: 50}
    assert values(NAME, "DCGM_FI_DEV_GPU_TEMP", report, *places) == {first: 60, second: 60, third: 60}


def test_a_pod_alone_on_a_mig_instance_does_not_have_the_whole_gpu() -> None:
    gpu = device(replace(reading(), mig=(mig("MIG-1", (7, 0)),)), memory=split(limit=100 * MIB, measured=MIB))
    use = part(mig_uuid="MIG-1", mig_profile="1g.10gb", measured=MIB, energy=MethodEnergy(0, 500, 0))
    report = answer(gpu._replace(energy=EnergySplit(1_000, 500, 500, 0)), workloads=[workload(use)])
    assert parts_of("POWER_USAGE", report) == {"vllm": 100, "": 100}
    assert parts_of("FB_USED", report) == {"vllm": 1}


@pytest.mark.parametrize(
    ("kernel", "label"),
    [("0000:1b:00.0", "00000000:1B:00.0"), ("00000001:af:00.0", "00000001:AF:00.0"), (None, ""), ("", "")],
)
def test_the_pci_address_has_nvmls_format(kernel: str | None, label: str) -> None:
    gpu = device(replace(reading(), identity=replace(reading().identity, pci_bus_id=kernel)))
    assert values(NAME, "DCGM_FI_DEV_GPU_TEMP", answer(gpu), "pci_bus_id") == {label: 60}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_shares_sum_to_every_gpu_of_a_host(seed: int) -> None:
    report = simulated_report(seed)
    for each in report.gpus:
        uuid, figures, memory = each.identity.uuid, each.reading, each.memory
        assert memory is not None

        def whole(family: str, uuid: str = uuid) -> float | None:
            found = values(NAME, f"DCGM_FI_DEV_{family}", report, "UUID", "pod", "container", "GPU_I_ID", "namespace")
            own = [value for key, value in found.items() if key[0] == uuid]
            return sum(own) if own else None

        assert whole("POWER_USAGE") == pytest.approx(figures.power_w)
        ratio = figures.gpu_ratio
        assert whole("GPU_UTIL") == (None if ratio is None else pytest.approx(ratio * 100))
        used, free = whole("FB_USED"), whole("FB_FREE")
        assert used is not None
        assert free is not None
        assert (used + free) * MIB == pytest.approx(memory.limit_bytes - (memory.reserved_bytes or 0), abs=1)
        assert each.totals is not None
        assert whole("TOTAL_ENERGY_CONSUMPTION") == each.totals.total_mj
