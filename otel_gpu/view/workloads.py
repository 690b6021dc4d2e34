"""Workloads and their processes as rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from otel_gpu.model import (
    GpuReport,
    GpuState,
    MethodEnergy,
    ProcessReport,
    Report,
    Totals,
    WorkloadGpu,
    WorkloadReport,
    pod_uid_of,
    workload_state,
)
from otel_gpu.view import reasons
from otel_gpu.view.columns import (
    PART_COLUMNS,
    PROCESS_COLUMNS,
    STATE,
    Figures,
    Part,
    cells,
    place_of,
    workload_columns,
)
from otel_gpu.view.model import Cell, Detail, ProcessRow, WorkloadRow
from otel_gpu.view.names import is_hash, kind_and_origin, name_key, workload_names
from otel_gpu.view.terminal import printable
from otel_gpu.view.text import UNKNOWN, money, percent, size, state_text

# ---------------------------------------------------------------------------- figures

Number = TypeVar("Number", int, float)


def sum_known(values: Iterable[Number | None]) -> Number | None:
    """The sum of the known values; ``None`` if there are none."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None


def _sum_energy(energies: Sequence[MethodEnergy]) -> MethodEnergy:
    return MethodEnergy(
        sum_known(each.measured_mj for each in energies),
        sum_known(each.estimated_mj for each in energies),
        sum_known(each.inferred_mj for each in energies),
    )


def _idle_so_far_s(use: WorkloadGpu | ProcessReport, gpu: GpuReport | None) -> float | None:
    """``None`` where a 0 would not mean "never idle": there is no utilisation data, or nothing is decided yet."""
    totals = use.totals
    if totals is None or not (totals.idle_us or _can_be_idle(use, gpu)):
        return None
    return totals.idle_us / 1e6


def _can_be_idle(use: WorkloadGpu | ProcessReport, gpu: GpuReport | None) -> bool:
    """Whether there are figures that show work, so that no idle time means work."""
    undecided = use.active and use.state is GpuState.UNKNOWN
    return not undecided and gpu is not None and gpu.has_utilization


def _energy_so_far(totals: Totals | None, gpu: GpuReport | None) -> MethodEnergy:
    """Without figures where 0 would only mean that nothing is counted."""
    if totals is None or not (totals.energy.total_mj or (gpu is not None and gpu.has_energy)):
        return MethodEnergy()
    measured, estimated, inferred = totals.energy
    return MethodEnergy(measured or 0, estimated or 0, inferred or 0)


def _since_ns(uses: Iterable[WorkloadGpu | ProcessReport], report: Report) -> int:
    return min((use.totals.since_ns for use in uses if use.totals is not None), default=report.epoch_ns)


# ---------------------------------------------------------------------------- rows


class HeldPart(NamedTuple):
    """A workload and its part of one GPU or MIG instance."""

    key: str
    name: str
    part: WorkloadGpu


class Workloads:
    """The rows of a report. ``held_parts`` are the parts of GPUs that workloads hold now."""

    def __init__(self, report: Report, currency: str | None) -> None:
        self._report, self._currency = report, currency
        self._columns = workload_columns(with_prices=currency is not None)
        self._gpus = {gpu.identity.uuid: gpu for gpu in report.gpus}
        self.reported = [workload for workload in report.workloads if workload.reported_gpus]
        self._names = {key: printable(name) for key, name in workload_names(self.reported).items()}
        self._processes: dict[str, list[ProcessReport]] = {}
        for process in report.processes:
            if process.is_reported:
                key = f"{process.naming} {' '.join(process.workload.key)}"
                self._processes.setdefault(key, []).append(process)

    @staticmethod
    def key(workload: WorkloadReport) -> str:
        """Identifies a row: a renamed workload is another row."""
        return printable(f"{workload.naming} {' '.join(workload.ref.key)}")

    def since_ns(self, workload: WorkloadReport) -> int:
        """The beginning of its totals."""
        return _since_ns(workload.reported_gpus, self._report)

    @property
    def held_parts(self) -> list[HeldPart]:
        """The parts of GPUs that workloads hold now."""
        return [
            HeldPart(self.key(workload), self._names[name_key(workload)], part)
            for workload in self.reported
            for part in workload.active_gpus
        ]

    def rows(self, colours: Mapping[str, int]) -> tuple[WorkloadRow, ...]:
        """A row for each workload, in the order of the report."""
        return tuple(self._row(workload, colours) for workload in self.reported)

    def _row(self, workload: WorkloadReport, colours: Mapping[str, int]) -> WorkloadRow:
        key, name = self.key(workload), self._names[name_key(workload)]
        figures = self._figures(workload, name)
        processes = sorted(
            self._processes.get(f"{workload.naming} {' '.join(workload.ref.key)}", ()),
            key=lambda each: (-1 if each.memory_bytes is None else -each.memory_bytes, each.key),
        )
        return WorkloadRow(
            key=key,
            id=printable(workload.ref.id),
            name=name,
            full_name=printable(workload.display_name),
            colour=None if figures.ended else colours.get(key, 0),
            state=figures.row_state,
            tone=figures.tone,
            gpus=tuple(sorted({part.gpu_index for part in workload.reported_gpus if part.gpu_index is not None})),
            words=_filter_words(workload, figures.row_state, processes),
            cells=cells(self._columns, figures),
            identity=_identity(workload),
            parts=tuple(self._part_texts(part) for part in sorted(workload.reported_gpus, key=place_of)),
            explanation=(*self._explanation(figures), *_details_by_gpu(workload)),
            processes=tuple(map(self._process_row, processes)),
            no_processes="" if processes else "This workload has no process on a GPU.",
        )

    def _explanation(self, figures: Figures) -> list[Detail]:
        """How the figures were obtained: the state first."""
        state = STATE.cell(figures)
        details = [Detail(STATE.column.name, f"{state.text} ({state.reason})")]
        for column, cell in ((each.column, each.cell(figures)) for each in self._columns):
            if column.is_number:
                details.append(Detail(column.name, cell.reason or ""))
        return details

    def _figures(self, workload: WorkloadReport, name: str) -> Figures:
        parts = workload.reported_gpus
        measured_bytes = sum_known(part.measured_bytes for part in parts)
        inferred_bytes = sum_known(part.inferred_bytes for part in parts)
        held_bytes = sum_known((measured_bytes, inferred_bytes))
        confidences = [part.confidence for part in parts if part.inferred_bytes]
        sure = None if None in confidences else min((each for each in confidences if each is not None), default=None)
        memory = Cell(
            ("~ " if inferred_bytes else "") + size(held_bytes),
            held_bytes,
            reasons.memory(measured_bytes, inferred_bytes, sure),
        )
        active = workload.active_gpus
        state = workload_state(part.state for part in active if part.state is not None)
        spans = [part.idle_s for part in active if part.state is GpuState.IDLE]
        known_s = [idle_s for idle_s in spans if idle_s is not None]
        idle_s = [_idle_so_far_s(part, self._gpus.get(part.gpu_uuid)) for part in parts]
        return Figures(
            name=Cell(name, name.lower()),
            memory=memory,
            places=tuple(map(place_of, parts)),
            sm_ratio=sum_known(part.sm_ratio for part in parts),
            window_s=self._report.window_s,
            window=_sum_energy([part.energy for part in parts]),
            so_far=_sum_energy([_energy_so_far(part.totals, self._gpus.get(part.gpu_uuid)) for part in parts]),
            state=state,
            idle_now_s=min(known_s) if state is GpuState.IDLE and known_s and len(known_s) == len(spans) else None,
            idle_s=sum_known(idle_s),
            idle_places=sum(each is not None for each in idle_s),
            idle_mj=sum_known(part.totals.idle_mj for part in parts if part.totals is not None),
            since_ns=self.since_ns(workload),
            ended=not active,
            origin=Cell(origin := printable(kind_and_origin(workload)), origin.lower()),
            cost=self._cost(workload),
        )

    def _part_texts(self, part: WorkloadGpu) -> tuple[str, ...]:
        return tuple(cell.text for cell in cells(PART_COLUMNS, Part(part, self._report.window_s)))

    def _process_row(self, process: ProcessReport) -> ProcessRow:
        gpu, place = self._gpus.get(process.gpu_uuid), place_of(process)
        idle_s = _idle_so_far_s(process, gpu)
        name = None if process.name is None else printable(process.name)
        figures = Figures(
            name=Cell(name or UNKNOWN, name),
            memory=Cell(
                size(process.memory_bytes), process.memory_bytes, reasons.memory(process.memory_bytes, None, None)
            ),
            places=(place,),
            sm_ratio=process.sm_ratio,
            window_s=self._report.window_s,
            window=process.energy,
            so_far=_energy_so_far(process.totals, gpu),
            state=process.state,
            idle_now_s=process.idle_s if process.state is GpuState.IDLE else None,
            idle_s=idle_s,
            idle_places=0 if idle_s is None else 1,
            idle_mj=None if process.totals is None else process.totals.idle_mj,
            since_ns=_since_ns([process], self._report),
            ended=not process.active,
            pid=process.key.pid,
        )
        return ProcessRow(
            key=f"{process.key.pid} {process.key.start_ticks} {process.gpu_uuid} {process.mig_uuid}",
            state=figures.row_state,
            tone=figures.tone,
            cells=cells(PROCESS_COLUMNS, figures),
        )

    def _cost(self, workload: WorkloadReport) -> Cell:
        """The cost; an empty cell without prices."""
        if self._currency is None:
            return Cell("")
        parts = workload.reported_gpus
        amount = sum_known(_cost_of(part) for part in parts)
        idle_amount = sum_known(_idle_cost_of(part, self._gpus.get(part.gpu_uuid)) for part in parts)
        return Cell(money(amount, self._currency), amount, reasons.cost(amount, idle_amount, self._currency))


def _cost_of(part: WorkloadGpu) -> float | None:
    """``None`` where 0 would only mean that nothing is decided yet."""
    undecided = part.active and part.state is GpuState.UNKNOWN
    amounts = [cost.amount for cost in part.costs]
    return sum(amounts) if amounts and (not undecided or any(amounts)) else None


def _idle_cost_of(part: WorkloadGpu, gpu: GpuReport | None) -> float | None:
    if _cost_of(part) is None:
        return None
    amount = sum(cost.amount for cost in part.costs if cost.state is GpuState.IDLE)
    return amount if amount or _can_be_idle(part, gpu) else None


def _identity(workload: WorkloadReport) -> tuple[Detail, ...]:
    """All names of the workload, in full."""
    names = workload.names
    found = [("Name", workload.display_name)]
    if names is not None:
        found += [("Namespace", names.namespace or ""), ("Pod", names.pod or "")]
    found.append(("Pod uid", pod_uid_of(workload.ref, names) or ""))
    if names is not None:
        found += [("Container", names.container or ""), ("Image", names.image or "")]
    found.append(("Id", workload.ref.id))
    return tuple(Detail(name, printable(text)) for name, text in found if text)


def _details_by_gpu(workload: WorkloadReport) -> tuple[Detail, ...]:
    """What the workload does on each GPU, if it is on several."""
    parts = sorted(workload.reported_gpus, key=place_of)
    if len(parts) < 2:
        return ()
    details = []
    for part in parts:
        memory = [f"{size(part.measured_bytes)} measured"]
        memory += [f"{size(part.inferred_bytes)} inferred"] if part.inferred_bytes else []
        state = state_text(None if part.state is None else part.state.value, None)
        text = f"{', '.join(memory)}; SM {percent(part.sm_ratio)}; {state}"
        details.append(Detail(f"GPU {place_of(part).text}", text))
    return tuple(details)


def _filter_words(workload: WorkloadReport, state: str, processes: Sequence[ProcessReport]) -> str:
    """What a filter finds, in lower case. Ids are left out: their digits are random, and contain any short word."""
    names = workload.names
    words: list[str | None] = [] if is_hash(workload) else [workload.display_name]
    if names is not None:
        words += [names.namespace, names.pod, names.container, names.image]
    words += [workload.ref.kind.value, None if state == "none" else state, "gpu"]
    words += [part.mig_profile for part in workload.reported_gpus]
    words += [process.name for process in processes]
    return printable(" ".join(word for word in words if word).lower())
