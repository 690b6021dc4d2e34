"""GPUs and workloads as lines of the screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from otel_gpu.export.table_figures import (
    FREE,
    INFERRED,
    MEASURED,
    RESERVED,
    UNATTRIBUTED,
    UNKNOWN,
    bar_parts,
    celsius,
    joules,
    model,
    money,
    out_of,
    percent,
    signed,
    size,
    span,
    state_because,
    state_words,
    used_bytes,
    watts,
    whole,
)
from otel_gpu.export.table_names import HOST_ITSELF
from otel_gpu.export.text import Style, pad, printable, shorten
from otel_gpu.model import HOST_WORKLOAD, MemorySplit
from otel_gpu.top.colours import Colours
from otel_gpu.top.cycle import Cycle, Gpu, Instance, Use, Workload
from otel_gpu.top.facts import KINDS
from otel_gpu.top.holdings import Holding
from otel_gpu.top.hour import sparkline
from otel_gpu.top.layout import GAP, Canvas, Column, Fitted, Piece, fit, row
from otel_gpu.top.looking import Line, Looking

_BAR: Final = "MEMORY"
_BAR_STYLES: Final = {
    MEASURED: Style.GREEN,
    INFERRED: Style.YELLOW,
    UNATTRIBUTED: Style.RED,
    RESERVED: Style.DIM,
    FREE: Style.DIM,
}
_STATE_STYLES: Final = {"busy": Style.GREEN, "idle": Style.YELLOW, "ok": Style.GREEN, "failed": Style.RED}
_MARKER: Final = "> "
_STALE: Final = (Style.DIM,)


# ---------------------------------------------------------------------------- GPUs


@dataclass(frozen=True, slots=True)
class _Device:
    """A GPU's line, or that of one of its instances."""

    gpu: Gpu
    instance: Instance | None = None

    @property
    def memory(self) -> MemorySplit | None:
        return self.gpu.memory if self.instance is None else self.instance.memory

    @property
    def name(self) -> str:
        return printable(model(self.gpu.name) if self.instance is None else f"└ {self.instance.profile}")

    @property
    def used(self) -> str:
        if self.memory is None:
            return UNKNOWN
        return out_of(used_bytes(self.memory), self.memory.limit_bytes)

    @property
    def state(self) -> str:
        if self.instance is not None:
            return ""
        return printable(state_because(self.gpu.health, self.gpu.reason))

    @property
    def holdings(self) -> tuple[Holding, ...]:
        return self.gpu.holdings if self.instance is None else self.instance.holdings

    def of_gpu(self, text: str) -> str:
        return text if self.instance is None else ""


_GPU_COLUMNS: Final[tuple[Column[_Device], ...]] = (
    Column("GPU", lambda device: device.of_gpu(str(device.gpu.index)), right=True),
    Column("NAME", lambda device: device.name, rank=2, gives=10),
    Column(_BAR, lambda _: "", rank=1, least=40, gives=8),
    Column("USED", lambda device: device.used, right=True, least=13),
    Column("UTIL", lambda device: device.of_gpu(percent(device.gpu.utilization)), rank=3, right=True, least=5),
    Column("POWER", lambda device: device.of_gpu(watts(device.gpu.power_w)), rank=4, right=True, least=5),
    Column("TEMP", lambda device: device.of_gpu(celsius(device.gpu.temperature_c)), rank=5, right=True, least=5),
    Column("STATE", lambda device: device.state, gives=6),
)


_HOUR_CELLS: Final = 24
_HOUR: Final[Column[_Device]] = Column(
    "UTIL, LAST HOUR",
    lambda device: device.of_gpu(sparkline(device.gpu.last_hour, _HOUR_CELLS)),
    rank=6,
    least=_HOUR_CELLS,
)
_WIDE: Final = 120
"""In so many cells there is room for it beside a bar that can be read."""


def gpu_lines(cycle: Cycle, looking: Looking, canvas: Canvas, most: int, *, old: bool) -> list[str]:
    """A heading and a line per GPU and MIG instance, at most ``most``: instances go first. None for a pod's answer.

    Where GPUs have no room either, the last line tells which these are: ``looking`` scrolls them.
    """
    if cycle.pod is not None:
        return []
    if not cycle.gpus:
        return [canvas.line(Piece("no GPU could be read"))]
    devices = [
        device
        for gpu in cycle.gpus
        for device in (_Device(gpu), *(_Device(gpu, instance) for instance in gpu.instances))
    ]
    if len(devices) + 1 > most:
        devices = [device for device in devices if device.instance is None]
    columns = _GPU_COLUMNS
    if canvas.columns >= _WIDE and any(map(_HOUR.text, devices)):
        columns = (*columns[:-1], _HOUR, columns[-1])
    fitted = fit(columns, devices, canvas.columns)
    lines = [canvas.line(Piece(row(fitted, [each.column.heading for each in fitted]), (Style.DIM,)))]
    count = len(devices)
    looking.gpu_page = seen = count if count + 1 <= most else most - 2
    looking.gpu_top = first = min(looking.gpu_top, count - seen)
    shown = devices[first : first + seen]
    colours = looking.colours
    lines += [canvas.line(*_gpu_pieces(device, fitted, colours), over=_STALE if old else ()) for device in shown]
    if seen < count:
        words = f"GPUs {first + 1} to {first + seen} of {count}: [ ] shows others"
        lines.append(canvas.line(Piece(words, (Style.DIM,))))
    return lines


def _gpu_pieces(device: _Device, fitted: Sequence[Fitted[_Device]], colours: Colours) -> list[Piece]:
    pieces: list[Piece] = []
    for each in fitted:
        if pieces:
            pieces.append(Piece(GAP))
        text = each.column.text(device)
        if each.column.heading == _BAR:
            pieces += _bar(device, each.width, colours)
        elif each.column.heading == "STATE":
            pieces.append(Piece(shorten(text, each.width), _state_style(device.gpu.health)))
        else:
            pieces.append(Piece(each.cell(text)))
    return pieces


def _bar(device: _Device, width: int, colours: Colours) -> list[Piece]:
    split = device.memory
    if split is None or split.limit_bytes <= 0:
        return [Piece(pad(UNKNOWN, width))]
    held = {
        MEASURED: [(each.key, each.measured_bytes) for each in device.holdings],
        INFERRED: [(each.key, each.inferred_bytes) for each in device.holdings],
    }
    pieces = []
    for mark, count in bar_parts(split, width):
        holders = [(key, amount) for key, amount in held.get(mark, ()) if amount > 0]
        if not holders:
            pieces.append(Piece(mark * count, (_BAR_STYLES[mark],)))
            continue
        amounts = [amount for _, amount in holders]
        cells_of = whole([amount * count for amount in amounts], sum(amounts))
        pieces += [
            Piece(mark * its_cells, colours.of(key) or (_BAR_STYLES[mark],))
            for (key, _), its_cells in zip(holders, cells_of, strict=True)
            if its_cells
        ]
    return pieces


def _state_style(state: str | None) -> tuple[Style, ...]:
    style = _STATE_STYLES.get(state or "")
    return () if style is None else (style,)


# ---------------------------------------------------------------------------- workloads


def _where(workload: Workload) -> str:
    """What it is and where it belongs, as the page has it under the name."""
    if (workload.kind, workload.id) == HOST_WORKLOAD.key:
        return HOST_ITSELF
    pod = None if workload.pod is None else "/".join(filter(None, (workload.namespace, workload.pod)))
    parts = (KINDS.get(workload.kind, workload.kind), pod or workload.image)
    return printable(" · ".join(part for part in parts if part))


def _name(line_: Line) -> str:
    process, workload = line_.process, line_.workload
    if process is None:
        return printable(workload.title if workload.apart is None else f"{workload.title} {workload.apart}")
    return f"  {process.pid} {printable(process.name or UNKNOWN)}"


def _memory(line_: Line) -> str:
    if line_.process is not None:
        return size(line_.process.memory_bytes)
    return ("~ " if line_.workload.inferred_bytes else "") + size(line_.workload.memory_bytes)


def _use(line_: Line) -> Use:
    return line_.workload.use if line_.process is None else line_.process.use


def _idle(line_: Line) -> str:
    """Of several GPUs the spans are summed, and are GPU time: "3 GPU-h"."""
    use = _use(line_)
    words = span(use.idle_s)
    return words.replace(" ", " GPU-") if use.idle_s and use.idle_places > 1 else words


def _state(line_: Line) -> str:
    use = _use(line_)
    return "ended" if use.ended else printable(state_words(use.state, use.idle_for_s))


def _columns(cycle: Cycle) -> list[Column[Line]]:
    columns: list[Column[Line]] = [
        Column("WORKLOAD", _name, least=14, gives=16, key="n"),
        Column("WHERE", lambda each: "" if each.process else _where(each.workload), rank=9, gives=16, ends=True),
        Column(
            "GPU", lambda each: printable(each.process.place if each.process else each.workload.places),
            rank=5, gives=10, key="g",
        ),
        Column("MEMORY", _memory, right=True, least=10, key="m"),
        Column("SM", lambda each: percent(_use(each).sm_ratio), rank=2, right=True, least=5, key="s"),
        Column(
            "POWER", lambda each: signed(watts(_use(each).power_w), _use(each).lately),
            rank=3, right=True, least=7, key="w",
        ),
        Column(
            "ENERGY", lambda each: signed(joules(_use(each).so_far.total_mj), _use(each).so_far),
            rank=6, right=True, least=9, key="e",
        ),
        Column("IDLE", _idle, rank=8, right=True, least=5, key="i"),
        Column("STATE", _state, rank=1, least=9),
    ]  # fmt: skip
    currency = cycle.currency
    if currency is not None:
        cost: Column[Line] = Column(
            "COST",
            lambda each: "" if each.process else money(each.workload.cost, printable(currency)),
            rank=7, right=True, least=8, key="c",
        )  # fmt: skip
        columns.insert(-1, cost)
    return columns


def workload_lines(cycle: Cycle, looking: Looking, canvas: Canvas, room: int, *, old: bool) -> list[str]:
    """The table in ``room`` lines: how many there are, a heading, and what is seen around the selected line."""
    lines = looking.lines(cycle)
    at = looking.position(lines)
    looking.page = seen = max(1, room - 2)
    looking.top = _scrolled(looking.top, at, seen, len(lines))
    drawn = [canvas.line(*_count(cycle, looking, lines))]
    if not lines:
        return [*drawn, canvas.line(Piece(_nobody(cycle)))][:room]
    rows = [each for each in lines if each.fact is None]
    fitted = fit(_columns(cycle), rows, canvas.columns - len(_MARKER), looking.order.key)
    headings = [_heading(each, looking) for each in fitted]
    drawn.append(canvas.line(Piece(" " * len(_MARKER) + row(fitted, headings), (Style.DIM,))))
    for number, each in enumerate(lines[looking.top : looking.top + seen], looking.top):
        chosen = number == at
        over = (*(_STALE if old else ()), *((Style.REVERSE,) if chosen else ()))
        marker = _MARKER if chosen else " " * len(_MARKER)
        drawn.append(canvas.line(*_pieces(each, fitted, marker, looking.colours), over=over))
    return drawn[:room]


def _pieces(each: Line, fitted: Sequence[Fitted[Line]], marker: str, colours: Colours) -> list[Piece]:
    if each.fact is not None:
        return [Piece(f"{marker}  {each.fact}", (Style.DIM,))]
    pieces = [Piece(marker)]
    for column in fitted:
        text = column.cell(column.column.text(each))
        state = _use(each).state if column.column.heading == "STATE" and not _use(each).ended else None
        is_name = column.column.heading == "WORKLOAD" and each.process is None
        style = colours.of(each.workload.key) if is_name and not _use(each).ended else _state_style(state)
        pieces += [Piece(GAP), Piece(text, style)]
    return [pieces[0], *pieces[2:]]


def _heading(each: Fitted[Line], looking: Looking) -> str:
    """The heading of the column that is sorted by has a sign, away from where the column leans."""
    heading = each.column.heading
    if each.column.key != looking.order.key:
        return heading
    sign = "↓" if looking.falls else "↑"
    return f"{sign}{heading}" if each.column.right else f"{heading}{sign}"


def _scrolled(top: int, at: int, seen: int, count: int) -> int:
    """The first line that is seen, such that the selected one is, and no line is left empty for nothing."""
    top = min(top, at, max(0, count - seen))
    return max(top, at - seen + 1)


def _count(cycle: Cycle, looking: Looking, lines: Sequence[Line]) -> list[Piece]:
    everybody = len(cycle.workloads)
    found = len({each.workload.key for each in lines})
    many = f"{everybody} workload{'' if everybody == 1 else 's'}"
    words = [Piece(many if not looking.filter else f"{found} of {many}", (Style.BOLD,))]
    if looking.filter:
        words.append(Piece(f"  filter: {printable(looking.filter)}", (Style.YELLOW,)))
    if len(lines) > looking.page:
        last = min(len(lines), looking.top + looking.page)
        words.append(Piece(f"  lines {looking.top + 1} to {last} of {len(lines)}"))
    return words


def _nobody(cycle: Cycle) -> str:
    if cycle.workloads:
        return "no workload matches this filter"
    if cycle.pod is not None:
        return "nobody of this pod is seen on a GPU"
    return "nobody holds a GPU" if cycle.all_told else "who holds a GPU is not known"
