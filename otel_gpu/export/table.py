"""The report as tables in plain text. A dash is unknown, which is not zero."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from otel_gpu.model import (
    GpuReport,
    MemorySplit,
    ProcessReport,
    Report,
    WorkloadGpu,
    WorkloadReport,
)
from otel_gpu.version import __version__
from otel_gpu.view.builder import lists_are_complete, no_workloads
from otel_gpu.view.names import name_key, origin, workload_names
from otel_gpu.view.problems import problems, remedy
from otel_gpu.view.terminal import Column, Paint, Style, cells, printable, shorten, table
from otel_gpu.view.text import (
    BAR_MARKS,
    LEGEND,
    MARKS,
    MIB,
    SIMULATED_HOST,
    UNKNOWN,
    bar,
    celsius,
    gpu_power_w,
    model,
    percent,
    power_w,
    signed,
    size,
    state_text,
    utc,
    watts,
    whole,
)

_LEAST_LINES: Final = 3
"""Least lines of each table on a small screen: heading, first row, number of further rows."""

_WIDE: Final = 100
"""Width in columns from which memory is drawn as a long bar."""


def render(
    report: Report,
    *,
    width: int = 100,
    height: int | None = None,
    paint: Paint | None = None,
    simulated: bool = False,
    notes: Sequence[str] = (),
    host_name: str | None = None,
) -> str:
    """The whole report: GPUs, their sums, workloads, processes, the legend of the marks, and problems.

    ``notes`` are printed under the title. With a ``height`` in lines, the tables are cut to fit, the last one first.
    Sums are included if half of the lines remain for the other tables, the legend only if nothing is cut.
    """
    paint = paint or Paint(enabled=False)
    head = _title(report, width, paint, simulated=simulated, host_name=host_name)
    head += [shorten(printable(note), width) for note in notes]
    gpus, *users = (part(report, width, paint) for part in (_gpus, _workloads, _processes))
    troubles = [
        paint(line, Style.YELLOW) for line in _troubles(report, width, simulated=simulated, host_name=host_name)
    ]
    sums, legend = _sums(report, width, paint), [paint(line, Style.DIM) for line in _legend(report, width)]
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
    """The lines of all parts that have any, with a blank line between parts."""
    return [line for part in parts if part for line in ("", *part)][1:]


def _title(report: Report, width: int, paint: Paint, *, simulated: bool, host_name: str | None) -> list[str]:
    words = [f"otel-gpu {__version__}", utc(report.wall_ns / 1e9, "%Y-%m-%dT%H:%M:%SZ")]
    if host_name:
        words.insert(1, printable(host_name))
    if report.driver is not None and report.driver.driver_version is not None:
        words.append(f"driver {printable(report.driver.driver_version)}")
    if report.pod is not None:
        words.append(f"pod {printable(str(report.pod))}")
    text = shorten("  ".join(words), width)
    title = text.replace("otel-gpu", paint("otel-gpu", Style.BOLD), 1)
    if not simulated:
        return [title]
    warning = paint(shorten(SIMULATED_HOST, width), Style.BOLD, Style.YELLOW)
    fits = cells(text) + 2 + len(SIMULATED_HOST) <= width
    return [f"{title}  {warning}"] if fits else [title, warning]


def _troubles(report: Report, width: int, *, simulated: bool, host_name: str | None) -> list[str]:
    """Wrapped and not cut, because the reason says how to fix it."""
    texts = [problem.text for problem in problems(report)]
    if texts and not simulated:
        texts.append(remedy(host_name or ""))
    return [line for text in texts for line in textwrap.wrap(text, width, subsequent_indent="  ")]


def _legend(report: Report, width: int) -> list[str]:
    """The meaning of the marks that can occur in this report."""
    drawn = report.pod is None and any(gpu.memory is not None for gpu in report.gpus)
    texts = ["  ".join(f"{BAR_MARKS[kind]} {name}" for kind, name in LEGEND.items())] if drawn else []
    if any(workload.active_gpus for workload in report.workloads):
        texts.append("  ".join(f"{mark} {meaning}" for mark, meaning in MARKS.items()))
    if any(part.confidence is not None for workload in report.workloads for part in workload.reported_gpus):
        texts.append("INFERRED is memory that the driver does not list and evidence explains, with the confidence")
    if report.window_s and any(gpu.energy is not None for gpu in report.gpus):
        texts.append(f"POWER is the mean of the last {report.window_s:.1f} s")
    return [line for text in texts for line in textwrap.wrap(text, width)]


def _cut(tables: Sequence[list[str]], room: int, paint: Paint) -> list[list[str]]:
    """Cut the tables to ``room`` lines, with a blank line before each. Earlier tables keep more than later ones."""
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


def _gpus(report: Report, width: int, paint: Paint) -> list[str]:
    if report.pod is not None:
        return []  # a report for one pod has no figures of whole GPUs
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
    for gpu in report.gpus:
        reading = gpu.reading
        rows.append(
            [
                str(gpu.identity.index),
                printable(model(gpu.identity.name)),
                bar(gpu.memory, bar_width),
                *_memory_cells(gpu.memory),
                percent(reading.gpu_ratio),
                watts(gpu_power_w(gpu, report.window_s)),
                celsius(reading.temperature_c),
                gpu.reading.health.value,
            ]
        )
        rows += [
            ["", f"└ {printable(mig.profile or 'MIG')}", bar(mig.memory, bar_width), *_memory_cells(mig.memory)]
            + [""] * 4
            for mig in gpu.mig or ()
        ]
    return table(columns, rows, width, paint) if rows else ["No GPU could be read"]


def _memory_cells(split: MemorySplit | None) -> list[str]:
    return [UNKNOWN] * 2 if split is None else [size(split.used_bytes), size(split.limit_bytes)]


# ---------------------------------------------------------------------------- sums


def _sums(report: Report, width: int, paint: Paint) -> list[str]:
    """A line of sums per GPU: memory in MiB and, if the width allows, the energy of the window in J."""
    if report.pod is not None or all(gpu.memory is None for gpu in report.gpus):
        return []
    metered = any(gpu.energy is not None for gpu in report.gpus)
    for energy_too in (True, False) if metered else (False,):
        heading, *lines = _sums_table(report, energy_too=energy_too)
        if max(map(len, (heading, *lines))) <= width:
            return [paint(heading, Style.DIM), *lines]
    return []


def _sums_table(report: Report, *, energy_too: bool) -> list[str]:
    overcounted = any(gpu.memory is not None and gpu.memory.overcount_bytes for gpu in report.gpus)
    headings = ["GPU", "MiB", "= MEASURED", *(["- OVERCOUNT"] if overcounted else [])]
    headings += ["+ INFERRED", "+ UNATTR", "+ DRIVER", "+ FREE"]
    if energy_too:
        window = "" if report.window_s is None else f" IN {report.window_s:.1f} s"
        headings += [f"J{window}", "= WORKLOADS", "+ IDLE", "+ UNATTR"]
    rows = []
    for gpu in report.gpus:
        memory = _memory_sum(gpu.memory, overcounted=overcounted)
        rows.append([str(gpu.identity.index), *memory, *(_energy_sum(gpu) if energy_too else [])])
    return table([Column(heading, right=True) for heading in headings], rows, 0, Paint(enabled=False))


def _memory_sum(split: MemorySplit | None, *, overcounted: bool) -> list[str]:
    """The limit and its parts, in MiB."""
    if split is None:
        return [UNKNOWN] * (7 if overcounted else 6)
    parts = [split.measured_bytes, -split.overcount_bytes, split.inferred_bytes, split.unattributed_bytes]
    shown = whole([*parts, split.reserved_bytes or 0, split.free_bytes], MIB)
    texts = [str(sum(shown)), *(str(abs(part)) for part in shown)]
    if split.reserved_bytes is None:
        texts[5] = UNKNOWN  # this driver includes it in the memory in use
    return texts if overcounted else [*texts[:2], *texts[3:]]


def _energy_sum(gpu: GpuReport) -> list[str]:
    """The energy of the window and its parts, in J."""
    energy = gpu.energy
    if energy is None:
        return [UNKNOWN] * 4
    parts = (energy.attributed_mj, energy.idle_mj, energy.unattributed_mj)
    shown = whole([part or 0 for part in parts], 1000)
    texts = [UNKNOWN if part is None else str(text) for part, text in zip(parts, shown, strict=True)]
    return [str(round(energy.delta_mj / 1000) if None in parts else sum(shown)), *texts]


# ---------------------------------------------------------------------------- workloads and processes


def _workloads(report: Report, width: int, paint: Paint) -> list[str]:
    columns = (
        Column("WORKLOAD", shrinks=True, ends=True),
        Column("KIND", drops=True),
        Column("POD OR IMAGE", shrinks=True, drops=True, ends=True),
        Column("GPU"),
        Column("MEMORY", right=True),
        Column("INFERRED", right=True),
        *_USE_COLUMNS,
    )
    index_of = {gpu.identity.uuid: gpu for gpu in report.gpus}
    name_of = workload_names(report.workloads)
    ordered = sorted(report.workloads, key=lambda workload: (-_held(workload), workload.display_name))
    rows = [
        [
            printable(name_of[name_key(workload)]),
            workload.ref.kind.value,
            printable(origin(workload)),
            _gpu_label(index_of.get(part.gpu_uuid), part.mig_uuid),
            size(part.measured_bytes),
            _inferred(part),
            *_use(part, report.window_s),
        ]
        for workload in ordered
        for part in workload.reported_gpus  # also those that ended in the window: they are part of the GPU's power
    ]
    if rows:
        return table(columns, rows, width, paint)
    return [no_workloads(report)]


def _processes(report: Report, width: int, paint: Paint) -> list[str]:
    columns = (
        Column("PID", right=True),
        Column("PROCESS", shrinks=True),
        Column("WORKLOAD", shrinks=True, ends=True),
        Column("GPU"),
        Column("MEMORY", right=True),
        *_USE_COLUMNS,
    )
    index_of = {gpu.identity.uuid: gpu for gpu in report.gpus}
    name_of = workload_names(report.workloads)
    ordered = sorted(report.processes, key=lambda process: (-(process.memory_bytes or -1), process.key))
    rows = [
        [
            str(process.key.pid),
            printable(process.name or UNKNOWN),
            printable(name_of.get((process.workload.key, process.naming), process.workload.unnamed)),
            _gpu_label(index_of.get(process.gpu_uuid), process.mig_uuid),
            size(process.memory_bytes),
            *_use(process, report.window_s),
        ]
        for process in ordered
        if process.is_reported
    ]
    if rows:
        return table(columns, rows, width, paint)
    if report.pod is not None:
        return ["No process of this pod uses a GPU"]
    return ["No process uses a GPU" if lists_are_complete(report) else "Unknown which processes use a GPU"]


_USE_COLUMNS: Final = (
    Column("SM", right=True),
    Column("POWER", right=True),
    Column("STATE"),
)


def _use(part: WorkloadGpu | ProcessReport, window_s: float | None) -> list[str]:
    """SM share, mean power of the window, and state."""
    power = signed(watts(power_w(part.energy, window_s)), part.energy)
    return [percent(part.sm_ratio), power, state_text(part.state, part.idle_s, active=part.active)]


def _inferred(part: WorkloadGpu) -> str:
    """Inferred memory and its confidence; empty where none is inferred."""
    if not part.inferred_bytes:
        return ""
    sure = "" if part.confidence is None else f" {percent(part.confidence)}"
    return f"~ {size(part.inferred_bytes)}{sure}"


def _held(workload: WorkloadReport) -> int:
    return sum((part.measured_bytes or 0) + (part.inferred_bytes or 0) for part in workload.gpus)


def _gpu_label(gpu: GpuReport | None, mig_uuid: str | None) -> str:
    if gpu is None:
        return UNKNOWN  # the driver does not list this GPU now
    index = str(gpu.identity.index)
    profile = next((mig.profile for mig in gpu.mig or () if mig.uuid == mig_uuid), None)
    return f"{index} {printable(profile)}" if profile is not None else index
