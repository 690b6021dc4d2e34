"""The answer as a table for people. A dash means "not known", which is not zero."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from otel_gpu.export.text import Column, Paint, Style, cells, printable, shorten, table
from otel_gpu.model import (
    Attribution,
    GpuAttribution,
    GpuHealth,
    GpuState,
    MemorySplit,
    ProcessAttribution,
    SourceState,
    WorkloadAttribution,
    WorkloadGpu,
)

UNKNOWN: Final = "-"
_SIMULATED: Final = "SIMULATED HOST: no figure here is of a real GPU"
_LEAST_LINES: Final = 3
"""Of each table on a small screen: its heading, who comes first, and how many more there are."""

_BAR_WIDTH: Final = 20
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


def render(
    attribution: Attribution,
    *,
    width: int = 100,
    height: int | None = None,
    paint: Paint | None = None,
    simulated: bool = False,
    notes: Sequence[str] = (),
) -> str:
    """The whole answer: GPUs, workloads, processes, and what went wrong while reading.

    ``notes`` stand under the title. With a ``height`` in lines the tables are cut to fit, the first of them last.
    """
    paint = paint or Paint(enabled=False)
    head = _title(attribution, width, paint, simulated=simulated)
    head += [shorten(printable(note), width) for note in notes]
    tables = [part(attribution, width, paint) for part in (_gpus, _workloads, _processes)]
    troubles = [paint(line, Style.YELLOW) for line in _troubles(attribution, width)]
    if height is not None:
        around = [*head, "", *troubles] if troubles else head
        tables = _cut(tables, height - len(around), paint)
    lines = "\n\n".join("\n".join(part) for part in (head, *tables, troubles) if part).split("\n")
    return "\n".join(lines[:height]) + "\n"


def _title(attribution: Attribution, width: int, paint: Paint, *, simulated: bool) -> list[str]:
    at = datetime.fromtimestamp(attribution.wall_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    words = f"otel-gpu  {at}"
    if attribution.driver is not None and attribution.driver.driver_version is not None:
        words += f"  driver {printable(attribution.driver.driver_version)}"
    if attribution.pod is not None:
        words += f"  pod {printable(str(attribution.pod))}"
    words = shorten(words, width)
    title = words.replace("otel-gpu", paint("otel-gpu", Style.BOLD), 1)
    if not simulated:
        return [title]
    warning = paint(shorten(_SIMULATED, width), Style.BOLD, Style.YELLOW)
    fits = cells(words) + 2 + len(_SIMULATED) <= width
    return [f"{title}  {warning}"] if fits else [title, warning]


def _troubles(attribution: Attribution, width: int) -> list[str]:
    """What went wrong, not cut: the reason names the way out."""
    texts = (
        f"{source.name}: {source.state.value}: {printable(source.reason or '')}"
        for source in attribution.sources
        if source.state is not SourceState.OK
    )
    return [line for text in texts for line in textwrap.wrap(text, width, subsequent_indent="  ")]


def _cut(tables: Sequence[list[str]], room: int, paint: Paint) -> list[list[str]]:
    """The tables in ``room`` lines, a blank one before each: what can be spared goes to the first, then the second."""
    fitted: list[list[str]] = []
    for index, lines in enumerate(tables):
        later = sum(1 + min(len(other), _LEAST_LINES) for other in tables[index + 1 :])
        limit = min(room - 1, max(room - 1 - later, _LEAST_LINES))
        if len(lines) > limit:
            more = paint(f"… {len(lines) - limit + 1} more", Style.DIM)
            lines = [*lines[: limit - 1], more] if limit > 1 else []  # noqa: PLW2901
        fitted.append(lines)
        room -= 1 + len(lines) if lines else 0
    return fitted


# ---------------------------------------------------------------------------- GPUs


def _gpus(attribution: Attribution, width: int, paint: Paint) -> list[str]:
    if attribution.pod is not None:
        return []  # an answer of one pod has no figures of GPUs
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
    return table(columns, rows, width, paint) if rows else ["no GPU could be read"]


def _memory_cells(split: MemorySplit | None) -> list[str]:
    if split is None:
        return [UNKNOWN, UNKNOWN, UNKNOWN]
    return [size(_used(split)), size(split.limit_bytes), size(split.unattributed_bytes)]


def _used(split: MemorySplit) -> int:
    return split.limit_bytes - split.free_bytes - (split.reserved_bytes or 0)


def _bar(split: MemorySplit | None) -> str:
    """Filled: measured; dense: inferred; light: in use by nobody known; dots: free or the driver's own."""
    if split is None or split.limit_bytes <= 0:
        return UNKNOWN
    used_bytes = _used(split)
    measured, known, used = (
        round(upto / split.limit_bytes * _BAR_WIDTH)
        for upto in (
            used_bytes - split.unattributed_bytes - split.inferred_bytes,
            used_bytes - split.unattributed_bytes,
            used_bytes,
        )
    )
    return "█" * measured + "▓" * (known - measured) + "░" * (used - known) + "·" * (_BAR_WIDTH - used)


def _state(gpu: GpuAttribution) -> str:
    if gpu.reading.health is GpuHealth.OK:
        return "ok"
    return f"{gpu.reading.health.value}: {printable(gpu.reading.reason or '')}"


# ---------------------------------------------------------------------------- workloads and processes


def _workloads(attribution: Attribution, width: int, paint: Paint) -> list[str]:
    columns = (
        Column("WORKLOAD", shrinks=True),
        Column("KIND", drops=True),
        Column("POD", shrinks=True, drops=True),
        Column("GPU"),
        Column("MEMORY", right=True),
        Column("INFERRED", right=True),
        *_USE_COLUMNS,
    )
    index_of = {gpu.identity.uuid: gpu for gpu in attribution.gpus}
    ordered = sorted(attribution.workloads, key=lambda workload: (-_held(workload), workload.display_name))
    rows = [
        [
            printable(_workload_name(workload)),
            workload.ref.kind.value,
            printable(_pod(workload)),
            _gpu_label(index_of.get(part.gpu_uuid), part.mig_uuid),
            size(part.measured_bytes),
            _inferred(part),
            *_use(part, attribution.window_s),
        ]
        for workload in ordered
        for part in workload.active_gpus
    ]
    if rows:
        return table(columns, rows, width, paint)
    if attribution.pod is not None:
        return ["nobody of this pod is seen on a GPU"]
    return ["nobody holds a GPU" if all_told(attribution) else "who holds a GPU is not known"]


def _processes(attribution: Attribution, width: int, paint: Paint) -> list[str]:
    columns = (
        Column("PID", right=True),
        Column("PROCESS", shrinks=True),
        Column("WORKLOAD", shrinks=True),
        Column("GPU"),
        Column("MEMORY", right=True),
        *_USE_COLUMNS,
    )
    index_of = {gpu.identity.uuid: gpu for gpu in attribution.gpus}
    name_of = {(w.ref.kind, w.ref.id): _workload_name(w) for w in attribution.workloads}
    ordered = sorted(attribution.processes, key=lambda process: (-(process.memory_bytes or -1), process.key))
    rows = [
        [
            str(process.key.pid),
            printable(process.name or UNKNOWN),
            printable(name_of.get((process.workload.kind, process.workload.id), process.workload.id)),
            _gpu_label(index_of.get(process.gpu_uuid), process.mig_uuid),
            size(process.memory_bytes),
            *_use(process, attribution.window_s),
        ]
        for process in ordered
        if process.active
    ]
    if rows:
        return table(columns, rows, width, paint)
    if attribution.pod is not None:
        return ["no process of this pod is seen on a GPU"]
    return ["no process is on a GPU" if all_told(attribution) else "which processes are on a GPU is not known"]


_USE_COLUMNS: Final = (
    Column("SM", right=True),
    Column("POWER", right=True),
    Column("STATE"),
)


def _use(part: WorkloadGpu | ProcessAttribution, window_s: float | None) -> list[str]:
    """SM share, mean power of the window, and what it does with the GPU: for how long it has been idle."""
    energy_mj = part.energy.total_mj
    power_w = energy_mj / 1000 / window_s if energy_mj is not None and window_s else None
    state = part.state.value if part.state is not None else UNKNOWN
    if part.state is GpuState.IDLE and part.idle_s is not None:
        state = f"idle {span(part.idle_s)}"
    return [_percent(part.sm_ratio), _number(power_w, "W"), state]


def _inferred(part: WorkloadGpu) -> str:
    """Inferred memory and how sure it is; nothing where nothing is inferred."""
    if not part.inferred_bytes:
        return ""
    sure = "" if part.confidence is None else f" {part.confidence * 100:.0f} %"
    return f"{size(part.inferred_bytes)}{sure}"


def span(seconds: float) -> str:
    """A span of time as people say it: in its largest unit."""
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def all_told(attribution: Attribution) -> bool:
    """Whether every GPU said who is on it, so that nobody means nobody."""
    readings = [gpu.reading for gpu in attribution.gpus]
    lists = [part.processes for reading in readings for part in (reading.mig if reading.mig is not None else [reading])]
    return bool(readings) and all(processes is not None for processes in lists)


def _held(workload: WorkloadAttribution) -> int:
    return sum((part.measured_bytes or 0) + (part.inferred_bytes or 0) for part in workload.gpus)


def _workload_name(workload: WorkloadAttribution) -> str:
    name = workload.display_name
    is_hash = name == workload.ref.id and len(name) == 64
    return name[:12] if is_hash else name  # as docker ps shows it


def _pod(workload: WorkloadAttribution) -> str:
    names = workload.names
    if names is None or names.pod is None:
        return UNKNOWN
    return f"{names.namespace}/{names.pod}" if names.namespace is not None else names.pod


def _gpu_label(gpu: GpuAttribution | None, mig_uuid: str | None) -> str:
    if gpu is None:
        return UNKNOWN  # the driver does not show it now, and what was on it may come back
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
