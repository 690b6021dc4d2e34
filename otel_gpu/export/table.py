"""The view as tables in plain text, and sums of the report. A dash is unknown, which is not zero."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from otel_gpu.model import GpuReport, MemorySplit, Report
from otel_gpu.view.columns import PROCESS_COLUMNS
from otel_gpu.view.model import ProcessRow, View, ordered
from otel_gpu.view.terminal import TONE_STYLES, Paint, Style, TextColumn, Tone, cells, printable, shorten, table
from otel_gpu.view.text import (
    BAR_MARKS,
    INFERRED_MEANING,
    LEGEND,
    MARKS,
    MIB,
    SIMULATED_HOST,
    UNKNOWN,
    bar,
    more_lines,
    power_meaning,
    utc,
    whole,
)

_LEAST_LINES: Final = 3
"""Least lines of each table on a small screen: heading, first row, number of further rows."""

_BAR: Final = "bar"
_WIDE: Final = 100
"""Width in columns from which memory is drawn as a long bar."""

_PROCESS_KEYS: Final = tuple(each.column.key for each in PROCESS_COLUMNS if not each.is_total)
"""Columns of processes. Totals are left out: ``once`` takes two samples."""


def render(
    report: Report,
    view: View,
    *,
    width: int = 100,
    height: int | None = None,
    paint: Paint | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The view: GPUs, sums of the report, workloads, processes, the legend of the marks, and problems.

    ``notes`` are printed under the title. With a ``height`` in lines, the tables are cut to fit, the last one first.
    Sums are included if half of the lines remain for the other tables, the legend only if nothing is cut.
    """
    paint = paint or Paint(enabled=False)
    head = [*_title(view, width, paint), *(shorten(printable(note), width) for note in notes)]
    gpus, *users = (part(view, width, paint) for part in (_gpus, _workloads, _processes))
    problems = _problems(view, width, paint)
    sums, legend = _sums(report, width, paint), [paint(line, Style.DIM) for line in _legend(report, view, width)]
    lines = _joined(head, gpus, sums, *users, legend, problems)
    if height is not None and len(lines) > height:
        around = [*head, "", *problems] if problems else head
        if 2 * len(_joined(around, gpus, sums)) > height:
            sums = []
        room = height - len(_joined(around, sums))
        gpus, *users = _cut([gpus, *users], room, paint)
        lines = _joined(head, gpus, sums, *users, problems)[:height]
    return "\n".join(lines) + "\n"


def _joined(*parts: Sequence[str]) -> list[str]:
    """The lines of all parts that have any, with a blank line between parts."""
    return [line for part in parts if part for line in ("", *part)][1:]


def _title(view: View, width: int, paint: Paint) -> list[str]:
    words = (f"otel-gpu {view.version}", view.host, utc(view.at_s, "%Y-%m-%dT%H:%M:%SZ"), *view.about)
    text = shorten("  ".join(filter(None, words)), width)
    title = text.replace("otel-gpu", paint("otel-gpu", Style.BOLD), 1)
    if view.simulated is None:
        return [title]
    warning = paint(shorten(SIMULATED_HOST, width), Style.BOLD, Style.YELLOW)
    fits = cells(text) + 2 + len(SIMULATED_HOST) <= width
    return [f"{title}  {warning}"] if fits else [title, warning]


def _problems(view: View, width: int, paint: Paint) -> list[str]:
    """Wrapped and not cut, because the reason says how to fix it."""
    texts = [(problem.text, problem.tone) for problem in view.problems]
    texts += [(view.remedy, Tone.NONE)] if view.remedy else []
    return [
        paint(line, *TONE_STYLES[tone])
        for text, tone in texts
        for line in textwrap.wrap(text, width, subsequent_indent="  ")
    ]


def _legend(report: Report, view: View, width: int) -> list[str]:
    """The meaning of the marks that can occur in this view."""
    texts = []
    if any(bar.segments for gpu in view.gpus for bar in gpu.bars):
        texts.append("  ".join(f"{BAR_MARKS[kind]} {name}" for kind, name in LEGEND.items()))
    if view.workloads:
        texts.append("  ".join(f"{mark} {meaning}" for mark, meaning in MARKS.items()))
    inferred = [column.key for column in view.part_columns].index("inferred")
    if any(texts[inferred] for row in view.workloads for texts in row.parts):
        texts.append(INFERRED_MEANING)
    if report.window_s and any(gpu.energy is not None for gpu in report.gpus):
        texts.append(power_meaning(report.window_s))
    return [line for text in texts for line in textwrap.wrap(text, width)]


def _cut(tables: Sequence[list[str]], room: int, paint: Paint) -> list[list[str]]:
    """Cut the tables to ``room`` lines, with a blank line before each. Earlier tables keep more than later ones."""
    fitted: list[list[str]] = []
    for index, lines in enumerate(tables):
        later = sum(1 + min(len(other), _LEAST_LINES) for other in tables[index + 1 :])
        limit = min(room - 1, max(room - 1 - later, _LEAST_LINES))
        if len(lines) > limit:
            more = paint(more_lines(len(lines) - limit + 1), Style.DIM)
            lines = [*lines[: limit - 1], more] if limit > 1 else []  # noqa: PLW2901
        fitted.append(lines)
        room -= 1 + len(lines) if lines else 0
    return fitted


# ---------------------------------------------------------------------------- tables of the view


def _gpus(view: View, width: int, paint: Paint) -> list[str]:
    """A row for each GPU, and one for each of its MIG instances."""
    columns = [
        TextColumn(column.heading, right=column.is_number, shrinks=column.key == "name", drops=column.key == _BAR)
        for column in view.gpu_columns
    ]
    bar_at = [column.key for column in view.gpu_columns].index(_BAR)
    bar_cells = 20 if width >= _WIDE else 10
    rows = [
        [bar(of.kinds, bar_cells) if at == bar_at else cell.text for at, cell in enumerate(of.cells)]
        for gpu in view.gpus
        for of in gpu.bars
    ]
    return table(columns, rows, width, paint) if rows else [view.no_gpus] if view.no_gpus else []


def _workloads(view: View, width: int, paint: Paint) -> list[str]:
    """A row for each workload and GPU, also for one that ended in the window: its power is part of the GPU's."""
    at = {column.key: at for at, column in enumerate(view.columns)}
    name, origin = at["name"], at["origin"]
    columns = (
        TextColumn(view.columns[name].heading, shrinks=True, ends=True),
        TextColumn(view.columns[origin].heading, shrinks=True, drops=True, ends=True),
        *(TextColumn(column.heading, right=column.is_number) for column in view.part_columns),
    )
    rows = [
        [workload.cells[name].text, workload.cells[origin].text, *texts]
        for workload in ordered(view.columns, view.workloads, view.sort)
        for texts in workload.parts
    ]
    return table(columns, rows, width, paint) if rows else [view.no_workloads]


def _processes(view: View, width: int, paint: Paint) -> list[str]:
    """The processes of all workloads, the largest first."""
    at_of = {column.key: at for at, column in enumerate(view.process_columns)}
    at = [at_of[key] for key in _PROCESS_KEYS]

    def largest_first(use: tuple[str, ProcessRow]) -> tuple[float, float]:
        memory, pid = (use[1].cells[at_of[key]].value for key in ("memory", "pid"))
        assert not isinstance(memory, str)
        assert not isinstance(pid, str)
        return (1 if memory is None else -memory), pid or 0

    uses = sorted(((row.name, process) for row in view.workloads for process in row.processes), key=largest_first)
    columns = [
        TextColumn(column.heading, right=column.is_number, shrinks=column.key == "name")
        for column in (view.process_columns[each] for each in at)
    ]
    rows = [[process.cells[each].text for each in at] for _, process in uses]
    after_name = _PROCESS_KEYS.index("name") + 1
    workload = next(column for column in view.columns if column.key == "name")
    columns.insert(after_name, TextColumn(workload.heading, shrinks=True, ends=True))
    for (name, _), row in zip(uses, rows, strict=True):
        row.insert(after_name, name)
    return table(columns, rows, width, paint) if rows else [view.no_processes]


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
    return table([TextColumn(heading, right=True) for heading in headings], rows, 0, Paint(enabled=False))


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
