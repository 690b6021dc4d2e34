"""The view model of one cycle: what the page and ``top`` draw. Every text is complete and printable."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

Summary: TypeAlias = tuple[float, float, float]
"""The samples of one figure in one slot of the history: mean, lowest, highest."""

Slot: TypeAlias = tuple[Summary | None, Summary | None, Summary | None]
"""One GPU in one slot: utilisation (0 to 1), power in watts, memory in use in bytes. An unknown figure is ``None``."""


class History(NamedTuple):
    """Slots of the last hour: their Unix times, and per GPU (by UUID) a slot for each, ``None`` if it was absent."""

    at: tuple[float, ...]
    gpus: dict[str, tuple[Slot | None, ...]]


class Cell(NamedTuple):
    """A figure. ``value`` is the sort key; ``None`` is unknown and sorts last. ``reason`` says how it was obtained."""

    text: str
    value: float | str | None = None
    reason: str | None = None


class Column(NamedTuple):
    """A column of a table. A column of numbers holds no text values."""

    key: str
    name: str
    meaning: str
    is_number: bool = False


class Detail(NamedTuple):
    """A name and a text."""

    name: str
    text: str


class ProcessRow(NamedTuple):
    """One process on one GPU or MIG instance. ``cells`` are in the order of ``View.process_columns``."""

    key: str
    state: str
    cells: tuple[Cell, ...]


class WorkloadRow(NamedTuple):
    """One workload on all its GPUs. ``cells`` are in the order of ``View.columns``.

    ``name`` is unique in the table. ``origin`` is its kind with pod or image. ``state`` is one of ``busy``, ``idle``,
    ``allocated``, ``unknown``, ``ended`` and ``none``. A filter matches ``words``, the beginning of ``id``, and
    ``gpus``, the indices of its GPUs.
    """

    key: str
    id: str
    name: str
    full_name: str
    origin: str
    colour: int
    state: str
    gpus: tuple[int, ...]
    words: str
    cells: tuple[Cell, ...]
    identity: tuple[Detail, ...]
    reasons: tuple[Detail, ...]
    processes: tuple[ProcessRow, ...]
    no_processes: str


class Segment(NamedTuple):
    """A part of a bar of memory. ``kind`` is a key of ``text.LEGEND``; ``colour`` is that of the workload."""

    key: str
    kind: str
    bytes: int
    colour: int | None
    reason: str


class Bar(NamedTuple):
    """The memory of a GPU or MIG instance (``profile``). Without segments it is unknown. ``label`` says it in words."""

    uuid: str
    profile: str | None
    used: str
    segments: tuple[Segment, ...]
    label: str


class Holder(NamedTuple):
    """An entry of the list under a GPU's bars: a workload's memory, or memory that is not attributed."""

    key: str
    kind: str
    colour: int | None
    name: str
    memory: Cell
    confidence: str


class Plot(NamedTuple):
    """A figure's last hour: its place in ``Slot``, the value at the top, and the same in words."""

    figure: int
    top: float
    label: str
    caption: str


class GpuFigure(NamedTuple):
    """A figure of a GPU. ``limit`` is text such as ``of 300 W``, or empty."""

    name: str
    cell: Cell
    limit: str = ""
    plot: Plot | None = None


class GpuView(NamedTuple):
    """One GPU. ``bars`` has the GPU's own bar and one per MIG instance."""

    uuid: str
    number: int
    name: str
    health: str
    state: str
    used: Cell
    limit: Cell
    bars: tuple[Bar, ...]
    holders: tuple[Holder, ...]
    utilization: GpuFigure
    power: GpuFigure
    memory: GpuFigure
    temperature: GpuFigure
    reasons: tuple[str, ...]


class Total(NamedTuple):
    """A sum over the host. ``beside`` qualifies the figure; ``brief`` says all of it in few words."""

    name: str
    cell: Cell
    beside: str
    brief: str


class Problem(NamedTuple):
    """A source that is not well."""

    brief: str
    text: str


class View(NamedTuple):
    """All of one cycle. ``at_s`` is Unix time. ``simulated`` is the reason why the host is simulated.

    In a view of one ``pod`` there are no GPUs and no totals. ``no_gpus`` and ``no_workloads`` are shown where there are
    none.
    """

    at_s: float
    interval_s: float
    version: str
    host: str
    simulated: str | None
    driver: str | None
    pod: str | None
    problems: tuple[Problem, ...]
    totals: tuple[Total, ...]
    gpus: tuple[GpuView, ...]
    no_gpus: str
    columns: tuple[Column, ...]
    process_columns: tuple[Column, ...]
    workloads: tuple[WorkloadRow, ...]
    no_workloads: str
    history: History
