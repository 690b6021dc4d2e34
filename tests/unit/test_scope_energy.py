"""Energy, state and cost of a pod on a GPU that may have unseen users."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.cost import Prices
from otel_gpu.attribution.options import AttributionOptions, EnergyModel, EnergyPolicy
from otel_gpu.model import (
    CostBasis,
    DeviceMemory,
    GpuReading,
    GpuState,
    Report,
    Snapshot,
    UtilizationRead,
    UtilizationRow,
    WorkloadGpu,
)
from tests.builders import CONTAINER, GIB, WALL_NS, facts, gpu, listed, memory, mig, snapshot

CYCLE_S = 5
DRAWN_MJ = 1_000_000
LIMIT_W = 400.0
STATIC_MJ = 400_000
"""A fifth of the power limit over a cycle: the assumed baseline."""


def reading(
    cycle: int, *, held: DeviceMemory | None, sm_percent: int | None, instances: bool = False, used_gib: int = 4
) -> GpuReading:
    """A GPU that draws 200 W, with one visible process that holds 4 GiB."""
    entry = listed(1, used_gib * GIB, instance=(1, 0) if instances else (None, None))
    divided = [mig("MIG-1", (1, 0), [entry], memory=memory(total_gib=10, used_gib=4))] if instances else None
    found = gpu(0, [entry], memory=held, mig=divided, energy_mj=cycle * DRAWN_MJ)
    at_us = WALL_NS // 1000 + cycle * CYCLE_S * 1_000_000
    rows = () if not sm_percent else (UtilizationRow(1, at_us, sm_percent, 10, 0, 0),)
    work = None if sm_percent is None else UtilizationRead(at_us - CYCLE_S * 1_000_000, at_us, rows)
    return replace(found, utilization=work, power_limit_w=LIMIT_W)


def play(
    *,
    held: DeviceMemory | None,
    sm_percent: int | None = 40,
    instances: bool = False,
    infers: bool = False,
    policy: EnergyPolicy = EnergyPolicy.RESIDENT,
    cycles: int = 2,
) -> Report:
    """The Report of the last of so many cycles."""
    prices = Prices("USD", {"": 3600.0}, None)
    options = AttributionOptions(energy_policy=policy, energy_model=EnergyModel.SM, prices=prices)
    attributor = Attributor(options)
    reports = [
        attributor.observe(
            _observed(reading(cycle, held=held, sm_percent=sm_percent, instances=instances), cycle, infers)
        )
        for cycle in range(cycles)
    ]
    return reports[-1]


def _observed(found: GpuReading, cycle: int, infers: bool) -> Snapshot:
    seen = snapshot(found, processes=[facts(1, CONTAINER)], at_s=cycle * CYCLE_S)
    return replace(seen, pids_complete=infers, infers=infers)


def part(answer: Report) -> WorkloadGpu:
    [workload] = answer.workloads
    [found] = workload.gpus
    return found


ALONE = memory(used_gib=4)
BESIDE_OTHERS = memory(used_gib=30)


def test_a_pod_that_explains_all_memory_has_all_energy_as_estimated() -> None:
    energy = part(play(held=ALONE)).energy
    assert (energy.estimated_mj, energy.measured_mj) == (DRAWN_MJ, 0)


def test_beside_unexplained_memory_a_pod_has_its_sm_share_of_dynamic_energy() -> None:
    answer = play(held=BESIDE_OTHERS)
    assert part(answer).energy.total_mj == pytest.approx(0.4 * (DRAWN_MJ - STATIC_MJ), rel=0.01)
    split = answer.gpus[0].energy
    assert split is not None
    assert (split.attributed_mj or 0) + (split.unattributed_mj or 0) == split.delta_mj == DRAWN_MJ


@pytest.mark.parametrize(
    ("policy", "given_mj"),
    [
        (EnergyPolicy.RESIDENT, 0.4 * (DRAWN_MJ - STATIC_MJ)),
        (EnergyPolicy.MEMORY, 0.4 * (DRAWN_MJ - STATIC_MJ)),
        (EnergyPolicy.NONE, 0.4 * (DRAWN_MJ - STATIC_MJ)),
        (EnergyPolicy.SM, 0.4 * DRAWN_MJ),
    ],
)
def test_static_energy_is_the_pods_only_under_the_sm_policy(policy: EnergyPolicy, given_mj: float) -> None:
    assert part(play(held=BESIDE_OTHERS, policy=policy)).energy.total_mj == pytest.approx(given_mj, rel=0.01)


@pytest.mark.parametrize(
    ("held", "sm_percent", "instances"),
    [(BESIDE_OTHERS, None, False), (BESIDE_OTHERS, 0, False), (ALONE, None, True), (None, None, False)],
    ids=["no utilisation", "no work", "MIG", "neither memory nor utilisation"],
)
def test_a_pod_whose_share_is_unknown_has_no_energy(
    held: DeviceMemory | None, sm_percent: int | None, instances: bool
) -> None:
    answer = play(held=held, sm_percent=sm_percent, instances=instances)
    assert not part(answer).energy.total_mj
    split = answer.gpus[0].energy
    assert split is not None
    assert split.unattributed_mj == DRAWN_MJ


def test_a_gpu_without_memory_figures_may_have_unseen_users() -> None:
    assert part(play(held=None)).energy.total_mj == pytest.approx(0.4 * (DRAWN_MJ - STATIC_MJ), rel=0.01)


def test_with_all_processes_visible_the_pod_has_all_energy() -> None:
    assert part(play(held=BESIDE_OTHERS, infers=True)).energy.total_mj == DRAWN_MJ


@pytest.mark.parametrize(("held", "state"), [(ALONE, GpuState.IDLE), (BESIDE_OTHERS, GpuState.UNKNOWN)])
def test_beside_unseen_users_it_takes_longer_until_a_pod_is_idle(held: DeviceMemory, state: GpuState) -> None:
    assert part(play(held=held, sm_percent=0, cycles=4)).state is state


@pytest.mark.parametrize(("held", "cost"), [(ALONE, CYCLE_S), (BESIDE_OTHERS, 0)])
def test_time_costs_nothing_while_unseen_users_may_share_it(held: DeviceMemory, cost: float) -> None:
    costs = part(play(held=held)).costs
    assert sum(each.amount for each in costs if each.basis is CostBasis.TIME) == pytest.approx(cost)


def test_nothing_is_inferred_and_unexplained_memory_stays_unattributed() -> None:
    answer = play(held=BESIDE_OTHERS)
    found = part(answer)
    assert (found.measured_bytes, found.inferred_bytes, found.confidence) == (4 * GIB, None, None)
    split = answer.gpus[0].memory
    assert split is not None
    assert (split.inferred_bytes, split.unattributed_bytes, split.conservation_error_bytes) == (0, 26 * GIB, 0)
