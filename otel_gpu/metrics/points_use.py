"""Points that workloads and processes have alike. What has ended uses nothing, and keeps what it has used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from otel_gpu.metrics.points_reading import Point, Row
from otel_gpu.model import GpuState, ProcessAttribution, WorkloadGpu

AnyRow: TypeAlias = Row[WorkloadGpu] | Row[ProcessAttribution]


def utilization(row: AnyRow) -> Iterator[Point]:
    """SM share of the last window."""
    yield from _share(row, row.use.sm_ratio)


def bandwidth(row: AnyRow) -> Iterator[Point]:
    """Share of the last window with memory traffic."""
    yield from _share(row, row.use.bandwidth_ratio)


def _share(row: AnyRow, ratio: float | None) -> Iterator[Point]:
    if not row.use.active:
        ratio = 0.0 if row.tells_work else None
    if ratio is not None:
        yield row.point(ratio)


def compute_time(row: AnyRow) -> Iterator[Point]:
    """GPU-seconds of work."""
    totals = row.use.totals
    if totals is not None and row.tells_work:
        yield row.point(totals.compute_us / 1e6, start_ns=totals.since_ns)


def energy(row: AnyRow) -> Iterator[Point]:
    """Joules by method, every one from the first export on."""
    totals = row.use.totals
    if totals is None or not row.tells_energy:
        return
    found = totals.energy
    methods = {"measured": found.measured_mj, "estimated": found.estimated_mj, "inferred": found.inferred_mj}
    for method, energy_mj in methods.items():
        yield row.point((energy_mj or 0) / 1e3, {"gpu.attribution.method": method}, start_ns=totals.since_ns)


def idle_duration(row: AnyRow) -> Iterator[Point]:
    """Seconds without work; none for what is not known, or gone."""
    use = row.use
    if not use.active:
        return
    if use.state is GpuState.BUSY:
        yield row.point(0.0)
    elif use.state is GpuState.IDLE and use.idle_s is not None:
        yield row.point(use.idle_s)


def idle_memory(row: AnyRow) -> Iterator[Point]:
    """Bytes held while idle. Where nobody is known to be idle and somebody may be, none."""
    use = row.use
    if not use.active:
        if row.tells_work:
            yield row.point(0)
    elif use.idle_bytes is not None and (use.idle_bytes or use.state is not GpuState.UNKNOWN):
        yield row.point(use.idle_bytes)
