"""Laws of attribution, over arbitrary histories of a host."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.cost import Prices
from otel_gpu.attribution.options import AttributionOptions, EnergyModel, EnergyPolicy
from otel_gpu.model import (
    DeviceMemory,
    GpuHealth,
    GpuIdentity,
    GpuReading,
    ListedProcess,
    MethodEnergy,
    ProcessFacts,
    ProcessKey,
    ProcessKind,
    Report,
    Snapshot,
    SourceOutcome,
    SourceState,
    Totals,
    UtilizationRead,
    UtilizationRow,
    WorkloadGpu,
    WorkloadKind,
    WorkloadRef,
)
from otel_gpu.sources.proc.pid_trust import driver_pids
from tests.property.histories import MIB, WALL_NS, WORKLOADS, S, histories, options, thorough


def figures(totals: Totals | None) -> tuple[int, ...]:
    assert totals is not None
    energy = totals.energy
    return (
        energy.measured_mj or 0,
        energy.estimated_mj or 0,
        energy.inferred_mj or 0,
        totals.compute_us,
        totals.busy_us,
        totals.idle_us,
        totals.allocated_us,
        totals.unknown_us,
        totals.idle_byte_us,
        totals.idle_mj,
    )


def accounts(report: Report) -> Mapping[tuple[Any, ...], Totals]:
    """The totals of every account: by process or workload, naming and device."""
    found: dict[tuple[Any, ...], Totals | None] = {}
    for process in report.processes:
        found["p", process.key, process.naming, process.gpu_uuid, process.mig_uuid] = process.totals
    for workload, part in parts(report):
        found["w", workload.ref.kind, workload.ref.id, workload.naming, part.gpu_uuid, part.mig_uuid] = part.totals
    return {account: totals for account, totals in found.items() if totals is not None}


def parts(report: Report) -> Iterable[tuple[Any, WorkloadGpu]]:
    return ((workload, part) for workload in report.workloads for part in workload.gpus)


def entries(report: Report) -> Mapping[tuple[Any, ...], tuple[int, ...]]:
    return {account: figures(totals) for account, totals in accounts(report).items()}


def energy_mj(energies: Iterable[MethodEnergy]) -> int:
    return sum(energy.total_mj or 0 for energy in energies)


def time_us(totals: Totals | None) -> int:
    return sum(figures(totals)[4:8])


@thorough
@given(histories(), options)
def test_memory_and_energy_add_up_exactly_in_every_cycle_with_any_caps(
    history: list[Snapshot], chosen: AttributionOptions
) -> None:
    """On every GPU and instance, and summed over its workloads and over its processes.

    A process whose pid another one has taken leaves the Report at once, with its last energy.
    """
    attributor = Attributor(chosen)
    keys: dict[int, set[ProcessKey | None]] = {}
    for snapshot in history:
        report = attributor.observe(snapshot)
        for pid in driver_pids(snapshot.gpus) | snapshot.processes.keys():
            facts = snapshot.processes.get(pid)
            keys.setdefault(pid, set()).add(None if facts is None else facts.key)
        for gpu in report.gpus:
            here = [part for _, part in parts(report) if part.gpu_uuid == gpu.identity.uuid]
            of_processes = [process for process in report.processes if process.gpu_uuid == gpu.identity.uuid]
            for memory in (gpu.memory, *(instance.memory for instance in gpu.mig or ())):
                if memory is not None:
                    assert memory.conservation_error_bytes == 0
                    assert min(bytes_ or 0 for bytes_ in memory) >= 0
            if gpu.memory is not None:
                assert sum(part.measured_bytes or 0 for part in here) == gpu.memory.measured_bytes
                assert sum(process.memory_bytes or 0 for process in of_processes) == gpu.memory.measured_bytes
                if gpu.mig is None:
                    assert sum(part.inferred_bytes or 0 for part in here) == gpu.memory.inferred_bytes
            if gpu.energy is not None:
                split = (gpu.energy.attributed_mj, gpu.energy.idle_mj, gpu.energy.unattributed_mj)
                assert all(part is not None and part >= 0 for part in split)
                assert gpu.energy.delta_mj == sum(part or 0 for part in split)
            attributed_mj = gpu.energy.attributed_mj if gpu.energy is not None else 0
            assert energy_mj(part.energy for part in here) == attributed_mj
            of_processes_mj = energy_mj(process.energy for process in of_processes)
            is_pid_reused = any(len(of_pid) > 1 for of_pid in keys.values())
            assert of_processes_mj == attributed_mj or (is_pid_reused and of_processes_mj < attributed_mj)
            assert gpu.energy_error_mj == 0


@thorough
@given(histories(), options)
def test_no_total_ever_falls_not_even_over_an_absence(history: list[Snapshot], chosen: AttributionOptions) -> None:
    attributor = Attributor(replace(chosen, retention_s=2))
    before: dict[tuple[Any, ...], tuple[Totals, int]] = {}
    for snapshot in history:
        report = attributor.observe(snapshot)
        for account, totals in accounts(report).items():
            now = figures(totals)
            assert min(now) >= 0
            if account in before:
                earlier, reported_ns = before[account]
                if totals.since_ns == earlier.since_ns:
                    assert all(new >= old for new, old in zip(now, figures(earlier), strict=True)), account
                else:
                    assert totals.since_ns >= min(reported_ns, report.wall_ns), account
            before[account] = (totals, report.wall_ns)


@thorough
@given(histories(), options)
def test_no_cost_ever_falls_and_a_gpus_time_is_billed_once(history: list[Snapshot], chosen: AttributionOptions) -> None:
    prices = Prices("EUR", {"": 1.0}, 1.0)
    attributor = Attributor(replace(chosen, prices=prices, retention_s=1e9, max_workloads=2000))
    before: dict[tuple[Any, ...], float] = {}
    passed_us = 0
    for snapshot in history:
        report = attributor.observe(snapshot)
        passed_us += round((report.window_s or 0) * 1e6)
        billed_us: dict[str, int] = {}
        for workload, part in parts(report):
            totals = part.totals
            assert totals is not None
            by_state_mj = totals.busy_mj + totals.idle_mj + totals.unknown_mj
            assert by_state_mj <= (totals.energy.total_mj or 0)
            if not part.active:
                assert by_state_mj == totals.energy.total_mj, "an ended account has no undecided energy"
            times = (totals.billed_busy_us, totals.billed_idle_us, totals.billed_unknown_us)
            billed_us[part.gpu_uuid] = billed_us.get(part.gpu_uuid, 0) + sum(times)
            for cost in part.costs:
                key = (workload.ref, workload.naming, part.gpu_uuid, part.mig_uuid, cost.state, cost.basis)
                assert cost.amount >= before.get(key, 0)
                before[key] = cost.amount
        assert all(each <= passed_us for each in billed_us.values())


@thorough
@given(histories(), options)
def test_energy_of_all_workloads_is_the_attributed_energy_of_the_gpu(
    history: list[Snapshot], chosen: AttributionOptions
) -> None:
    """Within the retention and below the cap no account was dropped, so the ledger must balance to the millijoule."""
    attributor = Attributor(replace(chosen, retention_s=1e9, max_workloads=2000))
    report = None
    for snapshot in history:
        report = attributor.observe(snapshot)
    assert report is not None
    for gpu in report.gpus:
        here = [figures(part.totals) for _, part in parts(report) if part.gpu_uuid == gpu.identity.uuid]
        assert gpu.totals is not None
        assert sum(sum(each[:3]) for each in here) == gpu.totals.attributed_mj


@thorough
@given(histories(), options)
def test_posted_time_is_time_present(history: list[Snapshot], chosen: AttributionOptions) -> None:
    attributor = Attributor(replace(chosen, retention_s=1e9))
    present_us: dict[tuple[Any, ...], int] = {}
    first_us: dict[tuple[Any, ...], int] = {}  # a new process may have come at any time in the window
    for snapshot in history:
        report = attributor.observe(snapshot)
        window_us = round((report.window_s or 0) * 1e6)
        found: list[tuple[tuple[Any, ...], bool, Totals | None]] = [
            (("p", p.key, p.naming, p.gpu_uuid, p.mig_uuid), p.active, p.totals) for p in report.processes
        ]
        found += [
            (("w", w.ref.kind, w.ref.id, w.naming, part.gpu_uuid, part.mig_uuid), part.active, part.totals)
            for w, part in parts(report)
        ]
        for account, active, totals in found:
            assert totals is not None
            key = (*account, totals.since_ns)  # an account that is opened again after a drop counts from zero
            assert time_us(totals) <= present_us.get(key, 0) + window_us
            if active:
                present_us[key] = present_us.get(key, 0) + window_us
                first_us.setdefault(key, window_us)
            elif key in present_us:
                assert present_us[key] - first_us[key] <= time_us(totals) <= present_us[key]


@thorough
@given(histories(), options)
def test_energy_is_measured_only_for_a_process_that_was_alone_and_listed_at_both_ends(
    history: list[Snapshot], chosen: AttributionOptions
) -> None:
    attributor = Attributor(chosen)
    before: Snapshot | None = None
    for snapshot in history:
        report = attributor.observe(snapshot)
        for reading in snapshot.gpus:
            measured = [
                part
                for _, part in parts(report)
                if part.gpu_uuid == reading.identity.uuid and (part.energy.measured_mj or 0) > 0
            ]
            if not measured:
                continue
            assert before is not None
            earlier = next(r for r in before.gpus if r.identity.uuid == reading.identity.uuid)
            for taken, each in ((before, earlier), (snapshot, reading)):
                assert taken.pids_complete
                assert each.health is not GpuHealth.FAILED
                pids = {p.pid for p in each.processes or ()}
                pids |= {p.pid for mig in each.mig or () for p in mig.processes or ()}
                assert len(pids) == 1
            assert len(earlier.processes or ()) + len(earlier.mig or ()) > 0
        before = snapshot


@thorough
@given(histories(), options, st.randoms(use_true_random=False))
def test_the_order_of_lists_and_processes_does_not_matter(
    history: list[Snapshot], chosen: AttributionOptions, dice: Any
) -> None:
    straight, mixed = Attributor(chosen), Attributor(chosen)
    for snapshot in history:
        gpus = []
        for gpu in snapshot.gpus:
            listed = list(gpu.processes) if gpu.processes is not None else None
            if listed is not None:
                dice.shuffle(listed)
            gpus.append(replace(gpu, processes=None if listed is None else tuple(listed)))
        pids = list(snapshot.processes)
        dice.shuffle(pids)
        shuffled = replace(snapshot, gpus=tuple(gpus), processes={pid: snapshot.processes[pid] for pid in pids})
        first, second = straight.observe(snapshot), mixed.observe(shuffled)
        assert entries(first) == entries(second)
        assert [(gpu.memory, gpu.energy, gpu.totals) for gpu in first.gpus] == [
            (gpu.memory, gpu.energy, gpu.totals) for gpu in second.gpus
        ]


# ---------------------------------------------------------------------------- intervals


def shared_gpu(at_s: float, counter_mj: int, percents: tuple[int, ...]) -> Snapshot:
    """Two or more workloads that share a GPU, with constant shares."""
    at_ns, wall_us = round(at_s * S), (WALL_NS + round(at_s * S)) // 1000
    pids = [100 + n for n in range(len(percents))]
    gpu = GpuReading(
        GpuIdentity(0, "GPU-0", "GPU", minor=0),
        at_ns,
        memory=DeviceMemory(80 << 30, len(pids) << 30, (80 - len(pids)) << 30, 0),
        processes=tuple(ListedProcess(pid, ProcessKind.COMPUTE, 1 << 30) for pid in pids),
        utilization=UtilizationRead(
            wall_us - 1_000_000,
            wall_us,
            tuple(UtilizationRow(pid, wall_us, percent, 0, 0, 0) for pid, percent in zip(pids, percents, strict=True)),
        ),
        energy_mj=counter_mj,
        power_limit_w=400.0,
    )
    facts = {
        pid: ProcessFacts(ProcessKey(pid, 1), "job", WALL_NS / 1e9 - 100, 0, WORKLOADS[n % 4])
        for n, pid in enumerate(pids)
    }
    return Snapshot(WALL_NS + at_ns, at_ns, (gpu,), facts, {}, (SourceOutcome("x", SourceState.OK),))


@thorough
@given(
    st.lists(st.integers(1, 30), min_size=2, max_size=3),
    st.sampled_from([EnergyPolicy.SM, EnergyPolicy.MEMORY, EnergyPolicy.NONE]),
    st.integers(0, 1500),
    st.integers(1, 6),
)
def test_splitting_an_interval_changes_no_total_by_more_than_a_millijoule_per_split(
    percents: list[int], policy: EnergyPolicy, power_mj_per_s: int, pieces: int
) -> None:
    """By SM share the baseline is not used. With the other policies it does not change."""
    chosen = AttributionOptions(policy, EnergyModel.SM, assumed_idle_fraction=0.0)
    totals = []
    for count in (1, pieces):
        attributor = Attributor(chosen)
        report = attributor.observe(shared_gpu(0, 0, tuple(percents)))
        for piece in range(1, count + 1):
            at_s = 60 * piece / count
            report = attributor.observe(shared_gpu(at_s, power_mj_per_s * 60 * piece // count, tuple(percents)))
        totals.append({p.key: sum(figures(p.totals)[:3]) for p in report.processes})
    assert totals[0].keys() == totals[1].keys()
    for key, energy_mj in totals[0].items():
        assert abs(energy_mj - totals[1][key]) <= pieces


# ---------------------------------------------------------------------------- bounds


@settings(max_examples=2, deadline=None, phases=[Phase.generate])  # a smaller seed shows nothing more
@given(st.integers(0, 1000))
def test_state_is_bounded_however_many_processes_come_and_go(seed: int) -> None:
    attributor = Attributor(AttributionOptions(retention_s=60, max_processes=50, max_workloads=20))
    sizes, state_sizes = [], []
    for cycle in range(300):
        pids = [1000 + (seed + 7 * cycle + n) % 30_000 for n in range(12)]
        facts = {
            pid: ProcessFacts(
                ProcessKey(pid, cycle), "job", 1.7e9 + 5 * cycle, 0, WorkloadRef(WorkloadKind.CONTAINER, f"c{pid}")
            )
            for pid in pids
        }
        at_ns = cycle * 5_000_000_000
        gpu = GpuReading(
            GpuIdentity(0, "GPU-0", "GPU", minor=0),
            at_ns,
            memory=DeviceMemory(1 << 30, 1 << 29, 1 << 29, 0),
            processes=tuple(ListedProcess(pid, ProcessKind.COMPUTE, MIB) for pid in pids),
            energy_mj=cycle * 1_000_000,
            power_limit_w=400,
        )
        report = attributor.observe(
            Snapshot(WALL_NS + at_ns, at_ns, (gpu,), facts, {}, (SourceOutcome("x", SourceState.OK),))
        )
        sizes.append((len(report.processes), len(report.workloads)))
        if cycle % 50 == 49:
            state = attributor.to_state()
            state["books"]["short_lived"] = {}  # bounded separately: the newest 4,096 pids
            for kind in ("processes", "workloads"):
                assert len(state["ledger"][kind].pop("gone")) <= 2000
            state_sizes.append(len(json.dumps(state)))
        assert report.gpus[0].memory is not None
        assert report.gpus[0].memory.conservation_error_bytes == 0
        assert report.gpus[0].energy_error_mj == 0
    assert max(sizes)[0] <= 51
    assert max(size[1] for size in sizes) <= 21
    assert max(state_sizes[2:]) <= 1.1 * state_sizes[1]
