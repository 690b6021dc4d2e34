"""The answer as a table for people. A dash means "not known", which is not zero."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from otel_gpu.export.text import Column, Paint, Style, printable, table
from otel_gpu.model import (
    Attribution,
    GpuAttribution,
    GpuHealth,
    MemorySplit,
    SourceState,
    WorkloadAttribution,
)

UNKNOWN: Final = "-"
_BAR_WIDTH: Final = 20
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


def render(attribution: Attribution, *, width: int = 100, paint: Paint | None = None, simulated: bool = False) -> str:
    """The whole answer: GPUs, workloads, processes, and what went wrong while reading."""
    paint = paint or Paint(enabled=False)
    lines = [_title(attribution, paint, simulated=simulated), ""]
    lines += _gpus(attribution, width, paint)
    lines += ["", *_workloads(attribution, width, paint)]
    lines += ["", *_processes(attribution, width, paint)]
    troubles = [source for source in attribution.sources if source.state is not SourceState.OK]
    if troubles:
        lines.append("")
        lines += [
            paint(f"{source.name}: {source.state.value}: {printable(source.reason or '')}", Style.YELLOW)
            for source in troubles
        ]
    return "\n".join(lines) + "\n"


def _title(attribution: Attribution, paint: Paint, *, simulated: bool) -> str:
    at = datetime.fromtimestamp(attribution.wall_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    parts = [paint("otel-gpu", Style.BOLD), at]
    if attribution.driver is not None and attribution.driver.driver_version is not None:
        parts.append(f"driver {printable(attribution.driver.driver_version)}")
    if simulated:
        parts.append(paint("SIMULATED HOST: no figure here is of a real GPU", Style.BOLD, Style.YELLOW))
    return "  ".join(parts)


# ---------------------------------------------------------------------------- GPUs


def _gpus(attribution: Attribution, width: int, paint: Paint) -> list[str]:
    columns = (
        Column("GPU", right=True),
        Column("NAME", shrinks=True),
        Column("MEMORY", drops=True),
        Column("USED", right=True),
        Column("LIMIT", right=True),
        Column("UNATTR", right=True),
        Column("UTIL", right=True),
        Column("POWER", right=True),
        Column("TEMP", right=True),
        Column("STATE", shrinks=True),
    )
    rows: list[list[str]] = []
    for gpu in attribution.gpus:
        reading = gpu.reading
        rows.append(
            [
                str(gpu.identity.index),
                printable(gpu.identity.name),
                _bar(gpu.memory),
                *_memory_cells(gpu.memory),
                _percent(reading.gpu_ratio),
                _number(reading.power_w, "W"),
                _number(reading.temperature_c, "°C"),
                _state(gpu),
            ]
        )
        rows += [
            ["", f"└ {printable(mig.profile or 'MIG')}", _bar(mig.memory), *_memory_cells(mig.memory), "", "", "", ""]
            for mig in gpu.mig or ()
        ]
    return table(columns, rows, width, paint)


def _memory_cells(split: MemorySplit | None) -> list[str]:
    if split is None:
        return [UNKNOWN, UNKNOWN, UNKNOWN]
    return [size(_used(split)), size(split.limit_bytes), size(split.unattributed_bytes)]


def _used(split: MemorySplit) -> int:
    return split.limit_bytes - split.free_bytes - (split.reserved_bytes or 0)


def _bar(split: MemorySplit | None) -> str:
    """Filled: measured; shaded: used by nobody known; dots: free or the driver's own."""
    if split is None or split.limit_bytes <= 0:
        return UNKNOWN
    known = round((_used(split) - split.unattributed_bytes) / split.limit_bytes * _BAR_WIDTH)
    used = round(_used(split) / split.limit_bytes * _BAR_WIDTH)
    return "█" * known + "▒" * (used - known) + "·" * (_BAR_WIDTH - used)


def _state(gpu: GpuAttribution) -> str:
    if gpu.reading.health is GpuHealth.OK:
        return "ok"
    return f"{gpu.reading.health.value}: {printable(gpu.reading.reason or '')}"


# ---------------------------------------------------------------------------- workloads and processes


def _workloads(attribution: Attribution, width: int, paint: Paint) -> list[str]:
    columns = (
        Column("WORKLOAD", shrinks=True),
        Column("KIND"),
        Column("POD", shrinks=True),
        Column("GPU"),
        Column("MEMORY", right=True),
    )
    index_of = {gpu.identity.uuid: gpu for gpu in attribution.gpus}
    ordered = sorted(attribution.workloads, key=lambda workload: (-_held(workload), workload.display_name))
    rows = [
        [
            printable(_workload_name(workload)),
            workload.ref.kind.value,
            printable(_pod(workload)),
            _gpu_label(index_of[part.gpu_uuid], part.mig_uuid),
            size(part.measured_bytes),
        ]
        for workload in ordered
        for part in workload.gpus
    ]
    return table(columns, rows, width, paint) if rows else ["nobody holds a GPU"]


def _processes(attribution: Attribution, width: int, paint: Paint) -> list[str]:
    columns = (
        Column("PID", right=True),
        Column("PROCESS", shrinks=True),
        Column("WORKLOAD", shrinks=True),
        Column("GPU"),
        Column("MEMORY", right=True),
    )
    index_of = {gpu.identity.uuid: gpu for gpu in attribution.gpus}
    name_of = {(w.ref.kind, w.ref.id): _workload_name(w) for w in attribution.workloads}
    ordered = sorted(attribution.processes, key=lambda process: (-(process.memory_bytes or -1), process.key))
    rows = [
        [
            str(process.key.pid),
            printable(process.name or UNKNOWN),
            printable(name_of[process.workload.kind, process.workload.id]),
            _gpu_label(index_of[process.gpu_uuid], process.mig_uuid),
            size(process.memory_bytes),
        ]
        for process in ordered
    ]
    return table(columns, rows, width, paint) if rows else ["no process is on a GPU"]


def _held(workload: WorkloadAttribution) -> int:
    return sum(part.measured_bytes or 0 for part in workload.gpus)


def _workload_name(workload: WorkloadAttribution) -> str:
    name = workload.display_name
    is_hash = name == workload.ref.id and len(name) == 64
    return name[:12] if is_hash else name  # as docker ps shows it


def _pod(workload: WorkloadAttribution) -> str:
    names = workload.names
    if names is None or names.pod is None:
        return UNKNOWN
    return f"{names.namespace}/{names.pod}" if names.namespace is not None else names.pod


def _gpu_label(gpu: GpuAttribution, mig_uuid: str | None) -> str:
    index = str(gpu.identity.index)
    profile = next((mig.profile for mig in gpu.mig or () if mig.uuid == mig_uuid), None)
    return f"{index} {printable(profile)}" if profile is not None else index


# ---------------------------------------------------------------------------- figures


def size(bytes_: int | None) -> str:
    """Bytes as people read them, in binary units."""
    if bytes_ is None:
        return UNKNOWN
    return f"{bytes_ / _GIB:.1f} GiB" if bytes_ >= _GIB else f"{bytes_ / _MIB:.0f} MiB"


def _percent(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{ratio * 100:.0f} %"


def _number(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{value:.0f} {unit}"
