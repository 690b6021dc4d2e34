"""The view model of one cycle: what the page and ``top`` draw. Every text is complete and printable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

from otel_gpu.view.terminal import Tone, printable
from otel_gpu.view.text import BAR_MARKS, Words

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
    """A column of a table. A column of numbers holds no text values. ``brief`` is a shorter name for plain text."""

    key: str
    name: str
    meaning: str
    is_number: bool = False
    brief: str = ""

    @property
    def heading(self) -> str:
        """Its heading in tables of plain text."""
        return (self.brief or self.name).upper()


class Sort(NamedTuple):
    """An order of rows: the key of a column, and the direction."""

    column: str
    descending: bool


class Detail(NamedTuple):
    """A name and a text."""

    name: str
    text: str


class ProcessRow(NamedTuple):
    """One process on one GPU or MIG instance. ``cells`` are in the order of ``View.process_columns``."""

    key: str
    state: str
    tone: Tone
    cells: tuple[Cell, ...]


class WorkloadRow(NamedTuple):
    """One workload on all its GPUs. ``cells`` are in the order of ``View.columns``.

    ``name`` is unique in the table. ``colour`` is that of its memory in bars, ``None`` after its end. ``state`` is
    one of ``busy``, ``idle``, ``allocated``, ``unknown``, ``ended`` and ``none``; ``tone`` is how it is drawn. A
    filter matches ``words``, the beginning of ``id``, and ``gpus``, the indices of its GPUs. ``parts`` has the
    texts of its part of each GPU or MIG instance, in the order of ``View.part_columns``. ``explanation`` says how
    its figures were obtained, and what it does on each of several GPUs.
    """

    key: str
    id: str
    name: str
    full_name: str
    colour: int | None
    state: str
    tone: Tone
    gpus: tuple[int, ...]
    words: str
    cells: tuple[Cell, ...]
    identity: tuple[Detail, ...]
    parts: tuple[tuple[str, ...], ...]
    explanation: tuple[Detail, ...]
    processes: tuple[ProcessRow, ...]
    no_processes: str


class Segment(NamedTuple):
    """A part of a bar of memory. ``kind`` is a key of ``text.LEGEND``; ``colour`` is the colour of the workload."""

    key: str
    kind: str
    bytes: int
    colour: int | None
    reason: str


class Bar(NamedTuple):
    """A GPU or MIG instance (``profile``) and its memory. Without segments that is unknown. ``label`` says it in words.

    ``cells`` are in the order of ``View.gpu_columns``.
    """

    uuid: str
    profile: str | None
    cells: tuple[Cell, ...]
    segments: tuple[Segment, ...]
    label: str

    @property
    def kinds(self) -> dict[str, int]:
        """Bytes by kind, in the order in which they are drawn."""
        kinds = dict.fromkeys(BAR_MARKS, 0)
        for segment in self.segments:
            if segment.bytes > 0 and segment.kind in kinds:
                kinds[segment.kind] += segment.bytes
        return kinds


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
    """A figure on the card of a GPU: the key of its column. ``limit`` is text such as ``of 300 W``, or empty."""

    column: str
    limit: str = ""
    plot: Plot | None = None


class GpuView(NamedTuple):
    """One GPU. ``bars`` has the GPU's own bar and one per MIG instance. ``tone`` is how its state is drawn.

    ``used`` and ``of_all`` are its memory in words, together one text; both are empty where that is unknown.
    """

    uuid: str
    title: str
    tone: Tone
    used: str
    of_all: str
    bars: tuple[Bar, ...]
    holders: tuple[Holder, ...]
    figures: tuple[GpuFigure, ...]
    reasons: tuple[str, ...]


class Total(NamedTuple):
    """A sum over the host. ``qualifier`` says more about the figure; ``brief`` says all of it in few words."""

    name: str
    cell: Cell
    qualifier: str
    brief: str


class Problem(NamedTuple):
    """Something that cannot be read in full: in few words, and with the reason."""

    brief: str
    text: str
    tone: Tone


class View(NamedTuple):
    """All of one cycle. ``at_s`` is Unix time. After ``lost_after_s`` without another view the agent counts as lost.

    ``about`` has the pod and the driver in words. ``simulated`` is the warning that the host is simulated, ``remedy``
    what to do about problems. ``sort`` is the order of workloads until the user chooses another. ``no_gpus``,
    ``no_workloads`` and ``no_processes`` are shown where there are none, ``no_matches`` where a filter leaves no
    workload. A view of one pod has no GPUs, no ``no_gpus`` and no totals. A plot covers ``plot_span_s``, and has a gap
    where slots of the history are more than ``plot_gap_s`` apart.
    """

    at_s: float
    interval_s: float
    lost_after_s: float
    version: str
    title: str
    host: str
    about: tuple[str, ...]
    simulated: str | None
    problems: tuple[Problem, ...]
    remedy: str
    totals: tuple[Total, ...]
    gpus: tuple[GpuView, ...]
    no_gpus: str
    gpu_columns: tuple[Column, ...]
    columns: tuple[Column, ...]
    part_columns: tuple[Column, ...]
    process_columns: tuple[Column, ...]
    sort: Sort
    workloads: tuple[WorkloadRow, ...]
    no_workloads: str
    no_processes: str
    no_matches: str
    words: Words
    plot_span_s: float
    plot_gap_s: float
    history: History


def ordered(columns: Sequence[Column], rows: Iterable[WorkloadRow], sort: Sort) -> list[WorkloadRow]:
    """The rows in this order. Unknown values come last, and equal ones in the order of names, in both directions.

    The page sorts in the browser by the same rules; tests/sort_cases.json is a table of cases for both.
    """
    at = next((at for at, column in enumerate(columns) if column.key == sort.column), 0)

    def value(row: WorkloadRow) -> Any:
        return row.cells[at].value

    by_name = sorted(rows, key=lambda row: (row.name, row.key))
    known = [row for row in by_name if value(row) is not None]
    unknown = [row for row in by_name if value(row) is None]
    return sorted(known, key=value, reverse=sort.descending) + unknown


def chosen(sort: Sort, column: Column) -> Sort:
    """The order after the user chose this column: numbers descend at first; a second choice reverses the order."""
    return Sort(column.key, not sort.descending if sort.column == column.key else column.is_number)


# ---------------------------------------------------------------------------- plain data for JSON, and back
#
# Decoding checks every type, number and length, because an agent of another version may send anything.

_MAXIMUM: Final = 2.0**63
"""No figure of a GPU is larger. Figures up to this size can be added, divided and shown."""


def encode(value: Any) -> Any:
    """Plain data: objects, lists, strings, numbers and null."""
    if isinstance(value, tuple):
        fields: tuple[str, ...] | None = getattr(value, "_fields", None)
        if fields is None:
            return [encode(item) for item in value]
        return {name: encode(item) for name, item in zip(fields, value, strict=True)}
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    return value


def decode_view(plain: object) -> View:
    """The view of plain data. ValueError if it is not a view of this version."""
    try:
        view = _decode(View, plain)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    assert isinstance(view, View)
    _check_tables(view)
    return view


def _check_tables(view: View) -> None:
    if not view.columns or not view.process_columns or not view.gpu_columns:
        raise ValueError("a table has no columns")
    for row in view.workloads:
        _check_row(view.columns, row.cells)
        for process in row.processes:
            _check_row(view.process_columns, process.cells)
        if any(len(texts) != len(view.part_columns) for texts in row.parts):
            raise ValueError("a part of a GPU has more or fewer texts than there are columns")
    for gpu in view.gpus:
        if not gpu.bars:
            raise ValueError("a GPU has no bar")
        for bar in gpu.bars:
            _check_row(view.gpu_columns, bar.cells)
    if any(len(slots) != len(view.history.at) for slots in view.history.gpus.values()):
        raise ValueError("a GPU has more or fewer slots than there are times")


def _check_row(columns: tuple[Column, ...], cells: tuple[Cell, ...]) -> None:
    """Cells of one column must be comparable, because rows are sorted by them."""
    if len(columns) != len(cells):
        raise ValueError("a row has more or fewer cells than there are columns")
    for column, cell in zip(columns, cells, strict=True):
        if cell.value is not None and isinstance(cell.value, str) is column.is_number:
            raise ValueError(f"a value of the column {column.key} is of the wrong type")


def _decode(kind: Any, plain: object) -> Any:  # noqa: PLR0911 - one per kind of type
    origin = get_origin(kind)
    if origin in {Union, UnionType}:
        return _decode_union(get_args(kind), plain)
    if origin is tuple:
        return _decode_tuple(get_args(kind), plain)
    if origin is dict:
        _, of = get_args(kind)
        return {_text(key): _decode(of, item) for key, item in _object(plain).items()}
    if kind is str:
        return _text(plain)
    if kind is Tone:
        return Tone(_text(plain))
    if kind in {int, float}:
        return _number(plain, whole=kind is int)
    if kind is bool:
        return _flag(plain)
    found = _object(plain)
    return kind(**{name: _decode(of, found[name]) for name, of in _fields(kind).items()})


@cache
def _fields(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _decode_union(kinds: tuple[Any, ...], plain: object) -> Any:
    if plain is None and NoneType in kinds:
        return None
    options = [kind for kind in kinds if kind is not NoneType]
    if len(options) > 1:  # float | str
        options = [kind for kind in options if (kind is str) is isinstance(plain, str)]
    return _decode(options[0], plain)


def _decode_tuple(kinds: tuple[Any, ...], plain: object) -> tuple[Any, ...]:
    if not isinstance(plain, list):
        raise TypeError("a value is not a list")
    if kinds[-1] is Ellipsis:
        return tuple(_decode(kinds[0], item) for item in plain)
    return tuple(_decode(kind, item) for kind, item in zip(kinds, plain, strict=True))


def _object(plain: object) -> dict[Any, Any]:
    if not isinstance(plain, dict):
        raise TypeError("a value is not an object")
    return plain


def _text(plain: object) -> str:
    if not isinstance(plain, str):
        raise TypeError("a value is not text")
    return printable(plain)


def _flag(plain: object) -> bool:
    if not isinstance(plain, bool):
        raise TypeError("a value is neither true nor false")
    return plain


def _number(plain: object, *, whole: bool) -> float:
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise TypeError("a value is not a number")
    if not -_MAXIMUM <= plain <= _MAXIMUM:  # nor is NaN
        raise ValueError("a number is too large")
    if whole and plain != int(plain):
        raise ValueError("a number is not whole")
    return int(plain) if whole else plain
