"""Laws of attribution, over arbitrary histories of a host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.energy import EnergyPolicy
from otel_gpu.attribution.options import AttributionOptions, EnergyModel
from otel_gpu.model import (
    AccountingRecord,
    Attribution,
    DeviceMemory,
    GpuHealth,
    GpuIdentity,
    GpuReading,
    ListedProcess,
    ProcessFacts,
    ProcessKey,
    ProcessKind,
    Snapshot,
    SourceOutcome,
    SourceState,
    Totals,
    UtilizationRead,
    UtilizationRow,
    WorkloadKind,
    WorkloadRef,
)

MIB = 1 << 20
WORKLOADS = [WorkloadRef(WorkloadKind.CONTAINER, f"c{n}") for n in range(3)] + [WorkloadRef(WorkloadKind.HOST, "host")]
PIDS = range(100, 106)

absurd = st.one_of(st.integers(0, 1 << 16), st.just(0), st.just(1 << 63), st.just((1 << 63) - 1))
amounts = st.one_of(st.none(), st.integers(0, 4096).map(lambda n: n * MIB), absurd)


@st.composite
def readings(draw: st.DrawFn, index: int, at_ns: int, counter_mj: int) -> GpuReading:
    """One GPU in any state a driver has ever been seen in, and some it has not."""
    identity = GpuIdentity(index, f"GPU-{index}", "GPU", minor=index)
    if draw(st.integers(0, 9)) == 0:
        return GpuReading(identity, at_ns, health=GpuHealth.FAILED, reason="lost")
    lists = draw(
        st.one_of(
            st.none(),
            st.lists(
                st.builds(ListedProcess, st.sampled_from(PIDS), st.sampled_from(list(ProcessKind)), amounts), max_size=6
            ).map(tuple),
        )
    )
    percent = st.one_of(st.integers(0, 100), st.integers(0, 1 << 32))
    wall_us = 1_700_000_000_000_000 + at_ns // 1000
    rows = st.builds(
        UtilizationRow,
        st.one_of(st.sampled_from(PIDS), st.just(999_999)),
        st.integers(-5_000_000, 5_000_000).map(lambda off: wall_us + off),
        percent,
        percent,
        percent,
        percent,
    )
    return GpuReading(
        identity,
        at_ns,
        memory=draw(st.one_of(st.none(), st.builds(DeviceMemory, absurd, absurd, absurd, amounts))),
        processes=lists,
        utilization=draw(
            st.one_of(
                st.none(),
                st.builds(
                    UtilizationRead,
                    st.just(wall_us - 5_000_000),
                    st.just(wall_us),
                    st.lists(rows, max_size=5).map(tuple),
                ),
            )
        ),
        energy_mj=draw(st.one_of(st.just(counter_mj), st.none(), absurd)),
        power_w=draw(st.one_of(st.none(), st.floats(0, 700), st.just(float("nan")))),
        power_limit_w=draw(st.one_of(st.none(), st.just(400.0))),
        accounting=draw(
            st.one_of(
                st.none(),
                st.lists(
                    st.builds(
                        AccountingRecord,
                        st.integers(100, 120),
                        absurd,
                        absurd,
                        st.one_of(st.none(), st.integers(0, 300)),
                        st.none(),
                        st.none(),
                        st.booleans(),
                    ),
                    max_size=2,
                ).map(tuple),
            )
        ),
    )


@st.composite
def histories(draw: st.DrawFn) -> list[Snapshot]:
    """A few cycles: arrivals, exits, reused pids, resets, missing figures, clocks that stand or go back, long gaps."""
    at_ns, wall_ns, counter_mj = 0, 1_700_000_000_000_000_000, 1_000
    history = []
    for _ in range(draw(st.integers(1, 7))):
        step_ns = draw(st.sampled_from([5, 5, 5, 1, 0, 60, 3600 * 5])) * 1_000_000_000
        at_ns += step_ns
        wall_ns += draw(st.sampled_from([step_ns, step_ns, -7_000_000_000]))
        counter_mj += draw(st.integers(0, 400 * 60_000))
        facts = {
            pid: ProcessFacts(
                ProcessKey(pid, draw(st.integers(1, 2))),
                "python3",
                draw(st.one_of(st.just(1_699_999_000.0), st.just(wall_ns / 1e9 + 50))),
                0,
                draw(st.sampled_from(WORKLOADS)),
                gpu_minors_open=frozenset(draw(st.sets(st.integers(0, 1), max_size=2))),
                uvm_open=draw(st.booleans()),
                uvm_mapping_bytes=draw(amounts),
                alive=draw(st.booleans()),
            )
            for pid in draw(st.sets(st.sampled_from(PIDS), max_size=5))
        }
        gpus = tuple(draw(readings(index, at_ns, counter_mj)) for index in range(2))
        sources = (SourceOutcome("nvml", SourceState.OK),)
        complete = draw(st.booleans())
        history.append(Snapshot(wall_ns, at_ns, gpus, facts, {}, sources, pids_complete=complete))
    return history


options = st.builds(
    AttributionOptions,
    st.sampled_from(list(EnergyPolicy)),
    st.sampled_from(list(EnergyModel)),
    max_processes=st.sampled_from([2, 2000]),
    max_workloads=st.sampled_from([1, 2000]),
)
thorough = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@dataclass(slots=True)
class Counted:
    """Sums of a whole history."""

    device_mj: dict[str, int]
    given_mj: dict[str, int]


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


def entries(answer: Attribution) -> Mapping[tuple[Any, ...], tuple[int, ...]]:
    """Totals of everybody, by who and where."""
    found: dict[tuple[Any, ...], tuple[int, ...]] = {}
    for process in answer.processes:
        found["p", process.key, process.gpu_uuid, process.mig_uuid] = figures(process.totals)
    for workload in answer.workloads:
        for part in workload.gpus:
            found["w", workload.ref.kind, workload.ref.id, part.gpu_uuid, part.mig_uuid] = figures(part.totals)
    return found


@thorough
@given(histories(), options)
def test_memory_and_energy_are_conserved_exactly_in_every_cycle(
    history: list[Snapshot], chosen: AttributionOptions
) -> None:
    attributor = Attributor(chosen)
    for snapshot in history:
        answer = attributor.observe(snapshot)
        for gpu in answer.gpus:
            if gpu.memory is not None:
                assert gpu.memory.conservation_error_bytes == 0
                assert (
                    min(
                        gpu.memory.measured_bytes,
                        gpu.memory.inferred_bytes,
                        gpu.memory.unattributed_bytes,
                        gpu.memory.free_bytes,
                        gpu.memory.overcount_bytes,
                    )
                    >= 0
                )
            if gpu.energy is not None:
                parts = (gpu.energy.attributed_mj, gpu.energy.idle_mj, gpu.energy.unattributed_mj)
                assert all(part is not None and part >= 0 for part in parts)
                assert gpu.energy.delta_mj == sum(part or 0 for part in parts)


@thorough
@given(histories(), options)
def test_no_total_ever_falls_and_none_is_negative(history: list[Snapshot], chosen: AttributionOptions) -> None:
    attributor = Attributor(chosen)
    before: Mapping[tuple[Any, ...], tuple[int, ...]] = {}
    for snapshot in history:
        now = entries(attributor.observe(snapshot))
        for who, sums in now.items():
            assert min(sums) >= 0
            assert all(new >= old for new, old in zip(sums, before.get(who, sums), strict=True)), who
        before = now


@thorough
@given(histories(), options)
def test_what_the_device_gave_is_what_the_workloads_got(history: list[Snapshot], chosen: AttributionOptions) -> None:
    """Within the retention nobody has been forgotten, so the books must balance to the millijoule."""
    attributor = Attributor(replace(chosen, retention_s=1e9))
    answer = None
    for snapshot in history:
        answer = attributor.observe(snapshot)
    assert answer is not None
    for gpu in answer.gpus:
        got = sum(
            sum(figures(part.totals)[:3])
            for workload in answer.workloads
            for part in workload.gpus
            if part.gpu_uuid == gpu.identity.uuid
        )
        processes = sum(
            sum(figures(process.totals)[:3]) for process in answer.processes if process.gpu_uuid == gpu.identity.uuid
        )
        assert gpu.totals is not None
        assert got == processes == gpu.totals.attributed_mj


@thorough
@given(histories(), options, st.randoms(use_true_random=False))
def test_the_order_in_which_things_are_told_does_not_matter(
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


@settings(max_examples=2, deadline=None)
@given(st.integers(0, 1000))
def test_state_is_bounded_however_many_processes_come_and_go(seed: int) -> None:
    attributor = Attributor(AttributionOptions(retention_s=60, max_processes=50, max_workloads=20))
    sizes = []
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
        wall_ns = 1_700_000_000_000_000_000 + at_ns
        answer = attributor.observe(Snapshot(wall_ns, at_ns, (gpu,), facts, {}, (SourceOutcome("x", SourceState.OK),)))
        sizes.append((len(answer.processes), len(answer.workloads)))
        assert answer.gpus[0].memory is not None
        assert answer.gpus[0].memory.conservation_error_bytes == 0
    assert max(sizes)[0] <= 51
    assert max(size[1] for size in sizes) <= 21
