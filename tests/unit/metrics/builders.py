"""Reports made by hand, each with only what the test is about, and the points that follow from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from otel_gpu.metrics.agent_values import SelfStats
from otel_gpu.metrics.collect import MetricCollector
from otel_gpu.metrics.series import Collection, Point
from otel_gpu.model import (
    GpuReading,
    GpuReport,
    GpuState,
    GpuTotals,
    MemorySplit,
    MethodEnergy,
    MigReport,
    ProcessKey,
    ProcessReport,
    Report,
    SourceOutcome,
    Totals,
    UtilizationRead,
    WorkloadGpu,
    WorkloadNames,
    WorkloadRef,
    WorkloadReport,
)
from tests.builders import CONTAINER, uuid_of
from tests.builders import gpu as reading_of

EPOCH_NS: Final = 1_600_000_000_000_000_000
SINCE_NS: Final = 1_650_000_000_000_000_000
STARTED_NS: Final = 1_690_000_000_000_000_000
STATS: Final = SelfStats(STARTED_NS)
WORK: Final = UtilizationRead(0, 0, ())
NAMES: Final = WorkloadNames(container="vllm", image="vllm:1", pod="vllm-0", namespace="inference", pod_uid="pod-uid")


def split(
    *,
    limit: int = 100,
    reserved: int | None = 1,
    measured: int = 0,
    overcount: int = 0,
    inferred: int = 0,
    unattributed: int = 0,
) -> MemorySplit:
    """A split that adds up; the free memory follows from the rest."""
    free = limit - (reserved or 0) - measured + overcount - inferred - unattributed
    return MemorySplit(limit, reserved, measured, overcount, inferred, unattributed, free)


def device(
    reading: GpuReading | None = None,
    *,
    memory: MemorySplit | None = None,
    mig: Iterable[MigReport] | None = None,
    totals: GpuTotals | None = None,
    **others: Any,
) -> GpuReport:
    """A GPU; without a reading, one that reports nothing but its processes."""
    instances = None if mig is None else tuple(mig)
    reading = reading or reading_of()
    is_metered = reading.energy_mj is not None or reading.power_w is not None
    has = {
        "has_energy": totals is not None and (is_metered or totals.total_mj > 0),
        "has_utilization": reading.utilization is not None,
    }
    return GpuReport(reading, memory, None, instances, totals, **{**has, **others})


def totals(
    *,
    measured_mj: int = 0,
    estimated_mj: int = 0,
    inferred_mj: int = 0,
    compute_us: int = 0,
    busy_us: int = 0,
    idle_us: int = 0,
    idle_byte_us: int = 0,
    idle_mj: int = 0,
) -> Totals:
    """Totals since ``SINCE_NS``."""
    energy = MethodEnergy(measured_mj, estimated_mj, inferred_mj)
    return Totals(SINCE_NS, energy, compute_us, busy_us, idle_us, 0, 0, idle_byte_us, idle_mj)


def part(*, index: int = 0, mig_uuid: str | None = None, measured: int | None = None, **others: Any) -> WorkloadGpu:
    """A workload's part of a GPU."""
    others = {"totals": totals(), "gpu_index": index, **others}
    return WorkloadGpu(uuid_of(index), mig_uuid, measured, **others)


def workload(
    *parts: WorkloadGpu,
    ref: WorkloadRef = CONTAINER,
    names: WorkloadNames | None = NAMES,
    naming: int = 0,
    held: bool = False,
) -> WorkloadReport:
    """A workload with these parts."""
    return WorkloadReport(ref, names, parts, naming, held)


def process(
    pid: int = 100, *, start_ticks: int = 1, name: str | None = "python3", ref: WorkloadRef = CONTAINER, **others: Any
) -> ProcessReport:
    """A process on GPU 0."""
    others = {"memory_bytes": None, "mig_uuid": None, "start_time_s": None, "gpu_index": 0, **others}
    others.setdefault("totals", totals())
    return ProcessReport(key=ProcessKey(pid, start_ticks), name=name, workload=ref, gpu_uuid=uuid_of(0), **others)


def answer(
    *gpus: GpuReport,
    workloads: Iterable[WorkloadReport] = (),
    processes: Iterable[ProcessReport] = (),
    sources: Iterable[SourceOutcome] = (),
    at_ns: int = 0,
    anomalies: int = 0,
) -> Report:
    """The report of a cycle."""
    return Report(
        wall_ns=EPOCH_NS + at_ns,
        monotonic_ns=at_ns,
        window_s=None,
        gpus=gpus,
        workloads=tuple(workloads),
        processes=tuple(processes),
        sources=tuple(sources),
        anomalies=anomalies,
        epoch_ns=EPOCH_NS,
    )


def collected(report: Report, stats: SelfStats = STATS, **options: Any) -> Collection:
    """The collection of a report, by a collector that has seen no other."""
    return MetricCollector(lambda: stats, **options).collect(report)


def points_of(name: str, report: Report, stats: SelfStats = STATS, **options: Any) -> list[Point]:
    """The points of a metric."""
    blocks = collected(report, stats, **options).blocks
    return [point for block in blocks if block.metric.name == name for point in block.points]


def values_by(name: str, report: Report, *keys: str, **options: Any) -> dict[Any, Any]:
    """The values of a metric by these attributes of its points; no two points may have the same."""
    found: dict[Any, Any] = {}
    for point in points_of(name, report, **options):
        values = tuple(point.attributes.get(key) for key in keys)
        key = values[0] if len(values) == 1 else values
        assert key not in found, (name, key)
        found[key] = point.value
    return found


BUSY, IDLE, UNKNOWN = GpuState.BUSY, GpuState.IDLE, GpuState.UNKNOWN
