"""The screen: a title, the host in five figures, GPUs, workloads and keys, in as many lines and cells as there are."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from otel_gpu.export.table_figures import LEGEND, out_of, percent, size, state_because, used_bytes, utc, watts
from otel_gpu.export.text import Style, cells, printable, shorten
from otel_gpu.top.board import Lost, Seen
from otel_gpu.top.cycle import Cycle, Workload
from otel_gpu.top.layout import Canvas, Piece
from otel_gpu.top.looking import ORDERS, Looking, Overlay
from otel_gpu.top.tables import gpu_lines, workload_lines

LEAST_COLUMNS: Final = 40
LEAST_ROWS: Final = 10
_LOW: Final = 16
"""With fewer lines the host in short has one: more are better spent on workloads."""

_LEAST_HOST: Final = 8
_CLOCK: Final = "%H:%M:%S UTC"

_HELP: Final = (
    ("up down j k", "select a line; PgUp and PgDn by the screen, Home and End to the ends"),
    ("p Enter", "open or close the selected workload: its names, its processes"),
    ("m s w e i c n g", "sort by memory, SM, power, energy, idle, cost, name, GPU; again: the other way"),
    ("< > r", "sort by the column to the left, to the right; the other way"),
    ("/", "filter while you type: all words must be in names, image, kind, state or processes; gpu 0 is that GPU"),
    ("Enter Esc", "keep the filter; clear it"),
    ("Space", "freeze what is shown, and go on"),
    ("[ ]", "other GPUs, where not all have room"),
    ("t", "what could not be read, and why"),
    ("q Q Ctrl-C", "quit"),
)
_MEANINGS: Final = (
    "A workload's name has the colour of its part of the bars.",
    "≈ is estimated, ~ is inferred, - is not known, which is not zero.",
    "SM, power and state are of the last sample; energy, idle and cost are so far.",
)


@dataclass(frozen=True, slots=True)
class About:
    """What is looked at: the agent at this address, or this host."""

    where: str | None = None

    @property
    def waiting(self) -> str:
        """What is under way before there is anything to show."""
        return "looking at the GPUs…" if self.where is None else f"asking the agent at {self.where}…"


def draw(looking: Looking, seen: Seen, about: About, canvas: Canvas) -> list[str]:
    """The lines of the screen, no more and no longer than there is room."""
    columns, rows = canvas.columns, canvas.rows
    if columns < LEAST_COLUMNS or rows < LEAST_ROWS:
        words = f"needs {LEAST_COLUMNS}x{LEAST_ROWS}, is {columns}x{rows}: too small for otel-gpu top"
        return textwrap.wrap(words, max(columns, 1))[:rows]
    if looking.overlay is Overlay.HELP:
        return _page(canvas.line(Piece("otel-gpu top", (Style.BOLD,))), _help(columns), canvas)
    if seen.cycle is None:
        lines = [canvas.line(Piece("otel-gpu top", (Style.BOLD,))), "", *textwrap.wrap(about.waiting, columns)]
        return [*lines[: rows - 1], *[""] * (rows - 1 - len(lines)), _dim("q quit  h help", canvas)]
    cycle = looking.shown(seen.cycle)
    looking.colours.update(cycle.workloads)
    title = canvas.line(*_title(cycle, looking, about, columns))
    if looking.overlay is Overlay.TROUBLES:
        return _page(title, _troubles(cycle, columns), canvas)
    old = seen.lost is not None
    head = [title, *_head(cycle, seen, canvas)]
    gpus = gpu_lines(cycle, looking, canvas, max(3, (rows - len(head) - 4) // 2), old=old)
    table = workload_lines(cycle, looking, canvas, rows - len(head) - len(gpus) - 1, old=old)
    filler = [""] * (rows - 1 - len(head) - len(gpus) - len(table))
    return [*head, *gpus, *table, *filler, _foot(cycle, looking, canvas)]


def _page(title: str, body: list[str], canvas: Canvas) -> list[str]:
    """Something to read instead of the tables."""
    room = canvas.rows - 3
    if len(body) > room:
        more = f"… {len(body) - room + 1} more lines: a taller terminal shows them"
        body = [*body[: room - 1], _dim(more, canvas)]
    return [title, "", *body, *[""] * (room - len(body)), _dim("any key goes back", canvas)]


def _dim(text: str, canvas: Canvas) -> str:
    return canvas.line(Piece(text, (Style.DIM,)))


# ---------------------------------------------------------------------------- above


def _title(cycle: Cycle, looking: Looking, about: About, columns: int) -> list[Piece]:
    """Who, when, how often, and how the sources do: in short, those that are not well by name."""
    at = utc(cycle.at_s, _CLOCK)
    where = "" if about.where is None else f" at {about.where}"
    striking = (Style.BOLD, Style.YELLOW)
    pieces = [Piece("otel-gpu", (Style.BOLD,)), Piece(f"{printable(cycle.host)}{where}")]
    if cycle.simulated is not None:
        pieces.append(Piece("SIMULATED", striking))
    pieces.append(Piece(at) if looking.frozen is None else Piece(f"FROZEN at {at}", striking))
    pieces.append(_sources(cycle))
    _narrow(pieces, columns)
    further = [f"every {cycle.interval_s:g} s"]
    further += [] if cycle.pod is None else [f"pod {printable(cycle.pod)}"]
    further += [] if cycle.driver is None else [f"driver {printable(cycle.driver)}"]
    for words in further:  # as far as there is room for all of it
        if sum(cells(piece.text) + 2 for piece in pieces) + cells(words) <= columns:
            pieces.append(Piece(words))
    return [part for piece in pieces for part in (Piece("  "), piece)][1:]


def _narrow(pieces: list[Piece], columns: int) -> None:
    """Leave out what says least, and shorten the host, until the rest is there in full."""
    for text in ("sources ok", "otel-gpu"):
        if _width(pieces) > columns:
            pieces[:] = [piece for piece in pieces if piece.text != text]
    host = 0 if pieces[0].text != "otel-gpu" else 1
    excess = _width(pieces) - columns
    if excess > 0:
        pieces[host] = Piece(shorten(pieces[host].text, max(_LEAST_HOST, cells(pieces[host].text) - excess)))


def _width(pieces: Sequence[Piece]) -> int:
    return sum(cells(piece.text) + 2 for piece in pieces) - 2


def _sources(cycle: Cycle) -> Piece:
    if not cycle.troubles:
        return Piece("sources ok")
    troubled = ", ".join(f"{printable(each.name)} {printable(each.state)}" for each in cycle.troubles)
    return Piece(f"{troubled} (t)", (Style.YELLOW,))


def _head(cycle: Cycle, seen: Seen, canvas: Canvas) -> list[str]:
    """That the agent is lost, where it is; else the host in short, unless only one pod is told of."""
    if seen.lost is not None:
        notice = textwrap.wrap(_notice(seen.lost, cycle), canvas.columns)
        return [canvas.line(Piece(text, (Style.BOLD, Style.RED))) for text in notice[:3]]
    if cycle.pod is not None:
        return []
    lines: list[str] = []
    for figure in _totals(cycle):  # none of them is cut: they go on in another line, or are left out in a low terminal
        if lines and cells(f"{lines[-1]}  {figure}") <= canvas.columns:
            lines[-1] += f"  {figure}"
        else:
            lines.append(figure)
    return [canvas.line(Piece(line)) for line in lines[: 1 if canvas.rows < _LOW else None]]


def _notice(lost: Lost, cycle: Cycle) -> str:
    since, of = utc(lost.since_s, _CLOCK), utc(cycle.at_s, _CLOCK)
    return f"LOST since {since}: {printable(lost.why)}. What you see is OLD, of {of}. Trying again…"


def _totals(cycle: Cycle) -> list[str]:
    """The whole host in the page's five figures; of how many GPUs, where not all give them."""
    splits = [gpu.memory for gpu in cycle.gpus if gpu.memory is not None]
    used = sum(map(used_bytes, splits))
    unknown = sum(split.unattributed_bytes for split in splits)
    powers = [gpu.power_w for gpu in cycle.gpus if gpu.power_w is not None]
    count, told = len(cycle.gpus), len(splits)
    return [
        ("" if told == count else f"{told} of ") + f"{count} GPU{'' if count == 1 else 's'}",
        f"{out_of(used, sum(split.limit_bytes for split in splits)) if splits else size(None)} in use",
        f"{percent((used - unknown) / used if used else None)} attributed",
        watts(sum(powers) if powers else None) + (f" of {len(powers)}" if powers and len(powers) != told else ""),
        _held_idle(cycle),
    ]


def _held_idle(cycle: Cycle) -> str:
    """The memory of those who are found idle and, beside it, of those of whom that is not decided."""
    # Who was given a GPU and is not on it holds nothing: that says nothing of whether it is known who works.
    here = [one for one in cycle.workloads if not one.use.ended and one.use.state != "allocated"]
    idle = [workload for workload in here if workload.use.state == "idle"]
    open_ = [workload for workload in here if workload.use.state in {"unknown", None}]
    decided = len(open_) < len(here) if here else cycle.all_told
    words = f"{size(_held(idle) or 0 if decided else None)} held idle" + (f" by {len(idle)}" if idle else "")
    held = _held(open_)
    if not open_ or (held is None and not decided):
        return words  # of nobody is anything known: once is enough
    return f"{words}, {len(open_) if held is None else size(held)} undecided"


def _held(workloads: Sequence[Workload]) -> int | None:
    known = [workload.memory_bytes for workload in workloads if workload.memory_bytes is not None]
    return sum(known) if known else None


# ---------------------------------------------------------------------------- below


def _foot(cycle: Cycle, looking: Looking, canvas: Canvas) -> str:
    """The keys, as many as there is room for; while somebody types, what."""
    if looking.typing:
        return _typed(looking.filter, canvas)
    words = ["q quit", "h help", "/ filter", "p processes", "space " + ("go on" if looking.frozen else "freeze")]
    if cycle.troubles:
        words.insert(2, "t troubles")
    orders = [order for order in ORDERS.values() if order.key != "c" or cycle.currency is not None]
    named, keys = " ".join(f"{order.key} {order.name}" for order in orders), " ".join(order.key for order in orders)
    for sorts in (named, keys):
        if cells("  ".join([*words, f"sort: {sorts}"])) <= canvas.columns:
            words.append(f"sort: {sorts}")
            break
    while len(words) > 1 and cells("  ".join(words)) > canvas.columns:
        words.pop()
    return _dim("  ".join(words), canvas)


def _typed(text: str, canvas: Canvas) -> str:
    """The filter with a cursor, its end if it is long, and how to go on if there is room."""
    words, hint = f"filter: {printable(text)}", "  Enter keeps it, Esc clears it"
    while cells(words) >= canvas.columns:
        words = "…" + words[2:]
    pieces = [Piece(words), Piece("_")]
    if cells(words + hint) < canvas.columns:
        pieces.append(Piece(hint, (Style.DIM,)))
    return canvas.line(*pieces)


def _help(columns: int) -> list[str]:
    width = max(len(keys) for keys, _ in _HELP)
    lines = []
    for keys, meaning in _HELP:
        wrapped = textwrap.wrap(meaning, columns - width - 2)
        lines += [f"{'' if at else keys:<{width}}  {text}" for at, text in enumerate(wrapped)]
    drawn = "Memory is drawn  " + "  ".join(f"{mark} {meaning}" for mark, meaning in LEGEND.items())
    return [*lines, "", *(part for text in (drawn, *_MEANINGS) for part in textwrap.wrap(text, columns))]


def _troubles(cycle: Cycle, columns: int) -> list[str]:
    texts = [f"{each.name}: {state_because(each.state, each.reason)}" for each in cycle.troubles]
    texts += [f"GPU {gpu.index}: {state_because(gpu.health, gpu.reason)}" for gpu in cycle.gpus if gpu.health != "ok"]
    if cycle.simulated is not None:
        texts.append(f"SIMULATED HOST, no figure is of a real GPU: {cycle.simulated}")
    elif texts:
        texts.append("otel-gpu doctor tells, on that host, what to do about it")
    texts = texts or ["everything that is there could be read"]
    return [part for text in texts for part in textwrap.wrap(printable(text), columns, subsequent_indent="  ")]
