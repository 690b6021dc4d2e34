"""Workloads and their processes as rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from otel_gpu.model import (
    GpuReport,
    GpuState,
    MethodEnergy,
    ProcessReport,
    Report,
    Totals,
    WorkloadGpu,
    WorkloadReport,
    workload_state,
)
from otel_gpu.view import reasons
from otel_gpu.view.model import Cell, Column, Detail, ProcessRow, Sort, WorkloadRow
from otel_gpu.view.names import is_hash, kind_and_origin, name_key, workload_names
from otel_gpu.view.terminal import printable
from otel_gpu.view.text import (
    UNKNOWN,
    gpu_span,
    joules,
    money,
    percent,
    power_w,
    signed,
    size,
    state_text,
    watts,
)
from otel_gpu.view.tones import Tone

_TONES: Final = {
    GpuState.BUSY: Tone.GOOD,
    GpuState.IDLE: Tone.WARN,
    GpuState.ALLOCATED: Tone.WARN,
    GpuState.UNKNOWN: Tone.SOFT,
}

_MEANINGS: Final = {
    "gpu": "The GPUs it is on, by index; a MIG instance by its profile",
    "memory": "GPU memory it holds: by the driver's process lists or, where they do not have it, inferred",
    "sm": "Share of a GPU's SMs that work for it, in the last window; summed over GPUs",
    "power": "Its part of the GPU's power, mean of the last window",
    "energy": "Its part of the GPU's energy so far",
    "idle": "Time so far in which it held memory and did no work; summed over several GPUs (GPU-m)",
    "cost": "So far, at the configured prices",
    "state": "Busy, idle and for how long, allocated (granted, without a process), or unknown, in the last sample",
}


def columns(currency: str | None) -> tuple[Column, ...]:
    """The columns of workloads; without prices there is no cost."""
    cost = () if currency is None else (Column("cost", "Cost", _MEANINGS["cost"], is_number=True),)
    name = Column("name", "Workload", "Container, job, unit or the host itself; open it for its processes")
    return (name, *_USE_COLUMNS, *cost, Column("state", "State", _MEANINGS["state"]))


_USE_COLUMNS: Final = (
    Column("gpu", "GPU", _MEANINGS["gpu"]),
    Column("memory", "Memory", _MEANINGS["memory"], is_number=True),
    Column("sm", "SM", _MEANINGS["sm"], is_number=True),
    Column("power", "Power", _MEANINGS["power"], is_number=True),
    Column("energy", "Energy", _MEANINGS["energy"], is_number=True),
    Column("idle", "Idle", _MEANINGS["idle"], is_number=True),
)

PART_COLUMNS: Final = (
    Column("gpu", "GPU", "The GPU, by its index; a MIG instance by its profile"),
    Column("measured", "Memory", "GPU memory by the driver's process lists", is_number=True),
    Column("inferred", "Inferred", "GPU memory that they do not have, with the confidence", is_number=True),
    Column("sm", "SM", "Share of the GPU's SMs that work for it, in the last window", is_number=True),
    Column("power", "Power", _MEANINGS["power"], is_number=True),
    Column("state", "State", _MEANINGS["state"]),
)
"""The columns of a workload's parts of GPUs."""

DEFAULT_SORT: Final = Sort("memory", descending=True)

PROCESS_COLUMNS: Final = (
    Column("pid", "PID", "Its number on the host", is_number=True),
    Column("name", "Process", "Its executable"),
    *_USE_COLUMNS,
    Column("state", "State", _MEANINGS["state"]),
)


# ---------------------------------------------------------------------------- places


class Place(NamedTuple):
    """A GPU or one of its MIG instances. Places sort as GPUs are numbered, one without a number last."""

    has_no_number: bool
    number: int
    profile: str

    @property
    def text(self) -> str:
        """A GPU by its index, an instance by its GPU's and its profile."""
        number = "?" if self.has_no_number else str(self.number)
        return f"{number} {self.profile}" if self.profile else number

    @property
    def sort_key(self) -> str:
        """Text that sorts like the place."""
        return f"{'?' if self.has_no_number else f'{self.number:09}'} {self.profile}"

    def follows(self, other: Place) -> bool:
        """Whether both are whole GPUs and this is the next one."""
        return not self.has_no_number and not self.profile and other == (False, self.number - 1, "")


def place_of(use: WorkloadGpu | ProcessReport) -> Place:
    """The place of a workload's part or of a process."""
    return Place(use.gpu_index is None, use.gpu_index or 0, printable(use.mig_profile or ""))


def places_text(places: Iterable[Place]) -> str:
    """All places, each once; three GPUs or more in a row are written as ``0-2``."""
    runs: list[list[Place]] = []
    for place in sorted(set(places)):
        if runs and place.follows(runs[-1][-1]):
            runs[-1].append(place)
        else:
            runs.append([place])
    texts = ([f"{run[0].text}-{run[-1].text}"] if len(run) > 2 else [place.text for place in run] for run in runs)
    return ", ".join(text for run in texts for text in run)


def _places_cell(places: Sequence[Place]) -> Cell:
    return Cell(places_text(places), ",".join(place.sort_key for place in sorted(places)))


# ---------------------------------------------------------------------------- figures


@dataclass(frozen=True, slots=True)
class _Figures:
    """The figures of a workload or process. Idle time is summed over ``idle_places`` places."""

    memory: Cell
    places: tuple[Place, ...]
    sm_ratio: float | None
    window: MethodEnergy
    so_far: MethodEnergy
    state: GpuState | None
    idle_now_s: float | None
    idle_s: float | None
    idle_places: int
    idle_mj: int | None
    since_ns: int
    ended: bool

    @property
    def row_state(self) -> str:
        return "ended" if self.ended else self.state or "none"

    @property
    def tone(self) -> Tone:
        return Tone.SOFT if self.ended else Tone.NONE if self.state is None else _TONES[self.state]

    def cells(self, window_s: float | None) -> list[Cell]:
        """In the order of ``_USE_COLUMNS``."""
        mean_w, energy_mj = power_w(self.window, window_s), self.so_far.total_mj
        idle_reason = reasons.idle(
            self.idle_s,
            places=self.idle_places,
            now_s=self.idle_now_s,
            energy_mj=None if energy_mj is None else self.idle_mj,
            since_ns=self.since_ns,
        )
        return [
            _places_cell(self.places),
            self.memory,
            Cell(percent(self.sm_ratio), self.sm_ratio, reasons.sm(self.sm_ratio, len(self.places))),
            Cell(signed(watts(mean_w), self.window), mean_w, reasons.power(self.window, window_s)),
            Cell(signed(joules(energy_mj), self.so_far), energy_mj, reasons.energy(self.so_far, self.since_ns)),
            Cell(gpu_span(self.idle_s, self.idle_places), self.idle_s, idle_reason),
        ]

    @property
    def state_cell(self) -> Cell:
        text = state_text(self.state, self.idle_now_s, active=not self.ended)
        return Cell(text, "ended" if self.ended else self.state, reasons.state(self.state))


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
    """``None`` where 0 would only mean that nothing shows whether it works, or that nothing is decided yet."""
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


class Holding(NamedTuple):
    """A workload and its part of one GPU or MIG instance."""

    key: str
    name: str
    part: WorkloadGpu


class Workloads:
    """The rows of a report. ``holdings`` are the parts of GPUs that workloads hold now."""

    def __init__(self, report: Report, currency: str | None) -> None:
        self._report, self._currency = report, currency
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
    def holdings(self) -> list[Holding]:
        """The parts of GPUs that workloads hold now."""
        return [
            Holding(self.key(workload), self._names[name_key(workload)], part)
            for workload in self.reported
            for part in workload.active_gpus
        ]

    def rows(self, colours: Mapping[str, int]) -> tuple[WorkloadRow, ...]:
        """A row for each workload, in the order of the report."""
        return tuple(self._row(workload, colours) for workload in self.reported)

    def _row(self, workload: WorkloadReport, colours: Mapping[str, int]) -> WorkloadRow:
        key, name = self.key(workload), self._names[name_key(workload)]
        figures = self._figures(workload)
        processes = sorted(
            self._processes.get(f"{workload.naming} {' '.join(workload.ref.key)}", ()),
            key=lambda each: (-1 if each.memory_bytes is None else -each.memory_bytes, each.key),
        )
        cells = (
            Cell(name, name.lower()),
            *figures.cells(self._report.window_s),
            *self._cost(workload),
            figures.state_cell,
        )
        return WorkloadRow(
            key=key,
            id=printable(workload.ref.id),
            name=name,
            full_name=printable(workload.display_name),
            origin=printable(kind_and_origin(workload)),
            colour=None if figures.ended else colours.get(key, 0),
            state=figures.row_state,
            tone=figures.tone,
            gpus=tuple(sorted({part.gpu_index for part in workload.reported_gpus if part.gpu_index is not None})),
            words=_filter_words(workload, figures.row_state, processes),
            cells=cells,
            identity=_identity(workload),
            parts=tuple(self._part(part) for part in sorted(workload.reported_gpus, key=place_of)),
            explanation=(*self._explanation(cells), *_details_by_gpu(workload)),
            processes=tuple(map(self._process_row, processes)),
            no_processes="" if processes else "No process of it is on a GPU.",
        )

    def _explanation(self, cells: Sequence[Cell]) -> list[Detail]:
        """How the figures were obtained: the state first."""
        named = list(zip(columns(self._currency), cells, strict=True))
        column, state = named[-1]
        of_state = Detail(column.name, f"{state.text} ({state.reason})")
        return [of_state, *(Detail(column.name, cell.reason or "") for column, cell in named if column.is_number)]

    def _figures(self, workload: WorkloadReport) -> _Figures:
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
        return _Figures(
            memory=memory,
            places=tuple(map(place_of, parts)),
            sm_ratio=sum_known(part.sm_ratio for part in parts),
            window=_sum_energy([part.energy for part in parts]),
            so_far=_sum_energy([_energy_so_far(part.totals, self._gpus.get(part.gpu_uuid)) for part in parts]),
            state=state,
            idle_now_s=min(known_s) if state is GpuState.IDLE and known_s and len(known_s) == len(spans) else None,
            idle_s=sum_known(idle_s),
            idle_places=sum(each is not None for each in idle_s),
            idle_mj=sum_known(part.totals.idle_mj for part in parts if part.totals is not None),
            since_ns=self.since_ns(workload),
            ended=not active,
        )

    def _part(self, part: WorkloadGpu) -> tuple[str, ...]:
        """In the order of ``PART_COLUMNS``."""
        inferred = ""
        if part.inferred_bytes:
            sure = "" if part.confidence is None else f" {percent(part.confidence)}"
            inferred = f"~ {size(part.inferred_bytes)}{sure}"
        return (
            place_of(part).text,
            size(part.measured_bytes),
            inferred,
            percent(part.sm_ratio),
            signed(watts(power_w(part.energy, self._report.window_s)), part.energy),
            state_text(part.state, part.idle_s, active=part.active),
        )

    def _process_row(self, process: ProcessReport) -> ProcessRow:
        gpu, place = self._gpus.get(process.gpu_uuid), place_of(process)
        idle_s = _idle_so_far_s(process, gpu)
        figures = _Figures(
            memory=Cell(
                size(process.memory_bytes), process.memory_bytes, reasons.memory(process.memory_bytes, None, None)
            ),
            places=(place,),
            sm_ratio=process.sm_ratio,
            window=process.energy,
            so_far=_energy_so_far(process.totals, gpu),
            state=process.state,
            idle_now_s=process.idle_s if process.state is GpuState.IDLE else None,
            idle_s=idle_s,
            idle_places=0 if idle_s is None else 1,
            idle_mj=None if process.totals is None else process.totals.idle_mj,
            since_ns=_since_ns([process], self._report),
            ended=not process.active,
        )
        pid, name = process.key.pid, None if process.name is None else printable(process.name)
        return ProcessRow(
            key=f"{pid} {process.key.start_ticks} {process.gpu_uuid} {process.mig_uuid}",
            state=figures.row_state,
            tone=figures.tone,
            cells=(
                Cell(str(pid), pid),
                Cell(name or UNKNOWN, name),
                *figures.cells(self._report.window_s),
                figures.state_cell,
            ),
        )

    def _cost(self, workload: WorkloadReport) -> tuple[Cell, ...]:
        """The cell of the cost column, if there is one."""
        if self._currency is None:
            return ()
        parts = workload.reported_gpus
        amount = sum_known(_cost_of(part) for part in parts)
        idle_amount = sum_known(_idle_cost_of(part, self._gpus.get(part.gpu_uuid)) for part in parts)
        reason = reasons.cost(amount, idle_amount, self._currency)
        return (Cell(money(amount, self._currency), amount, reason),)


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
    found.append(("Pod uid", (names is not None and names.pod_uid) or workload.ref.pod_uid or ""))
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
