"""Arbitrary histories of a host, in any state a driver has ever been seen in, and some it has not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from otel_gpu.attribution.energy import EnergyPolicy
from otel_gpu.attribution.options import AttributionOptions, EnergyModel, Prices
from otel_gpu.model import (
    AccountingRecord,
    DeviceMemory,
    GpuHealth,
    GpuIdentity,
    GpuReading,
    Grant,
    ListedProcess,
    MigReading,
    ProcessFacts,
    ProcessKey,
    ProcessKind,
    Snapshot,
    SourceOutcome,
    SourceState,
    UtilizationRead,
    UtilizationRow,
    WorkloadKind,
    WorkloadNames,
    WorkloadRef,
)
from tests.depth import DEPTH

MIB: Final = 1 << 20
S: Final = 1_000_000_000
WALL_NS: Final = 1_700_000_000 * S
WORKLOADS: Final = [
    *(WorkloadRef(WorkloadKind.CONTAINER, f"c{n}") for n in range(3)),
    WorkloadRef(WorkloadKind.HOST, "host"),
]
PIDS: Final = range(100, 106)
ANY_STEP_S: Final = (5, 5, 5, 1, 0, 60, 3600 * 5)

absurd = st.one_of(st.integers(0, 1 << 16), st.just(0), st.just(1 << 63), st.just((1 << 63) - 1))
amounts = st.one_of(st.none(), st.integers(0, 4096).map(lambda n: n * MIB), absurd)
memories = st.one_of(st.none(), st.builds(DeviceMemory, absurd, absurd, absurd, amounts))


def lists(
    places: Sequence[tuple[int | None, int | None]] = ((None, None),),
) -> st.SearchStrategy[tuple[ListedProcess, ...] | None]:
    """What the driver lists, the same process twice included."""
    process = st.builds(
        lambda pid, kind, bytes_, instance: ListedProcess(pid, kind, bytes_, *instance),
        st.sampled_from(PIDS),
        st.sampled_from(list(ProcessKind)),
        amounts,
        st.sampled_from(places),
    )
    return st.one_of(st.none(), st.lists(process, max_size=6).map(tuple))


@st.composite
def instances(draw: st.DrawFn) -> tuple[MigReading, ...] | None:
    """No MIG, or up to two instances."""
    if draw(st.integers(0, 2)):
        return None
    return tuple(
        MigReading(f"MIG-{n}", n, 0, "1g.10gb", 14, draw(memories), draw(lists()))
        for n in range(1, 1 + draw(st.integers(0, 2)))
    )


@st.composite
def utilizations(draw: st.DrawFn, wall_us: int) -> UtilizationRead | None:
    """Rows of anybody, with absurd figures and stamps."""
    percent = st.one_of(st.integers(0, 100), st.integers(0, 1 << 32))
    stamps = st.integers(-5_000_000, 5_000_000).map(lambda off: wall_us + off)
    pids = st.one_of(st.sampled_from(PIDS), st.just(999_999))
    rows = st.builds(UtilizationRow, pids, stamps, percent, percent, percent, percent)
    if draw(st.booleans()):
        return None
    return UtilizationRead(wall_us - 5_000_000, wall_us, tuple(draw(st.lists(rows, max_size=5))))


records = st.builds(
    AccountingRecord,
    st.integers(100, 120),
    absurd,
    absurd,
    st.one_of(st.none(), st.integers(0, 300)),
    st.none(),
    st.none(),
    st.booleans(),
)


@st.composite
def readings(draw: st.DrawFn, index: int, at_ns: int, counter_mj: int) -> GpuReading:
    """One GPU."""
    identity = GpuIdentity(index, f"GPU-{index}", "GPU", minor=index)
    if draw(st.integers(0, 9)) == 0:
        return GpuReading(identity, at_ns, health=GpuHealth.FAILED, reason="lost")
    mig = draw(instances())
    return GpuReading(
        identity,
        at_ns,
        memory=draw(memories),
        processes=draw(lists([(None, None), (1, 0), (2, 0)] if mig else [(None, None)])),
        utilization=draw(utilizations((WALL_NS + at_ns) // 1000)),
        energy_mj=draw(st.one_of(st.just(counter_mj), st.none(), absurd)),
        power_w=draw(st.one_of(st.none(), st.floats(0, 700), st.just(float("nan")))),
        power_limit_w=draw(st.one_of(st.none(), st.just(400.0))),
        mig=mig,
        accounting=draw(st.one_of(st.none(), st.lists(records, max_size=2).map(tuple))),
    )


given_away = st.builds(
    Grant,
    st.sampled_from(WORKLOADS),
    st.sampled_from(["GPU-0", "GPU-1", "GPU-9"]),
    st.sampled_from(["", "MIG-1"]),
    st.one_of(st.none(), st.just(1_699_999_000.0)),
)


@st.composite
def histories(draw: st.DrawFn, steps_s: Sequence[int] = ANY_STEP_S, least: int = 1) -> list[Snapshot]:
    """A few cycles: arrivals, exits, reused pids, renames, resets, missing figures and GPUs, clocks that stand or go
    back, long gaps."""
    at_ns, wall_ns, counter_mj = 0, WALL_NS, 1_000
    history = []
    for _ in range(draw(st.integers(least, 7))):
        step_ns = draw(st.sampled_from(steps_s)) * S
        at_ns += step_ns
        wall_ns += draw(st.sampled_from([step_ns, step_ns, -7 * S]))
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
        gpus = tuple(draw(readings(index, at_ns, counter_mj)) for index in range(2) if draw(st.integers(0, 9)))
        names = {
            ref.key: WorkloadNames(container=draw(st.sampled_from(["a", "b"])))
            for ref in draw(st.sets(st.sampled_from(WORKLOADS[:3]), max_size=2))
        }
        sources = (SourceOutcome("nvml", SourceState.OK),)
        history.append(
            Snapshot(
                wall_ns,
                at_ns,
                gpus,
                facts,
                names,
                sources,
                pids_complete=draw(st.booleans()),
                names_pending=draw(st.frozensets(st.sampled_from([ref.key for ref in WORKLOADS]), max_size=2)),
                grants=tuple(draw(st.lists(given_away, max_size=2))),
            )
        )
    return history


options = st.builds(
    AttributionOptions,
    st.sampled_from(list(EnergyPolicy)),
    st.sampled_from(list(EnergyModel)),
    max_processes=st.sampled_from([0, 2, 2000]),
    max_workloads=st.sampled_from([0, 1, 2000]),
    prices=st.sampled_from([None, Prices("EUR", {"": 2.0}, 0.3)]),
)
thorough = settings(
    max_examples=20 * DEPTH,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
