"""What a pod is given where others may be on its GPU of whom nothing can be seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.options import AttributionOptions, EnergyModel, EnergyPolicy, Prices
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
STANDING_MJ = 400_000
"""A fifth of the limit over a cycle: what is assumed where nothing teaches better."""


def reading(
    cycle: int, *, held: DeviceMemory | None, sm_percent: int | None, instances: bool = False, used_gib: int = 4
) -> GpuReading:
    """A GPU on which the one process that is seen holds 4 GiB, and which draws 200 W."""
    entry = listed(1, used_gib * GIB, instance=(1, 0) if instances else (None, None))
    divided = [mig("MIG-1", (1, 0), [entry], memory=memory(total_gib=10, used_gib=4))] if instances else None
    found = gpu(0, [entry], memory=held, mig=divided, energy_mj=cycle * DRAWN_MJ)
    at_us = WALL_NS // 1000 + cycle * CYCLE_S * 1_000_000
    rows = () if not sm_percent else (UtilizationRow(1, at_us, sm_percent, 10, 0, 0),)
    told = None if sm_percent is None else UtilizationRead(at_us - CYCLE_S * 1_000_000, at_us, rows)
    return replace(found, utilization=told, power_limit_w=LIMIT_W)


def play(
    *,
    held: DeviceMemory | None,
    sm_percent: int | None = 40,
    instances: bool = False,
    infers: bool = False,
    policy: EnergyPolicy = EnergyPolicy.RESIDENT,
    cycles: int = 2,
) -> Report:
    """The answer of the last of so many cycles."""
    prices = Prices("USD", {"": 3600.0}, None)
    options = AttributionOptions(energy_policy=policy, energy_model=EnergyModel.SM, prices=prices)
    attributor = Attributor(options)
    answers = [
        attributor.observe(_seen(reading(cycle, held=held, sm_percent=sm_percent, instances=instances), cycle, infers))
        for cycle in range(cycles)
    ]
    return answers[-1]


def _seen(found: GpuReading, cycle: int, infers: bool) -> Snapshot:
    seen = snapshot(found, processes=[facts(1, CONTAINER)], at_s=cycle * CYCLE_S)
    return replace(seen, pids_complete=infers, infers=infers)


def part(answer: Report) -> WorkloadGpu:
    [workload] = answer.workloads
    [found] = workload.gpus
    return found


ALONE = memory(used_gib=4)
BESIDE_OTHERS = memory(used_gib=30)


def test_a_pod_that_explains_all_memory_is_given_all_energy_though_not_as_measured() -> None:
    energy = part(play(held=ALONE)).energy
    assert (energy.estimated_mj, energy.measured_mj) == (DRAWN_MJ, 0)


def test_beside_memory_of_others_it_is_given_its_sm_share_of_what_work_draws() -> None:
    answer = play(held=BESIDE_OTHERS)
    assert part(answer).energy.total_mj == pytest.approx(0.4 * (DRAWN_MJ - STANDING_MJ), rel=0.01)
    split = answer.gpus[0].energy
    assert split is not None
    assert (split.attributed_mj or 0) + (split.unattributed_mj or 0) == split.delta_mj == DRAWN_MJ


@pytest.mark.parametrize(
    ("policy", "given_mj"),
    [
        (EnergyPolicy.RESIDENT, 0.4 * (DRAWN_MJ - STANDING_MJ)),
        (EnergyPolicy.MEMORY, 0.4 * (DRAWN_MJ - STANDING_MJ)),
        (EnergyPolicy.NONE, 0.4 * (DRAWN_MJ - STANDING_MJ)),
        (EnergyPolicy.SM, 0.4 * DRAWN_MJ),
    ],
)
def test_standing_power_is_its_own_by_no_policy_but_that_of_work(policy: EnergyPolicy, given_mj: float) -> None:
    assert part(play(held=BESIDE_OTHERS, policy=policy)).energy.total_mj == pytest.approx(given_mj, rel=0.01)


@pytest.mark.parametrize(
    ("held", "sm_percent", "instances"),
    [(BESIDE_OTHERS, None, False), (BESIDE_OTHERS, 0, False), (ALONE, None, True), (None, None, False)],
    ids=["no figures of work", "no work", "MIG", "no memory told and no figures of work"],
)
def test_where_its_share_cannot_be_told_it_is_given_nothing(
    held: DeviceMemory | None, sm_percent: int | None, instances: bool
) -> None:
    answer = play(held=held, sm_percent=sm_percent, instances=instances)
    assert not part(answer).energy.total_mj
    split = answer.gpus[0].energy
    assert split is not None
    assert split.unattributed_mj == DRAWN_MJ


def test_a_gpu_that_does_not_tell_its_memory_may_have_others_on_it() -> None:
    assert part(play(held=None)).energy.total_mj == pytest.approx(0.4 * (DRAWN_MJ - STANDING_MJ), rel=0.01)


def test_who_sees_everybody_gives_as_ever() -> None:
    assert part(play(held=BESIDE_OTHERS, infers=True)).energy.total_mj == DRAWN_MJ


@pytest.mark.parametrize(("held", "state"), [(ALONE, GpuState.IDLE), (BESIDE_OTHERS, GpuState.UNKNOWN)])
def test_beside_others_who_may_work_it_takes_longer_to_call_a_pod_idle(held: DeviceMemory, state: GpuState) -> None:
    assert part(play(held=held, sm_percent=0, cycles=4)).state is state


@pytest.mark.parametrize(("held", "cost"), [(ALONE, CYCLE_S), (BESIDE_OTHERS, 0)])
def test_time_costs_nothing_while_it_is_not_known_who_shares_it(held: DeviceMemory, cost: float) -> None:
    costs = part(play(held=held)).costs
    assert sum(each.amount for each in costs if each.basis is CostBasis.TIME) == pytest.approx(cost)


def test_nothing_is_inferred_and_what_nobody_explains_stays_so() -> None:
    answer = play(held=BESIDE_OTHERS)
    found = part(answer)
    assert (found.measured_bytes, found.inferred_bytes, found.confidence) == (4 * GIB, None, None)
    split = answer.gpus[0].memory
    assert split is not None
    assert (split.inferred_bytes, split.unattributed_bytes, split.conservation_error_bytes) == (0, 26 * GIB, 0)
