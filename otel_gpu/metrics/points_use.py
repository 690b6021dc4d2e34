"""Values that workloads and processes have alike. What has ended uses nothing, and keeps what it has used."""

from __future__ import annotations

from typing import Final, TypeAlias

from otel_gpu.metrics.rows import Rows, Use
from otel_gpu.model import GpuState

Values: TypeAlias = list[float | None]
"""One of each row, and that as often as its metric has attributes of its own; ``None`` where there is no point."""

PER_JOULE: Final = 1e3
PER_SECOND: Final = 1e6
"""What is booked are millijoules and microseconds."""

METHODS: Final = tuple({"gpu.attribution.method": method} for method in ("measured", "estimated", "inferred"))


def utilization(rows: Rows[Use]) -> Values:
    """SM share of the last window."""
    return [
        use.sm_ratio if use.active else 0.0 if tells else None
        for use, tells in zip(rows.uses, rows.tells_work, strict=True)
    ]


def bandwidth(rows: Rows[Use]) -> Values:
    """Share of the last window with memory traffic."""
    return [
        use.bandwidth_ratio if use.active else 0.0 if tells else None
        for use, tells in zip(rows.uses, rows.tells_work, strict=True)
    ]


def compute_us(rows: Rows[Use]) -> Values:
    """GPU-microseconds of work."""
    return [
        totals.compute_us if tells and totals is not None else None
        for totals, tells in zip(rows.totals, rows.tells_work, strict=True)
    ]


def energy_mj(rows: Rows[Use]) -> Values:
    """Millijoules by method, every one from the first export on."""
    told = [
        totals.energy if tells and totals is not None else None
        for totals, tells in zip(rows.totals, rows.tells_energy, strict=True)
    ]
    return [None if energy is None else energy[method] or 0 for method in range(len(METHODS)) for energy in told]


def idle_duration(rows: Rows[Use]) -> Values:
    """Seconds without work; none for what is not known, or gone."""
    busy, idle = GpuState.BUSY, GpuState.IDLE
    return [
        None if not use.active else 0.0 if use.state is busy else use.idle_s if use.state is idle else None
        for use in rows.uses
    ]


def idle_memory(rows: Rows[Use]) -> Values:
    """Bytes held while idle. Where nobody is known to be idle and somebody may be, none."""
    unknown = GpuState.UNKNOWN
    values: Values = []
    for use, tells in zip(rows.uses, rows.tells_work, strict=True):
        if not use.active:
            values.append(0 if tells else None)
        else:
            values.append(use.idle_bytes if use.idle_bytes or use.state is not unknown else None)
    return values
