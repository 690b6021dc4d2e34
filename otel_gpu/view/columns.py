"""The columns of GPUs, of workloads, their processes and their parts of GPUs: each declared once, with its value.

The page, ``top`` and the table of ``once`` have these columns. A new column is one entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from otel_gpu.model import GpuReport, GpuState, MethodEnergy, MigReport, ProcessReport, WorkloadGpu
from otel_gpu.view import reasons
from otel_gpu.view.model import Cell, Column, Sort
from otel_gpu.view.terminal import Tone, printable
from otel_gpu.view.text import (
    UNKNOWN,
    celsius,
    gpu_power_w,
    gpu_span,
    joules,
    model,
    out_of,
    percent,
    power_w,
    signed,
    size,
    state_text,
    state_with_reason,
    watts,
)

T = TypeVar("T")

_TONES: Final = {
    GpuState.BUSY: Tone.GOOD,
    GpuState.IDLE: Tone.WARN,
    GpuState.ALLOCATED: Tone.WARN,
    GpuState.UNKNOWN: Tone.SOFT,
}


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


# ---------------------------------------------------------------------------- what rows are made of


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a workload or process in the window of ``window_s``. Idle time is summed over ``idle_places``.

    Only a process has a ``pid``, only a workload an ``origin``, and only one of an agent with prices a ``cost``.
    """

    name: Cell
    memory: Cell
    places: tuple[Place, ...]
    sm_ratio: float | None
    window_s: float | None
    window: MethodEnergy
    so_far: MethodEnergy
    state: GpuState | None
    idle_now_s: float | None
    idle_s: float | None
    idle_places: int
    idle_mj: int | None
    since_ns: int
    ended: bool
    pid: int | None = None
    origin: Cell = Cell("")  # noqa: RUF009 - a frozen tuple
    cost: Cell = Cell("")  # noqa: RUF009 - a frozen tuple

    @property
    def row_state(self) -> str:
        """The state of the row: ``ended``, or the state of its figures, or ``none``."""
        return "ended" if self.ended else self.state or "none"

    @property
    def tone(self) -> Tone:
        """How the state is drawn."""
        return Tone.SOFT if self.ended else Tone.NONE if self.state is None else _TONES[self.state]


class Device(NamedTuple):
    """A GPU, or one of its MIG instances, in the window of ``window_s``."""

    gpu: GpuReport
    instance: MigReport | None
    window_s: float | None


class Part(NamedTuple):
    """A workload's part of one GPU or MIG instance, in the window of ``window_s``."""

    use: WorkloadGpu
    window_s: float | None


# ---------------------------------------------------------------------------- the columns


@dataclass(frozen=True, slots=True)
class ColumnOf(Generic[T]):
    """A column of rows made of ``T``, and its cell in a row.

    ``shortcut`` is the key of ``top`` that sorts by it. A ``is_total`` counts since the start, and not in the window.
    ``needs_prices``: only an agent with prices has it.
    """

    column: Column
    cell: Callable[[T], Cell]
    shortcut: str = ""
    is_total: bool = False
    needs_prices: bool = False


def _gpu(of: Figures) -> Cell:
    return Cell(places_text(of.places), ",".join(place.sort_key for place in sorted(of.places)))


def _sm(of: Figures) -> Cell:
    return Cell(percent(of.sm_ratio), of.sm_ratio, reasons.sm(of.sm_ratio, len(of.places)))


def _power(of: Figures) -> Cell:
    mean_w = power_w(of.window, of.window_s)
    return Cell(signed(watts(mean_w), of.window), mean_w, reasons.power(of.window, of.window_s))


def _energy(of: Figures) -> Cell:
    energy_mj = of.so_far.total_mj
    return Cell(signed(joules(energy_mj), of.so_far), energy_mj, reasons.energy(of.so_far, of.since_ns))


def _idle(of: Figures) -> Cell:
    reason = reasons.idle(
        of.idle_s,
        places=of.idle_places,
        now_s=of.idle_now_s,
        energy_mj=None if of.so_far.total_mj is None else of.idle_mj,
        since_ns=of.since_ns,
    )
    return Cell(gpu_span(of.idle_s, of.idle_places), of.idle_s, reason)


def _state(of: Figures) -> Cell:
    text = state_text(of.state, of.idle_now_s, active=not of.ended)
    return Cell(text, "ended" if of.ended else of.state, reasons.state(of.state))


_POWER_MEANING: Final = "The workload's power, mean of the last window"
STATE: Final[ColumnOf[Figures]] = ColumnOf(
    Column(
        "state",
        "State",
        "State in the last sample: busy, idle (for how long), allocated (granted, no process) or unknown",
    ),
    _state,
)

_USE: Final[tuple[ColumnOf[Figures], ...]] = (
    ColumnOf(Column("gpu", "GPU", "GPUs in use, by index; a MIG instance by its profile"), _gpu, "g"),
    ColumnOf(
        Column(
            "memory",
            "Memory",
            "GPU memory held: measured by the driver's process lists, or inferred where these have no figure",
            is_number=True,
        ),
        lambda of: of.memory,
        "m",
    ),
    ColumnOf(
        Column(
            "sm",
            "SM",
            "Share of a GPU's SMs in use, mean of the last window; summed over GPUs",
            is_number=True,
        ),
        _sm,
        "s",
    ),
    ColumnOf(Column("power", "Power", _POWER_MEANING, is_number=True), _power, "w"),
    ColumnOf(Column("energy", "Energy", "The workload's energy so far", is_number=True), _energy, "e", is_total=True),
    ColumnOf(
        Column(
            "idle",
            "Idle",
            "Time so far with memory held and no work; summed over several GPUs (GPU-m)",
            is_number=True,
        ),
        _idle,
        "i",
        is_total=True,
    ),
)
"""The columns that workloads and processes have."""

WORKLOAD_COLUMNS: Final[tuple[ColumnOf[Figures], ...]] = (
    ColumnOf(
        Column("name", "Workload", "Container, job, unit or the host itself; open it for its processes"),
        lambda of: of.name,
        "n",
    ),
    ColumnOf(Column("origin", "Where", "Kind of the workload, and its pod or image"), lambda of: of.origin),
    *_USE,
    ColumnOf(
        Column("cost", "Cost", "So far, at the configured prices", is_number=True),
        lambda of: of.cost,
        "c",
        is_total=True,
        needs_prices=True,
    ),
    STATE,
)

PROCESS_COLUMNS: Final[tuple[ColumnOf[Figures], ...]] = (
    ColumnOf(Column("pid", "PID", "Process id on the host", is_number=True), lambda of: Cell(str(of.pid), of.pid)),
    ColumnOf(Column("name", "Process", "Name of the executable"), lambda of: of.name),
    *_USE,
    STATE,
)


def _inferred(part: Part) -> Cell:
    use = part.use
    if not use.inferred_bytes:
        return Cell("")
    sure = "" if use.confidence is None else f" {percent(use.confidence)}"
    return Cell(f"~ {size(use.inferred_bytes)}{sure}")


def _part_power(part: Part) -> Cell:
    return Cell(signed(watts(power_w(part.use.energy, part.window_s)), part.use.energy))


def _part_state(part: Part) -> Cell:
    return Cell(state_text(part.use.state, part.use.idle_s, active=part.use.active))


PART_COLUMNS: Final[tuple[ColumnOf[Part], ...]] = (
    ColumnOf(
        Column("gpu", "GPU", "The GPU, by its index; a MIG instance by its profile"),
        lambda part: Cell(place_of(part.use).text),
    ),
    ColumnOf(
        Column("measured", "Memory", "GPU memory by the driver's process lists", is_number=True),
        lambda part: Cell(size(part.use.measured_bytes)),
    ),
    ColumnOf(
        Column("inferred", "Inferred", "GPU memory that these lists do not show, with the confidence", is_number=True),
        _inferred,
    ),
    ColumnOf(
        Column("sm", "SM", "Share of the GPU's SMs in use, mean of the last window", is_number=True),
        lambda part: Cell(percent(part.use.sm_ratio)),
    ),
    ColumnOf(Column("power", "Power", _POWER_MEANING, is_number=True), _part_power),
    ColumnOf(STATE.column, _part_state),
)
"""The columns of a workload's parts of GPUs."""


def _gpu_number(device: Device) -> Cell:
    number = device.gpu.identity.index
    return Cell(str(number), number)


def _device_name(device: Device) -> Cell:
    if device.instance is not None:
        return Cell(f"└ {printable(device.instance.profile or 'MIG')}")
    return Cell(printable(model(device.gpu.identity.name)))


def _device_memory(device: Device) -> Cell:
    split = device.gpu.memory if device.instance is None else device.instance.memory
    if split is None:
        return Cell(UNKNOWN, None, reasons.USED_MEMORY)
    return Cell(out_of(split.used_bytes, split.limit_bytes), split.used_bytes, reasons.USED_MEMORY)


def _gpu_utilization(device: Device) -> Cell:
    ratio = device.gpu.reading.gpu_ratio
    return Cell(percent(ratio), ratio, reasons.FROM_DRIVER)


def _gpu_power(device: Device) -> Cell:
    mean_w = gpu_power_w(device.gpu, device.window_s)
    return Cell(watts(mean_w), mean_w, reasons.gpu_power(device.gpu))


def _gpu_temperature(device: Device) -> Cell:
    temperature_c = device.gpu.reading.temperature_c
    return Cell(celsius(temperature_c), temperature_c, reasons.FROM_DRIVER)


def _gpu_state(device: Device) -> Cell:
    health = device.gpu.reading.health.value
    return Cell(health, health, printable(state_with_reason(health, device.gpu.reading.reason)))


def _of_whole(cell: Callable[[Device], Cell]) -> Callable[[Device], Cell]:
    """An instance has no such figure of its own."""
    return lambda device: cell(device) if device.instance is None else Cell("")


GPU_COLUMNS: Final[tuple[ColumnOf[Device], ...]] = (
    ColumnOf(Column("gpu", "GPU", "The number of the GPU", is_number=True), _of_whole(_gpu_number)),
    ColumnOf(Column("name", "Name", "The model of the GPU, or the profile of the MIG instance"), _device_name),
    ColumnOf(Column("bar", "Memory", "The memory by holder: drawn from the segments of the bar"), lambda _: Cell("")),
    ColumnOf(Column("memory", "Memory", "Memory in use, of all memory", is_number=True, brief="Used"), _device_memory),
    ColumnOf(
        Column("utilization", "Utilisation", "Share of time in which the GPU worked", is_number=True, brief="Util"),
        _of_whole(_gpu_utilization),
    ),
    ColumnOf(Column("power", "Power", "Mean power of the last window", is_number=True), _of_whole(_gpu_power)),
    ColumnOf(
        Column("temperature", "Temperature", "Temperature of the GPU", is_number=True, brief="Temp"),
        _of_whole(_gpu_temperature),
    ),
    ColumnOf(Column("state", "State", "Whether the GPU answers; the reason says it in full"), _of_whole(_gpu_state)),
)
"""The columns of GPUs and of their MIG instances."""

DEFAULT_SORT: Final = Sort("memory", descending=True)


def workload_columns(*, with_prices: bool) -> tuple[ColumnOf[Figures], ...]:
    """The columns of workloads; ``cost`` only with prices."""
    return tuple(each for each in WORKLOAD_COLUMNS if with_prices or not each.needs_prices)


def cells(columns: Iterable[ColumnOf[T]], of: T) -> tuple[Cell, ...]:
    """The cells of a row."""
    return tuple(each.cell(of) for each in columns)


def declared(columns: Iterable[ColumnOf[T]]) -> tuple[Column, ...]:
    """The columns as the view has them."""
    return tuple(each.column for each in columns)
