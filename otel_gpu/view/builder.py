"""Builds the view of each cycle from its Report."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from zlib import crc32

from otel_gpu.model import GpuReport, Report
from otel_gpu.view.columns import (
    DEFAULT_SORT,
    GPU_COLUMNS,
    PART_COLUMNS,
    PROCESS_COLUMNS,
    declared,
    workload_columns,
)
from otel_gpu.view.gpus import gpu_view
from otel_gpu.view.history import SLOT_S, SLOTS, Recorder, newest
from otel_gpu.view.model import Cell, Column, GpuView, Problem, Total, View, WorkloadRow
from otel_gpu.view.problems import problems, remedy
from otel_gpu.view.terminal import printable
from otel_gpu.view.text import gpu_power_w, out_of, percent, plural, simulation_warning, size, watts, words
from otel_gpu.view.workloads import Workloads, sum_known

_TITLE: Final = "GPU use by workload"
_MISSED_INTERVALS: Final = 3
_GRACE_S: Final = 10.0
"""The agent counts as lost after this number of intervals plus this time without a cycle."""

_GAP_SLOTS: Final = 2.5
"""Length of time without a sample that is a gap in a plot, in slots, or in intervals if these are longer."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The agent and host that a view shows. ``currency`` is ``None`` where no prices are configured."""

    version: str
    host_name: str
    interval_s: float
    simulated_because: str | None = None
    currency: str | None = None


class ViewBuilder:
    """Builds views. It keeps the colours of workloads and the last hour of each GPU. Any thread may use it.

    ``agent_problems`` are those that a report does not show.
    """

    def __init__(self, subject: Subject, agent_problems: Callable[[], tuple[Problem, ...]] = tuple) -> None:
        self._subject = subject
        self._agent_problems = agent_problems
        self._currency = None if subject.currency is None else printable(subject.currency)
        self._recorder = Recorder()
        self._palette = Palette()
        self._lock = threading.Lock()

    def observe(self, report: Report) -> None:
        """Add a cycle to the history."""
        self._recorder.observe(report)

    def build(self, report: Report, *, newest_slot_only: bool = False) -> View:
        """The view of a cycle, with the history of the last hour or its newest slot."""
        with self._lock:
            return self._build(report, newest_slot_only=newest_slot_only)

    def _build(self, report: Report, *, newest_slot_only: bool) -> View:
        workloads = Workloads(report, self._currency)
        colours = self._palette.update(
            [
                Claimant(
                    workloads.key(workload),
                    {part.gpu_uuid for part in workload.reported_gpus},
                    workloads.since_ns(workload),
                )
                for workload in workloads.reported
            ]
        )
        history, held_parts = self._recorder.history(), workloads.held_parts
        gpus: list[GpuView] = []
        if report.pod is None:  # a report for one pod has no figures of whole GPUs
            for gpu in report.gpus:
                uuid = gpu.identity.uuid
                own = [each for each in held_parts if each.part.gpu_uuid == uuid]
                gpus.append(gpu_view(gpu, report.window_s, own, colours, history.gpus.get(uuid, ())))
        subject, rows = self._subject, workloads.rows(colours)
        columns = declared(workload_columns(with_prices=self._currency is not None))
        host, because = printable(subject.host_name), subject.simulated_because
        found = (*problems(report), *self._agent_problems())
        return View(
            at_s=report.wall_ns / 1e9,
            interval_s=subject.interval_s,
            lost_after_s=_MISSED_INTERVALS * subject.interval_s + _GRACE_S,
            version=subject.version,
            title=f"{host}: {_TITLE}" if host else _TITLE,
            host=host,
            about=_about(report),
            simulated=None if because is None else printable(simulation_warning(because)),
            problems=found,
            remedy=remedy(host) if found and because is None else "",
            totals=() if report.pod is not None else _totals(report, columns, rows),
            gpus=tuple(gpus),
            no_gpus="No GPU could be read." if report.pod is None else "",
            gpu_columns=declared(GPU_COLUMNS),
            columns=columns,
            part_columns=declared(PART_COLUMNS),
            process_columns=declared(PROCESS_COLUMNS),
            sort=DEFAULT_SORT,
            workloads=rows,
            no_workloads=_none(report, "workload", "workloads"),
            no_processes=_none(report, "process", "processes"),
            no_matches="No workload matches this filter.",
            words=words(len(rows)),
            plot_span_s=SLOTS * SLOT_S,
            plot_gap_s=_GAP_SLOTS * max(subject.interval_s, SLOT_S),
            history=newest(history) if newest_slot_only else history,
        )


def _about(report: Report) -> tuple[str, ...]:
    """The pod that the report is of, and the driver."""
    pod, driver = report.pod, None if report.driver is None else report.driver.driver_version
    words = ("" if pod is None else f"pod {pod}", "" if driver is None else f"driver {driver}")
    return tuple(printable(word) for word in words if word)


def _none(report: Report, one: str, several: str) -> str:
    """What a table without rows means."""
    if report.pod is not None:
        return f"No {one} of this pod uses a GPU."
    return f"No {one} uses a GPU." if _lists_are_complete(report) else f"The {several} on the GPUs are unknown."


def _lists_are_complete(report: Report) -> bool:
    """Whether the process lists of every GPU were read, so that no process in them means no process on a GPU."""
    readings = [gpu.reading for gpu in report.gpus]
    lists = [part.processes for reading in readings for part in (reading.mig if reading.mig is not None else [reading])]
    return bool(readings) and all(processes is not None for processes in lists)


# ---------------------------------------------------------------------------- totals


def _totals(report: Report, columns: tuple[Column, ...], rows: tuple[WorkloadRow, ...]) -> tuple[Total, ...]:
    """The host in five figures. ``of 2 of 3 GPUs`` says which part of it a figure covers."""
    gpus = report.gpus
    splits = [gpu.memory for gpu in gpus if gpu.memory is not None]
    used = sum(split.used_bytes for split in splits) if splits else None
    limit = sum(split.limit_bytes for split in splits)
    attributed = (used - sum(split.unattributed_bytes for split in splits)) / used if used else None
    powers = [power_w for gpu in gpus if (power_w := gpu_power_w(gpu, report.window_s)) is not None]
    power_w = sum_known(powers)
    silent = sum(not gpu.reading.answered for gpu in gpus)
    covered = "" if len(splits) == len(gpus) else f"{len(splits)} of "
    of_limit = "" if used is None else _listed(f"of {size(limit)}", _coverage(len(splits), gpus))
    return (
        Total(
            "GPUs",
            Cell(str(len(gpus)), len(gpus), "all GPUs that the driver lists, or listed before"),
            f"{silent} without figures" if silent else "",
            covered + plural(len(gpus), "GPU"),
        ),
        Total(
            "Memory in use",
            Cell(size(used), used, "all memory that is neither free nor reserved by the driver, summed over GPUs"),
            of_limit,
            f"{size(None) if used is None else out_of(used, limit)} in use",
        ),
        Total(
            "Attributed",
            Cell(percent(attributed), attributed, "memory in use that is measured or inferred to belong to a workload"),
            "of the memory in use",
            f"{percent(attributed)} attributed",
        ),
        Total(
            "Power",
            Cell(watts(power_w), power_w, "summed over GPUs: of each the mean since the last sample"),
            _coverage(len(powers), gpus),
            watts(power_w) + (f" of {len(powers)}" if powers and len(powers) != len(splits) else ""),
        ),
        _held_while_idle(report, columns, rows),
    )


def _coverage(count: int, gpus: tuple[GpuReport, ...]) -> str:
    """How many GPUs a figure covers; empty if all or none."""
    return f"of {count} of {plural(len(gpus), 'GPU')}" if 0 < count < len(gpus) else ""


def _listed(*texts: str) -> str:
    return ", ".join(filter(None, texts))


def _held_while_idle(report: Report, columns: tuple[Column, ...], rows: tuple[WorkloadRow, ...]) -> Total:
    """The memory of idle workloads, and the memory of workloads whose state is undecided."""
    at = [column.key for column in columns].index("memory")
    # An allocated workload holds nothing, and does not show that states of others are decided.
    present = [row for row in rows if row.state not in {"ended", "allocated"}]
    idle = [row for row in present if row.state == "idle"]
    undecided = [row for row in present if row.state in {"unknown", "none"}]
    is_known = len(undecided) < len(present) if present else _lists_are_complete(report)
    held, open_ = _sum_cells(idle, at), _sum_cells(undecided, at)
    value = (held or 0) if is_known else None
    brief = f"{size(value)} held idle" + (f" by {len(idle)}" if idle else "")
    if undecided and not (open_ is None and not is_known):
        brief += f", {len(undecided) if open_ is None else size(open_)} undecided"
    qualifier = _listed(
        f"by {plural(len(idle), 'workload')}" if idle else "", f"{size(open_)} undecided" if undecided else ""
    )
    reason = "memory of workloads that hold it and do no work; for undecided ones that is unknown so far"
    return Total("Held while idle", Cell(size(value), value, reason), qualifier, brief)


def _sum_cells(rows: list[WorkloadRow], at: int) -> float | None:
    return sum_known(value for row in rows if isinstance(value := row.cells[at].value, int | float))


# ---------------------------------------------------------------------------- colours

COLOURS: Final = 8
"""The number of colours of the page, and of styles of ``top``."""


class Claimant(NamedTuple):
    """A workload that needs a colour: its key, the GPUs it is on, and since when (Unix time in ns)."""

    key: str
    gpus: Collection[str]
    since_ns: int


class Palette:
    """Assigns colours. A workload keeps its colour; workloads on one GPU differ while there are enough colours."""

    def __init__(self) -> None:
        self._colours: dict[str, int] = {}

    def update(self, workloads: Sequence[Claimant]) -> dict[str, int]:
        """The colour of each workload by key. A new one gets the colour its key asks for, or one less used on its GPUs.

        Older workloads come first, so that none gives way to a newer one.
        """
        present = {workload.key for workload in workloads}
        self._colours = {key: colour for key, colour in self._colours.items() if key in present}
        uses: dict[str, Counter[int]] = {uuid: Counter() for workload in workloads for uuid in workload.gpus}
        new = [workload for workload in workloads if workload.key not in self._colours]
        for workload in workloads:
            if workload.key in self._colours:
                self._count(workload, uses)
        for workload in sorted(new, key=lambda each: (each.since_ns, each.key)):
            first = crc32(workload.key.encode("utf-8", "replace"))
            choices = [(first + step) % COLOURS for step in range(COLOURS)]
            self._colours[workload.key] = min(
                choices, key=lambda colour: max((uses[uuid][colour] for uuid in workload.gpus), default=0)
            )
            self._count(workload, uses)
        return dict(self._colours)

    def _count(self, workload: Claimant, uses: dict[str, Counter[int]]) -> None:
        for uuid in set(workload.gpus):
            uses[uuid][self._colours[workload.key]] += 1
