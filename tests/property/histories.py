"""Arbitrary histories of a host, with every known state of a driver and with impossible ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from otel_gpu.attribution.cost import Prices
from otel_gpu.attribution.options import AttributionOptions, EnergyModel, EnergyPolicy
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
    instances: Sequence[tuple[int | None, int | None]] = ((None, None),),
) -> st.SearchStrategy[tuple[ListedProcess, ...] | None]:
    """A process list of the driver. A process may be in it twice."""
    process = st.builds(
        lambda pid, kind, bytes_, instance: ListedProcess(pid, kind, bytes_, *instance),
        st.sampled_from(PIDS),
        st.sampled_from(list(ProcessKind)),
        amounts,
        st.sampled_from(instances),
    )
    return st.one_of(st.none(), st.lists(process, max_size=6).map(tuple))


# Strategies are created once here: creating one costs more than drawing from it.
alone: Final = lists()
in_instances: Final = lists([(None, None), (1, 0), (2, 0)])
up_to_one: Final = st.integers(0, 1)
up_to_two: Final = st.integers(0, 2)
up_to_nine: Final = st.integers(0, 9)
booleans: Final = st.booleans()


@st.composite
def instances(draw: st.DrawFn) -> tuple[MigReading, ...] | None:
    """No MIG, or up to two instances."""
    if draw(up_to_two):
        return None
    return tuple(
        MigReading(f"MIG-{n}", n, 0, "1g.10gb", 14, draw(memories), draw(alone)) for n in range(1, 1 + draw(up_to_two))
    )


percents: Final = st.one_of(st.integers(0, 100), st.integers(0, 1 << 32))
rows: Final = st.lists(
    st.builds(
        UtilizationRow,
        st.one_of(st.sampled_from(PIDS), st.just(999_999)),
        st.integers(-5_000_000, 5_000_000),
        percents,
        percents,
        percents,
        percents,
    ),
    max_size=5,
)
"""Rows of known and unknown pids, with absurd figures. Timestamps are relative to the reading."""


def utilization(draw: st.DrawFn, wall_us: int) -> UtilizationRead | None:
    """``None``, or rows around that time."""
    if draw(booleans):
        return None
    read = (row._replace(timestamp_us=wall_us + row.timestamp_us) for row in draw(rows))
    return UtilizationRead(wall_us - 5_000_000, wall_us, tuple(read))


records: Final = st.builds(
    AccountingRecord,
    st.integers(100, 120),
    absurd,
    absurd,
    st.one_of(st.none(), st.integers(0, 300)),
    st.none(),
    st.none(),
    booleans,
)
mig_readings: Final = instances()
counters: Final = st.one_of(st.just("as it counts"), st.none(), absurd)
powers: Final = st.one_of(st.none(), st.floats(0, 700), st.just(float("nan")))
limits: Final = st.one_of(st.none(), st.just(400.0))
accounts: Final = st.one_of(st.none(), st.lists(records, max_size=2).map(tuple))


def reading(draw: st.DrawFn, index: int, at_ns: int, counter_mj: int) -> GpuReading:
    """The reading of one GPU."""
    identity = GpuIdentity(index, f"GPU-{index}", "GPU", minor=index)
    if draw(up_to_nine) == 0:
        return GpuReading(identity, at_ns, health=GpuHealth.FAILED, reason="lost")
    mig = draw(mig_readings)
    return GpuReading(
        identity,
        at_ns,
        memory=draw(memories),
        processes=draw(in_instances if mig else alone),
        utilization=utilization(draw, (WALL_NS + at_ns) // 1000),
        energy_mj=counter_mj if isinstance(energy_mj := draw(counters), str) else energy_mj,
        power_w=draw(powers),
        power_limit_w=draw(limits),
        mig=mig,
        accounting=draw(accounts),
    )


pids_there: Final = st.sets(st.sampled_from(PIDS), max_size=5)
workloads: Final = st.sampled_from(WORKLOADS)
lives: Final = st.integers(1, 2)
minors: Final = st.sets(up_to_one, max_size=2)


def process(draw: st.DrawFn, pid: int, wall_ns: int) -> ProcessFacts:
    """One process. Its start may be in the future."""
    return ProcessFacts(
        ProcessKey(pid, draw(lives)),
        "python3",
        wall_ns / 1e9 + 50 if draw(up_to_one) else 1_699_999_000.0,
        0,
        draw(workloads),
        gpu_minors_open=frozenset(draw(minors)),
        uvm_open=draw(booleans),
        uvm_mapping_bytes=draw(amounts),
        alive=draw(booleans),
    )


pending: Final = st.frozensets(st.sampled_from([ref.key for ref in WORKLOADS]), max_size=2)
named: Final = st.sets(st.sampled_from(WORKLOADS[:3]), max_size=2)
container_names: Final = st.sampled_from(["a", "b"])
charges_mj: Final = st.integers(0, 400 * 60_000)
grants: Final = st.lists(
    st.builds(
        Grant,
        workloads,
        st.sampled_from(["GPU-0", "GPU-1", "GPU-9"]),
        st.sampled_from(["", "MIG-1"]),
        st.one_of(st.none(), st.just(1_699_999_000.0)),
    ),
    max_size=2,
)


def histories(steps_s: Sequence[int] = ANY_STEP_S, least: int = 1) -> st.SearchStrategy[list[Snapshot]]:
    """A few cycles: arrivals, exits, reused pids, renames, resets, missing figures and GPUs, clocks that stop or go
    back, long gaps."""
    return _histories(st.integers(least, 7), st.sampled_from(steps_s))


@st.composite
def _histories(draw: st.DrawFn, counts: st.SearchStrategy[int], steps_s: st.SearchStrategy[int]) -> list[Snapshot]:
    at_ns, wall_ns, counter_mj = 0, WALL_NS, 1_000
    history = []
    for _ in range(draw(counts)):
        step_ns = draw(steps_s) * S
        at_ns += step_ns
        wall_ns += -7 * S if draw(up_to_two) == 2 else step_ns
        counter_mj += draw(charges_mj)
        history.append(
            Snapshot(
                wall_ns,
                at_ns,
                gpus=tuple(reading(draw, index, at_ns, counter_mj) for index in range(2) if draw(up_to_nine)),
                processes={pid: process(draw, pid, wall_ns) for pid in draw(pids_there)},
                names={ref.key: WorkloadNames(container=draw(container_names)) for ref in draw(named)},
                sources=(SourceOutcome("nvml", SourceState.OK),),
                pids_complete=draw(booleans),
                names_pending=draw(pending),
                grants=tuple(draw(grants)),
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
