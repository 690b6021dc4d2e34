"""The worlds are what their names say, and the same seed is always the same world."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bench.accuracy.energy_worlds import ENERGY
from bench.accuracy.idle_worlds import IDLE, NEIGHBOUR
from bench.accuracy.memory_worlds import MAPPED, MEMORY
from bench.accuracy.run import FAMILIES
from bench.accuracy.worlds import CADENCE_S, DURATION_S, HOLDOUT, TUNE, Family
from otel_gpu.sources.sim.host import replay
from otel_gpu.sources.sim.signals import Steady
from otel_gpu.sources.sim.world import GpuUse, Visibility, WorldSpec

SEEDS = TUNE[:6]
BY_NAME = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def family(name: str) -> Family:
    return FAMILIES[name]


def uses(world: WorldSpec) -> list[GpuUse]:
    return [process.uses[0] for process in world.processes]


def hidden(world: WorldSpec) -> list[GpuUse]:
    return [use for use in uses(world) if use.visibility is Visibility.HIDDEN]


def test_no_seed_is_both_for_tuning_and_for_the_table() -> None:
    assert not set(TUNE) & set(HOLDOUT)
    assert len(set(TUNE)) == len(TUNE)
    assert len(set(HOLDOUT)) == len(HOLDOUT)
    assert max(family.seeds for family in FAMILIES.values()) <= len(HOLDOUT)


def test_names_of_families_are_unique() -> None:
    assert len(FAMILIES) == len(ENERGY) + len(MEMORY) + len(IDLE)


@BY_NAME
def test_a_world_follows_from_its_seed_alone(family: Family) -> None:
    assert family.make(7) == family.make(7)
    assert family.make(7) != family.make(8)


@BY_NAME
def test_each_process_has_a_workload_of_its_own(family: Family) -> None:
    for seed in SEEDS:
        processes = family.make(seed).processes
        assert len({process.workload.ref.id for process in processes}) == len(processes)


@pytest.mark.parametrize("family", ENERGY, ids=lambda family: family.name)
def test_two_to_eight_share_a_gpu_and_differ_at_most_threefold_in_watts(family: Family) -> None:
    for seed in SEEDS:
        watts = [use.watts for use in uses(family.make(seed))]
        assert 2 <= len(watts) <= 8
        levels = [signal.level for signal in watts if isinstance(signal, Steady)]
        if levels:
            assert max(levels) / min(levels) <= 3.0
        if family.name.startswith("equal watts"):
            assert len(set(levels)) == 1
            assert len(levels) == len(watts)


@pytest.mark.parametrize("family", ENERGY, ids=lambda family: family.name)
def test_only_in_power_capped_worlds_the_limit_is_reached(family: Family) -> None:
    at_limit = False
    for seed in SEEDS[:3]:
        world = family.make(seed)
        before_mj = 0.0
        for at_s in (20.0, 40.0, 60.0):
            total_mj = replay(world, at_s).gpus[0].total_mj
            at_limit |= (total_mj - before_mj) / 20e3 > 0.99 * world.gpus[0].power_limit_w
            before_mj = total_mj
    assert at_limit == (family.name == "power-capped")


@pytest.mark.parametrize("family", ENERGY, ids=lambda family: family.name)
def test_every_sharer_works_within_ten_minutes(family: Family) -> None:
    for seed in SEEDS:
        for process in family.make(seed).processes:
            times_s = range(round(DURATION_S - process.start_s))
            assert sum(process.uses[0].work.at(float(at_s)) for at_s in times_s) > 2.0


def test_the_late_joiner_comes_after_four_minutes_and_the_others_at_once() -> None:
    starts_s = [process.start_s for process in family("late joiner").make(TUNE[0]).processes]
    assert set(starts_s[:-1]) == {0.0}
    assert 240.0 <= starts_s[-1] <= 420.0


def test_worlds_with_and_without_mappings_differ_in_nothing_else() -> None:
    for plain, mapped in zip(MEMORY[::2], MEMORY[1::2], strict=True):
        assert mapped.name == plain.name + MAPPED
        for seed in SEEDS:
            with_, without = mapped.make(seed), plain.make(seed)
            assert all(1.0 <= (use.uvm_factor or 0.0) <= 1.4 for use in hidden(with_))
            assert all(use.uvm_factor is None for use in hidden(without))
            assert [use.memory for use in uses(with_)] == [use.memory for use in uses(without)]
            assert [p.start_s for p in with_.processes] == [p.start_s for p in without.processes]


@pytest.mark.parametrize("family", MEMORY, ids=lambda family: family.name)
def test_two_to_eight_hold_hidden_memory_and_all_of_it_fits(family: Family) -> None:
    for seed in SEEDS:
        world = family.make(seed)
        assert 2 <= len(hidden(world)) <= 8
        gpu = world.gpus[0]
        for at_s in range(0, round(world.age_s + DURATION_S), 10):
            alive = [p for p in world.processes if p.start_s <= at_s and (p.end_s is None or p.end_s > at_s)]
            wanted = sum(process.uses[0].memory.at(at_s - process.start_s) for process in alive)
            assert wanted <= gpu.memory_total_bytes - gpu.memory_reserved_bytes


def test_staggered_starts_are_polls_apart_and_simultaneous_ones_between_two() -> None:
    for seed in SEEDS:
        starts_s = sorted(process.start_s for process in family("staggered").make(seed).processes)
        assert min(b - a for a, b in pairwise(starts_s[1:])) > 2 * CADENCE_S
        together_s = [process.start_s for process in family("simultaneous").make(seed).processes if process.start_s]
        assert len({start_s // CADENCE_S for start_s in together_s}) == 1


def test_on_a_late_start_all_processes_hold_memory_already() -> None:
    for seed in SEEDS:
        world = family("late start").make(seed)
        assert all(process.start_s < world.age_s - 2 * CADENCE_S for process in world.processes)
        assert all(process.end_s is None or process.end_s > world.age_s for process in world.processes)


def test_processes_with_open_device_files_and_no_memory_exist_beside_the_holders() -> None:
    for seed in SEEDS:
        world = family("open, no memory").make(seed)
        openers = [process for process in world.processes if not process.uses[0].context]
        assert openers
        holders = [process for process in world.processes if process.uses[0].context]
        for opener in openers:
            assert all(abs(opener.start_s - holder.start_s) > CADENCE_S for holder in holders)


@pytest.mark.parametrize("family", IDLE, ids=lambda family: family.name)
def test_a_process_works_at_its_duty_until_its_final_stop(family: Family) -> None:
    world = family.make(TUNE[0])
    truth = {process.workload.id: process for process in replay(world, DURATION_S).gpus[0].processes}
    names = [process.name for process in world.processes]
    assert (NEIGHBOUR in names) == ("beside" in family.group)
    for process in world.processes:
        true = truth[process.workload.ref.id]
        if process.name == NEIGHBOUR:
            assert true.idle_since_s is None
            continue
        duty = int(process.name.split()[0]) / 100
        assert true.idle_since_s is not None
        assert true.idle_since_s <= 450.2
        if duty:
            # Where a burst meets the neighbour, each gets less than it wants.
            assert 0.5 * duty <= true.busy_s / true.idle_since_s <= 1.3 * duty
