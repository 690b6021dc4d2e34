"""Worked examples from the documentation of other exporters, on whole reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.attribution.options import AttributionOptions, EnergyModel, EnergyPolicy
from otel_gpu.model import Report, WorkloadKind, WorkloadNames, WorkloadRef
from tests.builders import GIB, listed
from tests.unit.attribution.played import Played, gpu_with, old
from tests.unit.compat.series import values

A, B = (WorkloadRef(WorkloadKind.CONTAINER, letter * 64) for letter in "ab")
NAMES = {ref.id: WorkloadNames(container="c", pod=f"pod-{ref.id[0]}", namespace="ml") for ref in (A, B)}


def sharing(power_w: int, a_percent: int, b_percent: int, options: AttributionOptions) -> Report:
    """Ten seconds of a GPU that two pods share."""
    played = Played(options)
    for cycle in range(3):
        reading = replace(
            gpu_with(listed(1), listed(2)),
            utilization=played.rows((1, a_percent), (2, b_percent)),
            energy_mj=1 + cycle * power_w * 5_000,
            power_w=float(power_w),
        )
        answer = played.next(reading, processes=[old(1, A), old(2, B)], names=NAMES)
    return answer


def test_70_watts_for_10_seconds_divided_80_to_20_are_560_and_140_joules() -> None:
    answer = sharing(70, 80, 20, AttributionOptions(energy_policy=EnergyPolicy.SM, energy_model=EnergyModel.SM))
    joules = values("my-gpu-exporter", "my_gpu_process_energy_joules", answer, "pod")
    assert joules == {"pod-a": 560, "pod-b": 140}
    by_method = values("my-gpu-exporter", "my_gpu_process_energy_joules_total", answer, "pod", "energy_estimated")
    assert by_method == {("pod-a", "true"): 560, ("pod-a", "false"): 0, ("pod-b", "true"): 140, ("pod-b", "false"): 0}


@pytest.mark.parametrize("policy", EnergyPolicy)
@pytest.mark.parametrize("model", EnergyModel)
def test_two_pods_that_share_200_joules_never_sum_to_400(policy: EnergyPolicy, model: EnergyModel) -> None:
    answer = sharing(20, 60, 40, AttributionOptions(energy_policy=policy, energy_model=model))
    joules = values("my-gpu-exporter", "my_gpu_process_energy_joules", answer, "pod")
    assert sum(joules.values()) <= 200
    millijoules = values("dcgm-exporter", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", answer, "pod")
    assert sum(millijoules.values()) == 200_000
    assert {pod: value * 1000 for pod, value in joules.items()} == {
        pod: value for pod, value in millijoules.items() if pod
    }
    watts = values("dcgm-exporter", "DCGM_FI_DEV_POWER_USAGE", answer, "pod")
    assert sum(watts.values()) == pytest.approx(20)


def test_a_hidden_container_gets_the_8_of_10_gigabytes_that_are_not_listed() -> None:
    played = Played()
    hidden = old(2, B)._replace(gpu_minors_open=frozenset({0}), uvm_open=True)
    for _ in range(2):
        answer = played.next(gpu_with(listed(1, 2 * GIB), used_gib=10), processes=[old(1, A), hidden], names=NAMES)
    found = values("gpu-inference", "container_gpu_memory_bytes", answer, "container_id", "method")
    assert found == {(A.id[:12], "nvidia-smi"): 2 * GIB, (B.id[:12], "inference"): 8 * GIB}
    assert values("gpu-inference", "gpu_memory_known_bytes", answer, "gpu") == {"0": 2 * GIB}
    assert values("gpu-inference", "gpu_memory_unknown_bytes", answer, "gpu") == {"0": 8 * GIB}


def test_counters_do_not_fall_when_a_second_process_starts_and_ends() -> None:
    played = Played()
    seen: list[dict[tuple[str, str], float]] = []
    for company in (False, False, True, True, False, False):
        pids = (1, 2) if company else (1,)
        reading = replace(
            gpu_with(*(listed(pid) for pid in pids)), utilization=played.rows(*((pid, 40) for pid in pids))
        )
        processes = [old(1, A), *([old(2, B)] if company else [])]
        answer = played.next(reading, processes=processes, names=NAMES)
        joules = values("my-gpu-exporter", "my_gpu_process_energy_joules_total", answer, "pid", "energy_estimated")
        for before in seen:
            assert all(joules[key] >= value for key, value in before.items())
        seen.append(joules)
    assert seen[-1]["1", "false"] > 0
    assert seen[-1]["1", "true"] > 0
