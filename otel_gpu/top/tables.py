"""GPUs and workloads as lines of the screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from otel_gpu.top.layout import GAP, Canvas, Fitted, Piece, ScreenColumn, fit, row
from otel_gpu.top.navigation import Line, Navigation
from otel_gpu.view.history import SLOTS
from otel_gpu.view.model import Bar, Column, GpuView, History, ProcessRow, Slot, View, WorkloadRow
from otel_gpu.view.terminal import TONE_STYLES, Style, pad, shorten
from otel_gpu.view.text import (
    BAR_MARKS,
    FREE,
    INFERRED,
    MEASURED,
    RESERVED,
    UNATTRIBUTED,
    UNKNOWN,
    bar_cells,
    filled,
    whole,
)

T = TypeVar("T")

_BAR: Final = "bar"
_STATE: Final = "state"
_KIND_STYLES: Final = {
    MEASURED: Style.GREEN,
    INFERRED: Style.YELLOW,
    UNATTRIBUTED: Style.RED,
    RESERVED: Style.DIM,
    FREE: Style.DIM,
}
_COLOURS: Final = (
    Style.GREEN,
    Style.BLUE,
    Style.MAGENTA,
    Style.CYAN,
    Style.YELLOW,
    Style.BRIGHT_GREEN,
    Style.BRIGHT_BLUE,
    Style.BRIGHT_MAGENTA,
)
"""Colours of workloads, without red, which is unattributed memory."""

_MARKER: Final = "> "
_STALE: Final = (Style.DIM,)


def colour_style(colour: int) -> Style:
    """The style of a workload's colour."""
    return _COLOURS[colour % len(_COLOURS)]


# ---------------------------------------------------------------------------- GPUs


class _Layout(NamedTuple):
    """How a column of the view behaves where there is little room; see ``layout.ScreenColumn``."""

    rank: int
    least: int = 1
    gives: int | None = None
    ends: bool = False


_NEW_COLUMN: Final = _Layout(10)
"""A column that this version does not know."""


def _screen_column(column: Column, layouts: Mapping[str, _Layout], text: Callable[[T], str]) -> ScreenColumn[T]:
    rank, least, gives, ends = layouts.get(column.key, _NEW_COLUMN)
    return ScreenColumn(
        column.heading, text, rank=rank, least=least, gives=gives, right=column.is_number, key=column.key, ends=ends
    )


class _Device(NamedTuple):
    """The line of a GPU or of one of its MIG instances."""

    gpu: GpuView
    bar: Bar
    hour: str = ""

    @property
    def is_gpu(self) -> bool:
        return self.bar.profile is None


_GPU_LAYOUTS: Final = {
    "gpu": _Layout(0),
    "name": _Layout(2, gives=10),
    _BAR: _Layout(1, least=40, gives=8),
    "memory": _Layout(0, least=13),
    "utilization": _Layout(3, least=5),
    "power": _Layout(4, least=5),
    "temperature": _Layout(5, least=5),
    "state": _Layout(0, gives=6),
}


def _gpu_columns(view: View) -> list[ScreenColumn[_Device]]:
    def text_at(at: int, *, in_full: bool) -> Callable[[_Device], str]:
        return lambda device: (in_full and device.bar.cells[at].reason) or device.bar.cells[at].text

    return [
        _screen_column(column, _GPU_LAYOUTS, text_at(at, in_full=column.key == _STATE))
        for at, column in enumerate(view.gpu_columns)
    ]


_HOUR_CELLS: Final = 24
_HOUR: Final[ScreenColumn[_Device]] = ScreenColumn(
    "UTIL, LAST HOUR", lambda device: device.hour, rank=6, least=_HOUR_CELLS
)
_WIDE: Final = 120
"""Width in cells from which the last hour fits beside a readable bar."""


def gpu_lines(view: View, navigation: Navigation, canvas: Canvas, most: int, *, old: bool) -> list[str]:
    """A heading and a line per GPU and MIG instance, at most ``most``; without room, instances are left out first.

    If the GPUs do not fit either, the last line says which are shown, and ``navigation`` scrolls them. A view of one
    pod has no GPUs.
    """
    if not view.gpus:
        return [canvas.line(Piece(view.no_gpus))] if view.no_gpus else []
    devices = [
        _Device(gpu, bar, _sparkline_of(gpu, view.history) if bar is gpu.bars[0] else "")
        for gpu in view.gpus
        for bar in gpu.bars
    ]
    if len(devices) + 1 > most:
        devices = [device for device in devices if device.is_gpu]
    columns = _gpu_columns(view)
    if canvas.columns >= _WIDE and any(device.hour for device in devices):
        columns.insert(-1, _HOUR)
    fitted = fit(columns, devices, canvas.columns)
    lines = [canvas.line(Piece(row(fitted, [each.column.heading for each in fitted]), (Style.DIM,)))]
    count = len(devices)
    navigation.gpu_page = visible = count if count + 1 <= most else most - 2
    navigation.gpu_top = first = min(navigation.gpu_top, count - visible)
    shown = devices[first : first + visible]
    lines += [canvas.line(*_gpu_pieces(device, fitted), over=_STALE if old else ()) for device in shown]
    if visible < count:
        text = f"GPUs {first + 1} to {first + visible} of {count}: [ ] for others"
        lines.append(canvas.line(Piece(text, (Style.DIM,))))
    return lines


def _gpu_pieces(device: _Device, fitted: Sequence[Fitted[_Device]]) -> list[Piece]:
    pieces: list[Piece] = []
    for each in fitted:
        if pieces:
            pieces.append(Piece(GAP))
        text = each.column.text(device)
        if each.column.key == _BAR:
            pieces += _bar_pieces(device.bar, each.width)
        elif each.column.key == _STATE:
            pieces.append(Piece(shorten(text, each.width), TONE_STYLES[device.gpu.tone]))
        else:
            pieces.append(Piece(each.cell(text)))
    return pieces


def _bar_pieces(bar: Bar, width: int) -> list[Piece]:
    """The bar, each kind of memory divided among its holders, in their colours."""
    kinds = bar.kinds
    if not any(kinds.values()):
        return [Piece(pad(UNKNOWN, width))]
    pieces: list[Piece] = []
    for kind, count in bar_cells(kinds, width).items():
        own = [segment for segment in bar.segments if segment.bytes > 0 and segment.kind == kind]
        counts = whole([segment.bytes * count for segment in own], kinds[kind]) if own else []
        for segment, cells in zip(own, counts, strict=True):
            style = _KIND_STYLES[kind] if segment.colour is None else colour_style(segment.colour)
            pieces += [Piece(BAR_MARKS[kind] * cells, (style,))] if cells else []
    return pieces


_HEIGHTS: Final = "▁▂▃▄▅▆▇█"


def _sparkline_of(gpu: GpuView, history: History) -> str:
    plot = next((figure.plot for figure in gpu.figures if figure.column == "utilization"), None)
    slots: Sequence[Slot | None] = history.gpus.get(gpu.uuid, ())
    if plot is None:
        return ""
    summaries = [None if slot is None else slot[min(plot.figure, len(slot) - 1)] for slot in slots]
    return sparkline([None if summary is None else summary[0] for summary in summaries], _HOUR_CELLS)


def sparkline(ratios: Sequence[float | None], width: int) -> str:
    """An hour in ``width`` cells, now at the right. A cell is as high as the mean of its slots, blank if unknown."""
    if not any(ratio is not None for ratio in ratios):
        return ""
    hour = [*[None] * (SLOTS - len(ratios)), *ratios][-SLOTS:]
    cells = []
    for cell in range(width):
        known = [each for each in hour[cell * SLOTS // width : (cell + 1) * SLOTS // width] if each is not None]
        if known:
            mean = min(1.0, max(0.0, sum(known) / len(known)))
            cells.append(_HEIGHTS[min(len(_HEIGHTS) - 1, int(mean * len(_HEIGHTS)))])
        else:
            cells.append(" ")
    return "".join(cells)


# ---------------------------------------------------------------------------- workloads


_LAYOUTS: Final = {
    "name": _Layout(0, least=14, gives=16, ends=True),
    "origin": _Layout(9, gives=16, ends=True),
    "gpu": _Layout(5, gives=10),
    "memory": _Layout(0, least=10),
    "sm": _Layout(2, least=5),
    "power": _Layout(3, least=7),
    "energy": _Layout(6, least=9),
    "idle": _Layout(8, least=5),
    "cost": _Layout(7, least=8),
    "state": _Layout(1, least=9),
}


class _Cells:
    """The texts of one column of a view."""

    def __init__(self, view: View, key: str) -> None:
        self._at = next(at for at, column in enumerate(view.columns) if column.key == key)
        self._process_at = next((at for at, column in enumerate(view.process_columns) if column.key == key), None)
        self._is_name = key == "name"

    def __call__(self, line: Line) -> str:
        if line.process is None:
            return line.workload.cells[self._at].text
        if self._process_at is None:
            return ""
        text = line.process.cells[self._process_at].text
        return f"  {line.process.cells[0].text} {text}" if self._is_name else text


def _columns(view: View) -> list[ScreenColumn[Line]]:
    return [_screen_column(column, _LAYOUTS, _Cells(view, column.key)) for column in view.columns]


def workload_lines(view: View, navigation: Navigation, canvas: Canvas, room: int, *, old: bool) -> list[str]:
    """The table in ``room`` lines: the number of workloads, a heading, and the lines around the selected one."""
    lines = navigation.lines(view)
    at = navigation.position(lines)
    navigation.page = visible = max(1, room - 2)
    navigation.top = _scrolled(navigation.top, at, visible, len(lines))
    drawn = [canvas.line(*_count(view, navigation, lines))]
    if not lines:
        text = view.no_matches if view.workloads else view.no_workloads
        return [*drawn, canvas.line(Piece(text))][:room]
    rows = [line for line in lines if line.detail is None]
    fitted = fit(_columns(view), rows, canvas.columns - len(_MARKER), navigation.order.column)
    headings = [_heading(each, navigation) for each in fitted]
    drawn.append(canvas.line(Piece(" " * len(_MARKER) + row(fitted, headings), (Style.DIM,))))
    for number, line in enumerate(lines[navigation.top : navigation.top + visible], navigation.top):
        chosen = number == at
        over = (*(_STALE if old else ()), *((Style.REVERSE,) if chosen else ()))
        marker = _MARKER if chosen else " " * len(_MARKER)
        drawn.append(canvas.line(*_pieces(line, fitted, marker), over=over))
    return drawn[:room]


def _pieces(line: Line, fitted: Sequence[Fitted[Line]], marker: str) -> list[Piece]:
    if line.detail is not None:
        return [Piece(f"{marker}  {line.detail.name}: {line.detail.text}", (Style.DIM,))]
    pieces = [Piece(marker)]
    for column in fitted:
        text = column.column.text(line)
        # Both ends of a workload's name matter, and the beginning of a process's.
        text = column.cell(text) if line.process is None else pad(text, column.width, right=column.column.right)
        pieces += [Piece(GAP), Piece(text, _cell_style(line, column.column.key))]
    return [pieces[0], *pieces[2:]]


def _cell_style(line: Line, key: str) -> tuple[Style, ...]:
    subject: WorkloadRow | ProcessRow = line.workload if line.process is None else line.process
    if key == _STATE:
        return TONE_STYLES[subject.tone]
    if key == "name" and line.process is None and line.workload.colour is not None:
        return (colour_style(line.workload.colour),)
    return ()


def _heading(each: Fitted[Line], navigation: Navigation) -> str:
    """The heading; an arrow marks the column that the table is sorted by."""
    heading = each.column.heading
    if each.column.key != navigation.order.column:
        return heading
    arrow = "↓" if navigation.descending else "↑"
    return f"{arrow}{heading}" if each.column.right else f"{heading}{arrow}"


def _scrolled(top: int, at: int, visible: int, count: int) -> int:
    """The first visible line: the selected one is visible, and no line stays empty without need."""
    top = min(top, at, max(0, count - visible))
    return max(top, at - visible + 1)


def _count(view: View, navigation: Navigation, lines: Sequence[Line]) -> list[Piece]:
    found = len({line.workload.key for line in lines})
    template = view.words.found_workloads if navigation.filter else view.words.all_workloads
    pieces = [Piece(filled(template, found=found), (Style.BOLD,))]
    if navigation.filter:
        pieces.append(Piece(f"  filter: {navigation.filter}", (Style.YELLOW,)))
    if len(lines) > navigation.page:
        last = min(len(lines), navigation.top + navigation.page)
        pieces.append(Piece(f"  lines {navigation.top + 1} to {last} of {len(lines)}"))
    return pieces
