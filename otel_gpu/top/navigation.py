"""What the user has chosen: the order, the filter, the selected line, what is open. Keys change it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from otel_gpu.top import terminal as keys
from otel_gpu.view.columns import WORKLOAD_COLUMNS, ColumnOf, Figures
from otel_gpu.view.model import Detail, ProcessRow, Sort, View, WorkloadRow, chosen, ordered

_LONGEST_FILTER: Final = 200
_FAR: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Filter:
    """Matches workloads that are on all of these GPUs and have each word, or begin their id with it."""

    gpus: frozenset[int] = frozenset()
    words: tuple[str, ...] = ()

    def matches(self, workload: WorkloadRow) -> bool:
        """Whether the workload remains. An id matches at its beginning only: it is random digits."""
        return self.gpus <= set(workload.gpus) and all(
            word in workload.words or workload.id.lower().startswith(word) for word in self.words
        )


def parse_filter(text: str) -> Filter:
    """The filter of a text: ``gpu 3`` and ``gpu3`` mean GPU 3, the rest are words.

    The page filters in the browser by the same rules; tests/filter_cases.json is a table of cases for both.
    """
    gpus, words = set(), []
    for found in re.finditer(r"(?<!\S)gpu\s*([0-9]{1,9})(?!\S)|(\S+)", text.lower()):
        if found[1] is not None:
            gpus.add(int(found[1]))
        else:
            words.append(found[2])
    return Filter(frozenset(gpus), tuple(words))


@dataclass(frozen=True, slots=True)
class Order:
    """An order of workloads: its key on the keyboard, its name, and the column it sorts by."""

    key: str
    name: str
    column: str


def _order(column: ColumnOf[Figures]) -> Order:
    key, name = column.column.key, column.column.name
    return Order(column.shortcut, name if name.isupper() else key, key)


ORDERS: Final[Mapping[str, Order]] = {each.shortcut: _order(each) for each in WORKLOAD_COLUMNS if each.shortcut}
"""In the order of the columns."""


_NO_ORDER: Final = Order("", "", "")


def available_orders(view: View) -> list[Order]:
    """The orders by columns that the view has: a view without prices has no cost."""
    columns = {column.key for column in view.columns}
    return [order for order in ORDERS.values() if order.column in columns]


class Overlay(Enum):
    """What covers the tables."""

    HELP = auto()
    PROBLEMS = auto()


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table: a workload or, under an open one, one of its processes or details."""

    key: str
    workload: WorkloadRow
    process: ProcessRow | None = None
    detail: Detail | None = None


class Navigation:
    """The user's choices. ``page`` and ``gpu_page`` are the numbers of visible lines, which the screen sets."""

    def __init__(self) -> None:
        self.order, self.descending = _NO_ORDER, False
        self.filter = ""
        self.typing = False
        self.overlay: Overlay | None = None
        self.selected: str | None = None
        self.frozen: View | None = None
        self.wants_to_quit = False
        self.wants_redraw = False
        self.page = 1
        self.top = 0
        self.gpu_page = 1
        self.gpu_top = 0
        self._open: set[str] = set()
        self._at = 0

    # -- what is visible ------------------------------------------------------------

    def shown(self, newest: View) -> View:
        """The view to show: the newest, or the frozen one."""
        return self.frozen or newest

    def workloads(self, view: View) -> list[WorkloadRow]:
        """The workloads that match the filter, in order. Unknown values come last in both directions."""
        self._choose_order(view)
        found = filter(parse_filter(self.filter).matches, view.workloads)
        return ordered(view.columns, found, Sort(self.order.column, self.descending))

    def lines(self, view: View) -> list[Line]:
        """The lines of the table, with the content of open workloads."""
        self._open &= {workload.key for workload in view.workloads}
        lines: list[Line] = []
        for workload in self.workloads(view):
            lines.append(Line(workload.key, workload))
            if workload.key in self._open:
                details = [*_details(workload), *workload.explanation]
                lines += [Line(f"{workload.key}\n{at}", workload, detail=each) for at, each in enumerate(details)]
                lines += [Line(f"{workload.key}\n{each.key}", workload, each) for each in workload.processes]
        return lines

    def position(self, lines: list[Line]) -> int:
        """The selected line; if it is gone, the one in its place."""
        if self.selected is None or not lines:
            self._at = 0
            return 0
        found = next((at for at, line in enumerate(lines) if line.key == self.selected), None)
        self._at = min(self._at, len(lines) - 1) if found is None else found
        self.selected = lines[self._at].key
        return self._at

    def is_open(self, workload: WorkloadRow) -> bool:
        """Whether its processes are shown."""
        return workload.key in self._open

    # -- keys -----------------------------------------------------------------------

    def press(self, key: str, newest: View | None) -> None:
        """Handle a key. Before the first view only help, redraw and quit work."""
        if key == keys.REDRAW:
            self.wants_redraw = True
        elif self.typing:
            self._type(key)
        elif self.overlay is not None:
            self._press_in_overlay(key)
        elif key in {"q", "Q"}:
            self.wants_to_quit = True
        elif key in {"h", "?"}:
            self.overlay = Overlay.HELP
        elif newest is not None:
            self._press(key, newest)

    def _type(self, key: str) -> None:
        match key:
            case keys.ENTER:
                self.typing = False
            case keys.ESCAPE:
                self.typing, self.filter = False, ""
            case keys.BACKSPACE:
                self.filter = self.filter[:-1]
            case keys.CLEAR_LINE:
                self.filter = ""
            case _ if len(key) == 1:
                self.filter = (self.filter + key)[:_LONGEST_FILTER]

    def _press_in_overlay(self, key: str) -> None:
        """Any key closes an overlay; the key of the other overlay opens that one."""
        opens = {"h": Overlay.HELP, "?": Overlay.HELP, "t": Overlay.PROBLEMS}.get(key)
        self.overlay = None if opens is self.overlay else opens

    def _press(self, key: str, newest: View) -> None:
        view = self.shown(newest)
        self._choose_order(view)
        match key:
            case "/":
                self.typing = True
            case keys.ESCAPE:
                self.filter = ""
            case " ":
                self.frozen = newest if self.frozen is None else None
            case "t":
                self.overlay = Overlay.PROBLEMS
            case "p" | keys.ENTER:
                self._toggle(view)
            case "r":
                self.descending = not self.descending
            case "[" | "]":
                self.gpu_top = max(0, self.gpu_top + (self.gpu_page if key == "]" else -self.gpu_page))
            case "<" | ">":
                self._sort_by_neighbour(view, 1 if key == ">" else -1)
            case _ if key in ORDERS and ORDERS[key] in available_orders(view):
                self._sort(ORDERS[key], view)
            case _:
                self._move(key, view)

    def _choose_order(self, view: View) -> None:
        """The view's own order at first, and after its agent came back without the column: prices may be gone."""
        orders = available_orders(view)
        if self.order not in orders:
            self.order = next((order for order in orders if order.column == view.sort.column), _NO_ORDER)
            self.descending = view.sort.descending

    def _sort(self, order: Order, view: View) -> None:
        column = next(column for column in view.columns if column.key == order.column)
        self.descending = chosen(Sort(self.order.column, self.descending), column).descending
        self.order = order

    def _sort_by_neighbour(self, view: View, step: int) -> None:
        orders = available_orders(view)
        at = orders.index(self.order) + step if self.order in orders else 0
        if 0 <= at < len(orders):
            self._sort(orders[at], view)

    def _toggle(self, view: View) -> None:
        lines = self.lines(view)
        if not lines:
            return
        workload = lines[self.position(lines)].workload
        self._open ^= {workload.key}
        self.selected = workload.key

    def _move(self, key: str, view: View) -> None:
        steps = {
            keys.UP: -1, "k": -1, keys.DOWN: 1, "j": 1,
            keys.PAGE_UP: -self.page, keys.PAGE_DOWN: self.page,
            keys.FIRST: -_FAR, keys.LAST: _FAR, "G": _FAR,
        }  # fmt: skip
        lines = self.lines(view)
        if key not in steps or not lines:
            return
        at = max(0, min(len(lines) - 1, self.position(lines) + steps[key]))
        # At the top the selection stays at the top; anywhere else it follows the selected line.
        self._at, self.selected = at, lines[at].key if at else None


def _details(workload: WorkloadRow) -> list[Detail]:
    """The names that the workload's line does not show already."""
    details = [detail for detail in workload.identity if detail.text != workload.name]
    return [*details, Detail("Processes", workload.no_processes)] if workload.no_processes else details
