"""The answer as a table for people, fit for a ticket. A dash means "not known", which is not zero."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from otel_gpu.export.table_figures import (
    LEGEND,
    MARKS,
    MIB,
    UNKNOWN,
    bar,
    celsius,
    gpu_power_w,
    model,
    percent,
    power_w,
    signed,
    size,
    state_because,
    state_words,
    used_bytes,
    utc,
    watts,
    whole,
)
from otel_gpu.export.table_names import name_key, origin, workload_names
from otel_gpu.export.text import Column, Paint, Style, cells, printable, shorten, table
from otel_gpu.model import (
    UNIDENTIFIED_WORKLOAD,
    GpuHealth,
    GpuReport,
    MemorySplit,
    ProcessReport,
    Report,
    SourceState,
    WorkloadGpu,
    WorkloadReport,
)
from otel_gpu.version import __version__

_SIMULATED: Final = "SIMULATED HOST: no figure here is of a real GPU"
_LEAST_LINES: Final = 3
"""Of each table on a small screen: its heading, who comes first, and how many more there are."""

_WIDE: Final = 100
"""From so many columns on there is room for a long bar."""


def render(
    attribution: Report,
    *,
    width: int = 100,
    height: int | None = None,
    paint: Paint | None = None,
    simulated: bool = False,
    notes: Sequence[str] = (),
    host_name: str | None = None,
) -> str:
    """The whole answer: GPUs, their sums, workloads, processes, what the marks mean, and what went wrong.

    ``notes`` stand under the title. With a ``height`` in lines the tables are cut to fit, the first of them last; sums
    are there if they leave half of the lines to those who use GPUs, marks if there is room for all.
    """
    paint = paint or Paint(enabled=False)
    head = _title(attribution, width, paint, simulated=simulated, host_name=host_name)
    head += [shorten(printable(note), width) for note in notes]
    gpus, *users = (part(attribution, width, paint) for part in (_gpus, _workloads, _processes))
    troubles = [paint(line, Style.YELLOW) for line in _troubles(attribution, width, simulated=simulated)]
    sums, legend = _sums(attribution, width, paint), [paint(line, Style.DIM) for line in _legend(attribution, width)]
    lines = _joined(head, gpus, sums, *users, legend, troubles)
    if height is not None and len(lines) > height:
        around = [*head, "", *troubles] if troubles else head
        if 2 * len(_joined(around, gpus, sums)) > height:
            sums = []
        room = height - len(_joined(around, sums))
        gpus, *users = _cut([gpus, *users], room, paint)
        lines = _joined(head, gpus, sums, *users, troubles)[:height]
    return "\n".join(lines) + "\n"


def _joined(*parts: Sequence[str]) -> list[str]:
    """The lines of all parts that have any, a blank one between two."""
    return [line for part in parts if part for line in ("", *part)][1:]


def _title(attribution: Report, width: int, paint: Paint, *, simulated: bool, host_name: str | None) -> list[str]:
    words = [f"otel-gpu {__version__}", utc(attribution.wall_ns / 1e9, "%Y-%m-%dT%H:%M:%SZ")]
    if host_name:
        words.insert(1, printable(host_name))
    if attribution.driver is not None and attribution.driver.driver_version is not None:
        words.append(f"driver {printable(attribution.driver.driver_version)}")
    if attribution.pod is not None:
        words.append(f"pod {printable(str(attribution.pod))}")
    text = shorten("  ".join(words), width)
    title = text.replace("otel-gpu", paint("otel-gpu", Style.BOLD), 1)
    if not simulated:
        return [title]
    warning = paint(shorten(_SIMULATED, width), Style.BOLD, Style.YELLOW)
    fits = cells(text) + 2 + len(_SIMULATED) <= width
    return [f"{title}  {warning}"] if fits else [title, warning]


def _troubles(attribution: Report, width: int, *, simulated: bool) -> list[str]:
    """What went wrong, not cut: the reason names the way out, and where it does not, doctor does."""
    texts = [
        f"GPU {gpu.identity.index}: {printable(state_because(gpu.reading.health.value, gpu.reading.reason))}"
        for gpu in attribution.gpus
        if gpu.reading.health is not GpuHealth.OK
    ]
    texts += [
        f"{source.name}: {printable(state_because(source.state.value, source.reason))}"
        for source in attribution.sources
        if source.state is not SourceState.OK and not (source.by_gpu and texts)
    ]
    if any(workload.ref == UNIDENTIFIED_WORKLOAD and workload.active_gpus for workload in attribution.workloads):
        texts.append(f"{UNIDENTIFIED_WORKLOAD.id}: the driver names processes that /proc, as seen here, does not have")
    if texts and not simulated:
        texts.append("otel-gpu doctor tells what to do about it")
    return [line for text in texts for line in textwrap.wrap(text, width, subsequent_indent="  ")]


def _legend(attribution: Report, width: int) -> list[str]:
    """What the marks mean, as far as any can be there."""
    drawn = attribution.pod is None and any(gpu.memory is not None for gpu in attribution.gpus)
    texts = ["  ".join(f"{mark} {meaning}" for mark, meaning in LEGEND.items())] if drawn else []
    if any(workload.active_gpus for workload in attribution.workloads):
        texts.append("  ".join(f"{mark} {meaning}" for mark, meaning in MARKS.items()))
    if any(part.confidence is not None for workload in attribution.workloads for part in workload.told_gpus):
        texts.append("INFERRED is what the driver does not list and evidence explains, with how sure that is")
    if attribution.window_s and any(gpu.energy is not None for gpu in attribution.gpus):
        texts.append(f"POWER is the mean of the last {attribution.window_s:.1f} s")
    return [line for text in texts for line in textwrap.wrap(text, width)]


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


def _gpus(attribution: Report, width: int, paint: Paint) -> list[str]:
    if attribution.pod is not None:
        return []  # an answer of one pod has no figures of GPUs
    columns = (
        Column("GPU", right=True),
        Column("NAME", shrinks=True),
        Column("MEMORY", drops=True),
        Column("USED", right=True),
        Column("LIMIT", right=True),
        Column("UTIL", right=True),
        Column("POWER", right=True),
        Column("TEMP", right=True),
        Column("STATE"),
    )
    bar_width = 20 if width >= _WIDE else 10
    rows: list[list[str]] = []
    for gpu in attribution.gpus:
        reading = gpu.reading
        rows.append(
            [
                str(gpu.identity.index),
                printable(model(gpu.identity.name)),
                bar(gpu.memory, bar_width),
                *_memory_cells(gpu.memory),
                percent(reading.gpu_ratio),
                watts(gpu_power_w(gpu, attribution.window_s)),
                celsius(reading.temperature_c),
                gpu.reading.health.value,
            ]
        )
        rows += [
            ["", f"└ {printable(mig.profile or 'MIG')}", bar(mig.memory, bar_width), *_memory_cells(mig.memory)]
            + [""] * 4
            for mig in gpu.mig or ()
        ]
    return table(columns, rows, width, paint) if rows else ["no GPU could be read"]


def _memory_cells(split: MemorySplit | None) -> list[str]:
    return [UNKNOWN] * 2 if split is None else [size(used_bytes(split)), size(split.limit_bytes)]


# ---------------------------------------------------------------------------- sums


def _sums(attribution: Report, width: int, paint: Paint) -> list[str]:
    """A line per GPU that can be added up: memory in MiB and, where there is room, energy of the window in J."""
    if attribution.pod is not None or all(gpu.memory is None for gpu in attribution.gpus):
        return []
    metered = any(gpu.energy is not None for gpu in attribution.gpus)
    for energy_too in (True, False) if metered else (False,):
        heading, *lines = _sums_table(attribution, energy_too=energy_too)
        if max(map(len, (heading, *lines))) <= width:
            return [paint(heading, Style.DIM), *lines]
    return []


def _sums_table(attribution: Report, *, energy_too: bool) -> list[str]:
    overcounted = any(gpu.memory is not None and gpu.memory.overcount_bytes for gpu in attribution.gpus)
    headings = ["GPU", "MiB", "= MEASURED", *(["- OVERCOUNT"] if overcounted else [])]
    headings += ["+ INFERRED", "+ UNATTR", "+ DRIVER", "+ FREE"]
    if energy_too:
        window = "" if attribution.window_s is None else f" IN {attribution.window_s:.1f} s"
        headings += [f"J{window}", "= WORKLOADS", "+ NOBODY", "+ UNATTR"]
    rows = []
    for gpu in attribution.gpus:
        memory = _memory_sum(gpu.memory, overcounted=overcounted)
        rows.append([str(gpu.identity.index), *memory, *(_energy_sum(gpu) if energy_too else [])])
    return table([Column(heading, right=True) for heading in headings], rows, 0, Paint(enabled=False))


def _memory_sum(split: MemorySplit | None, *, overcounted: bool) -> list[str]:
    """The limit and what it is made of, in MiB."""
    if split is None:
        return [UNKNOWN] * (7 if overcounted else 6)
    parts = [split.measured_bytes, -split.overcount_bytes, split.inferred_bytes, split.unattributed_bytes]
    shown = whole([*parts, split.reserved_bytes or 0, split.free_bytes], MIB)
    texts = [str(sum(shown)), *(str(abs(part)) for part in shown)]
    if split.reserved_bytes is None:
        texts[5] = UNKNOWN  # it is in use as far as this driver tells
    return texts if overcounted else [*texts[:2], *texts[3:]]


def _energy_sum(gpu: GpuReport) -> list[str]:
    """What the window took and who took it, in J."""
    energy = gpu.energy
    if energy is None:
        return [UNKNOWN] * 4
    parts = (energy.attributed_mj, energy.idle_mj, energy.unattributed_mj)
    shown = whole([part or 0 for part in parts], 1000)
    texts = [UNKNOWN if part is None else str(text) for part, text in zip(parts, shown, strict=True)]
    return [str(round(energy.delta_mj / 1000) if None in parts else sum(shown)), *texts]


# ---------------------------------------------------------------------------- workloads and processes


def _workloads(attribution: Report, width: int, paint: Paint) -> list[str]:
    columns = (
        Column("WORKLOAD", shrinks=True, ends=True),
        Column("KIND", drops=True),
        Column("POD OR IMAGE", shrinks=True, drops=True, ends=True),
        Column("GPU"),
        Column("MEMORY", right=True),
        Column("INFERRED, SURE", right=True),
        *_USE_COLUMNS,
    )
    index_of = {gpu.identity.uuid: gpu for gpu in attribution.gpus}
    name_of = workload_names(attribution.workloads)
    ordered = sorted(attribution.workloads, key=lambda workload: (-_held(workload), workload.display_name))
    rows = [
        [
            printable(name_of[name_key(workload)]),
            workload.ref.kind.value,
            printable(origin(workload)),
            _gpu_label(index_of.get(part.gpu_uuid), part.mig_uuid),
            size(part.measured_bytes),
            _inferred(part),
            *_use(part, attribution.window_s),
        ]
        for workload in ordered
        for part in workload.told_gpus  # who ended in the window too: without it the GPU's power does not add up
    ]
    if rows:
        return table(columns, rows, width, paint)
    if attribution.pod is not None:
        return ["nobody of this pod is seen on a GPU"]
    return ["nobody holds a GPU" if all_told(attribution) else "who holds a GPU is not known"]


def _processes(attribution: Report, width: int, paint: Paint) -> list[str]:
    columns = (
        Column("PID", right=True),
        Column("PROCESS", shrinks=True),
        Column("WORKLOAD", shrinks=True, ends=True),
        Column("GPU"),
        Column("MEMORY", right=True),
        *_USE_COLUMNS,
    )
    index_of = {gpu.identity.uuid: gpu for gpu in attribution.gpus}
    name_of = workload_names(attribution.workloads)
    ordered = sorted(attribution.processes, key=lambda process: (-(process.memory_bytes or -1), process.key))
    rows = [
        [
            str(process.key.pid),
            printable(process.name or UNKNOWN),
            printable(name_of.get((process.workload.key, process.naming), process.workload.unnamed)),
            _gpu_label(index_of.get(process.gpu_uuid), process.mig_uuid),
            size(process.memory_bytes),
            *_use(process, attribution.window_s),
        ]
        for process in ordered
        if process.told
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


def _use(part: WorkloadGpu | ProcessReport, window_s: float | None) -> list[str]:
    """SM share, mean power of the window, and what it does with the GPU: for how long it has been idle."""
    power = signed(watts(power_w(part.energy, window_s)), part.energy)
    state = state_words(part.state, part.idle_s) if part.active else "ended"
    return [percent(part.sm_ratio), power, state]


def _inferred(part: WorkloadGpu) -> str:
    """Inferred memory and how sure it is; nothing where nothing is inferred."""
    if not part.inferred_bytes:
        return ""
    sure = "" if part.confidence is None else f" {percent(part.confidence)}"
    return f"~ {size(part.inferred_bytes)}{sure}"


def all_told(attribution: Report) -> bool:
    """Whether every GPU said who is on it, so that nobody means nobody."""
    readings = [gpu.reading for gpu in attribution.gpus]
    lists = [part.processes for reading in readings for part in (reading.mig if reading.mig is not None else [reading])]
    return bool(readings) and all(processes is not None for processes in lists)


def _held(workload: WorkloadReport) -> int:
    return sum((part.measured_bytes or 0) + (part.inferred_bytes or 0) for part in workload.gpus)


def _gpu_label(gpu: GpuReport | None, mig_uuid: str | None) -> str:
    if gpu is None:
        return UNKNOWN  # the driver does not show it now, and what was on it may come back
    index = str(gpu.identity.index)
    profile = next((mig.profile for mig in gpu.mig or () if mig.uuid == mig_uuid), None)
    return f"{index} {printable(profile)}" if profile is not None else index
