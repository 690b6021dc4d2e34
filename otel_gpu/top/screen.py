"""The screen: a title, totals of the host, GPUs, workloads and keys, in the lines and cells of the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from otel_gpu.top.latest import Latest, Outage
from otel_gpu.top.layout import Canvas, Piece
from otel_gpu.top.navigation import ORDERS, Navigation, Overlay, available_orders
from otel_gpu.top.tables import gpu_lines, workload_lines
from otel_gpu.view.model import View
from otel_gpu.view.terminal import TONE_STYLES, Style, Tone, cells, printable, shorten
from otel_gpu.view.text import (
    BAR_MARKS,
    CONNECTING,
    EVERYTHING_READ,
    KEY,
    LEGEND,
    NO_PROBLEMS,
    READING,
    filled,
    plural,
    utc,
)

LEAST_COLUMNS: Final = 40
LEAST_ROWS: Final = 10
_LOW: Final = 16
"""With fewer lines the totals take one line, which leaves more for workloads."""

_LEAST_HOST: Final = 8
_CLOCK: Final = "%H:%M:%S UTC"

_HELP: Final = (
    ("up down j k", "select a line; PgUp and PgDn move by a screen, Home and End to the ends"),
    ("p Enter", "open or close the selected workload: its names, reasons and processes"),
    (" ".join(ORDERS), f"sort by {', '.join(order.name for order in ORDERS.values())}; again: reverse"),
    ("< > r", "sort by the column to the left or right; reverse the order"),
    ("/", "filter: every word must be in names, image, kind, state or processes; gpu 0 is that GPU"),
    ("Enter Esc", "keep the filter; clear it"),
    ("Space", "freeze the screen; again to continue"),
    ("[ ]", "show other GPUs, if not all fit"),
    ("t", "show problems: what could not be read, and why"),
    ("q Q Ctrl-C", "quit"),
)
_COLOUR_KEY: Final = "A workload's name has the colour of its part of the bars."


def draw(navigation: Navigation, latest: Latest, address: str | None, canvas: Canvas) -> list[str]:
    """The lines of the screen, which fit the canvas. ``address`` is the agent's, ``None`` for this host."""
    columns, rows = canvas.columns, canvas.rows
    if columns < LEAST_COLUMNS or rows < LEAST_ROWS:
        text = f"Terminal too small: {columns}x{rows}; otel-gpu top needs {LEAST_COLUMNS}x{LEAST_ROWS}"
        return textwrap.wrap(text, max(columns, 1))[:rows]
    if navigation.overlay is Overlay.HELP:
        return _page(canvas.line(Piece("otel-gpu top", (Style.BOLD,))), _help(columns), canvas)
    if latest.view is None:
        waiting = READING if address is None else filled(CONNECTING, address=address)
        lines = [canvas.line(Piece("otel-gpu top", (Style.BOLD,))), "", *textwrap.wrap(waiting, columns)]
        return [*lines[: rows - 1], *[""] * (rows - 1 - len(lines)), _dim("q quit  h help", canvas)]
    view = navigation.shown(latest.view)
    title = canvas.line(*_title(view, navigation, address, columns))
    if navigation.overlay is Overlay.PROBLEMS:
        return _page(title, _problems(view, canvas), canvas)
    old = latest.outage is not None
    head = [title, *_head(view, latest.outage, canvas)]
    gpus = gpu_lines(view, navigation, canvas, max(3, (rows - len(head) - 4) // 2), old=old)
    table = workload_lines(view, navigation, canvas, rows - len(head) - len(gpus) - 1, old=old)
    filler = [""] * (rows - 1 - len(head) - len(gpus) - len(table))
    return [*head, *gpus, *table, *filler, _foot(view, navigation, canvas)]


def _page(title: str, body: list[str], canvas: Canvas) -> list[str]:
    """A text instead of the tables."""
    room = canvas.rows - 3
    if len(body) > room:
        more = f"… {len(body) - room + 1} more lines in a taller terminal"
        body = [*body[: room - 1], _dim(more, canvas)]
    return [title, "", *body, *[""] * (room - len(body)), _dim("any key: back", canvas)]


def _dim(text: str, canvas: Canvas) -> str:
    return canvas.line(Piece(text, (Style.DIM,)))


# ---------------------------------------------------------------------------- above


def _title(view: View, navigation: Navigation, address: str | None, columns: int) -> list[Piece]:
    """Host, time, problems, interval and driver."""
    at = utc(view.at_s, _CLOCK)
    where = "" if address is None else f" at {address}"
    striking = (Style.BOLD, Style.YELLOW)
    pieces = [Piece("otel-gpu", (Style.BOLD,)), Piece(f"{view.host}{where}")]
    if view.simulated is not None:
        pieces.append(Piece("SIMULATED", striking))
    pieces.append(Piece(at) if navigation.frozen is None else Piece(f"FROZEN at {at}", striking))
    briefs = ", ".join(problem.brief for problem in view.problems)
    pieces.append(Piece(f"{briefs} (t)", (Style.YELLOW,)) if briefs else Piece(NO_PROBLEMS))
    if briefs and _width(pieces) > columns:
        pieces[-1] = Piece(f"{plural(len(view.problems), 'problem')} (t)", (Style.YELLOW,))
    _narrow(pieces, columns)
    for text in (f"every {view.interval_s:g} s", *view.about):  # only what fits in full
        if sum(cells(piece.text) + 2 for piece in pieces) + cells(text) <= columns:
            pieces.append(Piece(text))
    return [part for piece in pieces for part in (Piece("  "), piece)][1:]


def _narrow(pieces: list[Piece], columns: int) -> None:
    """Drop the least important pieces and shorten the host, until the rest fits in full."""
    for text in (NO_PROBLEMS, "otel-gpu"):
        if _width(pieces) > columns:
            pieces[:] = [piece for piece in pieces if piece.text != text]
    host = 0 if pieces[0].text != "otel-gpu" else 1
    excess = _width(pieces) - columns
    if excess > 0:
        pieces[host] = Piece(shorten(pieces[host].text, max(_LEAST_HOST, cells(pieces[host].text) - excess)))


def _width(pieces: Sequence[Piece]) -> int:
    return sum(cells(piece.text) + 2 for piece in pieces) - 2


def _head(view: View, outage: Outage | None, canvas: Canvas) -> list[str]:
    """The outage if there is one, else the totals of the host."""
    if outage is not None:
        since, of = utc(outage.since_s, _CLOCK), utc(view.at_s, _CLOCK)
        text = filled(view.words.lost, since=since, reason=printable(outage.reason), time=of)
        return [canvas.line(Piece(line, (Style.BOLD, Style.RED))) for line in textwrap.wrap(text, canvas.columns)[:3]]
    lines: list[str] = []
    for total in view.totals:  # none is cut: they continue in another line, or are left out in a low terminal
        if lines and cells(f"{lines[-1]}  {total.brief}") <= canvas.columns:
            lines[-1] += f"  {total.brief}"
        else:
            lines.append(total.brief)
    return [canvas.line(Piece(line)) for line in lines[: 1 if canvas.rows < _LOW else None]]


# ---------------------------------------------------------------------------- below


def _foot(view: View, navigation: Navigation, canvas: Canvas) -> str:
    """The keys that fit, or the filter while it is typed."""
    if navigation.typing:
        return _typed(navigation.filter, canvas)
    words = ["q quit", "h help", "/ filter", "p processes", "space " + ("continue" if navigation.frozen else "freeze")]
    if view.problems:
        words.insert(2, "t problems")
    orders = available_orders(view)
    named, keys = " ".join(f"{order.key} {order.name}" for order in orders), " ".join(order.key for order in orders)
    for sorts in (named, keys):
        if cells("  ".join([*words, f"sort: {sorts}"])) <= canvas.columns:
            words.append(f"sort: {sorts}")
            break
    while len(words) > 1 and cells("  ".join(words)) > canvas.columns:
        words.pop()
    return _dim("  ".join(words), canvas)


def _typed(text: str, canvas: Canvas) -> str:
    """The filter with a cursor, or its end if it is long, and the keys if they fit."""
    words, hint = f"filter: {printable(text)}", "  Enter: keep  Esc: clear"
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
    legend = "Memory  " + "  ".join(f"{BAR_MARKS[kind]} {name}" for kind, name in LEGEND.items())
    return [*lines, "", *(part for text in (legend, _COLOUR_KEY, *KEY) for part in textwrap.wrap(text, columns))]


def _problems(view: View, canvas: Canvas) -> list[str]:
    texts = [(problem.text, problem.tone) for problem in view.problems]
    texts = texts or [(EVERYTHING_READ, Tone.NONE)]
    texts += [] if view.simulated is None else [(view.simulated, Tone.WARN)]
    texts += [(view.remedy, Tone.NONE)] if view.remedy else []
    return [
        canvas.line(Piece(line, TONE_STYLES[tone]))
        for text, tone in texts
        for line in textwrap.wrap(text, canvas.columns, subsequent_indent="  ")
    ]
