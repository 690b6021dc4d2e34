"""dcgm-exporter: figures of a GPU, and of a shared GPU each workload's own part of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from otel_gpu.model import (
    Attribution,
    DeviceTotals,
    EnergySplit,
    GpuReading,
    MethodEnergy,
    WorkloadKind,
    WorkloadNames,
    WorkloadRef,
)
from tests.builders import DRIVER, MIB, mig
from tests.builders import gpu as reading_of
from tests.unit.compat.told import lines, values
from tests.unit.export.exposition import simulated_reading
from tests.unit.metrics.builders import answer, device, part, split, totals, workload

NAME = "dcgm-exporter"
OTHER = WorkloadRef(WorkloadKind.CONTAINER, "b" * 64)
UNIT = WorkloadRef(WorkloadKind.SYSTEMD_UNIT, "camera.service")
PEER = WorkloadNames(container="train", pod="train-0", namespace="research")


def reading() -> GpuReading:
    base = reading_of(power_w=200, temperature_c=60, gpu_ratio=0.9, energy_mj=5_000)
    identity = replace(base.identity, pci_bus_id="00000000:07:00.0", minor=3)
    return replace(
        base,
        identity=identity,
        memory_controller_ratio=0.4,
        sm_clock_mhz=1410,
        memory_clock_mhz=1215,
        xid_errors=0,
    )


def shared(**changes: Any) -> Attribution:
    """Two pods and a unit that share a GPU."""
    uses = (
        part(measured=40 * MIB, sm_ratio=0.4, bandwidth_ratio=0.1, energy=MethodEnergy(0, 500, 0)),
        part(measured=20 * MIB, sm_ratio=0.2, bandwidth_ratio=0.1, energy=MethodEnergy(0, 300, 0)),
        part(measured=10 * MIB, sm_ratio=0.0, bandwidth_ratio=0.0, energy=MethodEnergy(0, 100, 0)),
    )
    energies = (totals(estimated_mj=5_000), totals(estimated_mj=3_000), totals(measured_mj=100))
    parts = [replace(use, totals=energy) for use, energy in zip(uses, energies, strict=True)]
    gpu = device(
        replace(reading(), **changes),
        memory=split(limit=100 * MIB, reserved=5 * MIB, measured=70 * MIB, unattributed=5 * MIB),
        totals=DeviceTotals(9_000, 700, 300),
    )
    told = answer(
        replace(gpu, energy=EnergySplit(1_000, 900, 80, 20)),
        workloads=[
            workload(parts[0]),
            workload(parts[1], ref=OTHER, names=PEER),
            workload(parts[2], ref=UNIT, names=None),
        ],
    )
    return replace(told, driver=DRIVER)


def parts_of(family: str, attribution: Attribution) -> dict[str, float]:
    return values(NAME, f"DCGM_FI_DEV_{family}", attribution, "container")


def test_the_labels_are_its_own() -> None:
    device_ = (
        'gpu="0",UUID="GPU-0",pci_bus_id="00000000:07:00.0",device="nvidia3",modelName="NVIDIA A100-SXM4-80GB",'
        'GPU_I_PROFILE="",GPU_I_ID="",Hostname="node-1",DCGM_FI_DRIVER_VERSION="570.124.06"'
    )
    assert lines(NAME, "DCGM_FI_DEV_GPU_TEMP", shared(), host_name="node-1") == [
        f'DCGM_FI_DEV_GPU_TEMP{{{device_},container="vllm",namespace="inference",pod="vllm-0"}} 60',
        f'DCGM_FI_DEV_GPU_TEMP{{{device_},container="train",namespace="research",pod="train-0"}} 60',
        f'DCGM_FI_DEV_GPU_TEMP{{{device_},container="camera.service",namespace="",pod=""}} 60',
        f'DCGM_FI_DEV_GPU_TEMP{{{device_},container="",namespace="",pod=""}} 60',
    ]


@pytest.mark.parametrize(
    ("family", "parts", "whole"),
    [
        ("GPU_UTIL", (60, 30, 0, 0), 90),
        ("MEM_COPY_UTIL", (20, 20, 0, 0), 40),
        ("POWER_USAGE", (100, 60, 20, 20), 200),
        ("FB_USED", (40, 20, 10, 5), 75),
        ("TOTAL_ENERGY_CONSUMPTION", (5_000, 3_000, 100, 1_000), 9_100),
    ],
)
def test_of_a_shared_gpu_everybody_has_their_own_part(
    family: str, parts: tuple[float, float, float, float], whole: float
) -> None:
    found = parts_of(family, shared())
    assert found == pytest.approx(dict(zip(("vllm", "train", "camera.service", ""), parts, strict=True)))
    assert sum(found.values()) == pytest.approx(whole)


@pytest.mark.parametrize(("family", "value"), [("GPU_TEMP", 60), ("SM_CLOCK", 1410), ("MEM_CLOCK", 1215)])
def test_what_does_not_divide_is_the_same_for_everybody(family: str, value: float) -> None:
    assert parts_of(family, shared()) == dict.fromkeys(["vllm", "train", "camera.service", ""], value)


def test_free_memory_is_nobodys() -> None:
    assert parts_of("FB_FREE", shared()) == {"": 20}


@pytest.mark.parametrize(("errors", "last", "told"), [(0, None, 0), (3, 79, 79), (None, None, None), (2, None, None)])
def test_the_last_xid_is_told_and_zero_only_where_there_was_none(
    errors: int | None, last: int | None, told: float | None
) -> None:
    assert parts_of("XID_ERRORS", shared(xid_errors=errors, last_xid=last)).get("vllm") == told


def test_a_pod_alone_on_a_gpu_has_all_of_its_work() -> None:
    gpu = replace(device(replace(reading(), gpu_ratio=0.83)), energy=EnergySplit(500, 500, 0, 0))
    told = answer(gpu, workloads=[workload(part(sm_ratio=0.41, energy=MethodEnergy(500, 0, 0)))])
    assert parts_of("GPU_UTIL", told) == pytest.approx({"vllm": 83, "": 0})
    assert parts_of("POWER_USAGE", told) == pytest.approx({"vllm": 200, "": 0})


def test_work_that_nobody_is_known_to_do_is_nobodys() -> None:
    told = answer(device(reading()), workloads=[workload(part(sm_ratio=None))])
    assert parts_of("GPU_UTIL", told) == {"": 90}
    assert parts_of("POWER_USAGE", told) == {"": 200}


def test_who_is_known_to_do_nothing_does_nothing_even_if_nobody_does_anything() -> None:
    gpu = replace(device(replace(reading(), gpu_ratio=0.01)), energy=EnergySplit(0, 0, 0, 0))
    told = answer(gpu, workloads=[workload(part(sm_ratio=0.0, energy=MethodEnergy(0, 0, 0)))])
    assert parts_of("GPU_UTIL", told) == {"vllm": 0, "": 1}
    assert parts_of("POWER_USAGE", told) == {"vllm": 0, "": 200}


def test_what_the_driver_does_not_tell_is_absent() -> None:
    told = answer(device(), workloads=[workload(part())])
    families = ("GPU_UTIL", "MEM_COPY_UTIL", "POWER_USAGE", "TOTAL_ENERGY_CONSUMPTION", "FB_USED", "FB_FREE")
    assert [parts_of(family, told) for family in (*families, "GPU_TEMP", "SM_CLOCK", "MEM_CLOCK", "XID_ERRORS")] == [
        {}
    ] * 10


def test_lists_that_claim_more_than_is_used_are_cut_to_it() -> None:
    gpu = device(memory=split(limit=100 * MIB, reserved=0, measured=50 * MIB, overcount=10 * MIB))
    uses = (part(measured=40 * MIB), part(measured=10 * MIB))
    told = answer(gpu, workloads=[workload(uses[0]), workload(uses[1], ref=OTHER, names=PEER)])
    assert parts_of("FB_USED", told) == pytest.approx({"vllm": 32, "train": 8, "": 0})


def test_a_pod_that_ended_keeps_its_energy_and_has_nothing_else() -> None:
    told = shared()
    ended = replace(told.workloads[0], gpus=(replace(told.workloads[0].gpus[0], active=False, energy=MethodEnergy()),))
    told = replace(told, workloads=(ended, *told.workloads[1:]))
    assert parts_of("TOTAL_ENERGY_CONSUMPTION", told)["vllm"] == 5_000
    for family in ("GPU_UTIL", "MEM_COPY_UTIL", "POWER_USAGE", "FB_USED", "GPU_TEMP", "SM_CLOCK", "XID_ERRORS"):
        assert "vllm" not in parts_of(family, told), family


def test_nobodys_energy_does_not_jump_when_a_pod_is_forgotten() -> None:
    told = shared()
    assert parts_of("TOTAL_ENERGY_CONSUMPTION", replace(told, workloads=()))[""] == 1_000


def test_a_workload_on_a_mig_instance_is_told_with_it() -> None:
    gpu = device(replace(reading(), mig=(mig("MIG-1", (7, 0)),)), memory=split(limit=100 * MIB, measured=MIB))
    told = answer(gpu, workloads=[workload(part(mig_uuid="MIG-1", mig_profile="1g.10gb", measured=MIB))])
    assert values(NAME, "DCGM_FI_DEV_FB_USED", told, "GPU_I_ID", "GPU_I_PROFILE", "pod") == {
        ("7", "1g.10gb", "vllm-0"): 1,
        ("", "", ""): 0,
    }


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_on_a_whole_host_parts_sum_to_every_gpu(seed: int) -> None:
    told = simulated_reading(seed)
    for each in told.devices:
        uuid, figures, memory = each.gpu.identity.uuid, each.gpu.reading, each.gpu.memory
        assert memory is not None

        def whole(family: str, uuid: str = uuid) -> float | None:
            found = values(NAME, f"DCGM_FI_DEV_{family}", told, "UUID", "pod", "container", "GPU_I_ID", "namespace")
            own = [value for key, value in found.items() if key[0] == uuid]
            return sum(own) if own else None

        assert whole("POWER_USAGE") == pytest.approx(figures.power_w)
        ratio = figures.gpu_ratio
        assert whole("GPU_UTIL") == (None if ratio is None else pytest.approx(ratio * 100))
        used, free = whole("FB_USED"), whole("FB_FREE")
        assert used is not None
        assert free is not None
        assert (used + free) * MIB == pytest.approx(memory.limit_bytes - (memory.reserved_bytes or 0), abs=1)
        assert each.gpu.totals is not None
        assert whole("TOTAL_ENERGY_CONSUMPTION") == each.gpu.totals.total_mj
