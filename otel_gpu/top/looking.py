"""What somebody looks at: the order, the filter, the selected line, what is opened. Keys change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from otel_gpu.top import keys
from otel_gpu.top.colours import Colours
from otel_gpu.top.cycle import Cycle, Process, Workload
from otel_gpu.top.facts import facts
from otel_gpu.top.filter import parse_filter

_LONGEST_FILTER: Final = 200


@dataclass(frozen=True, slots=True)
class Order:
    """One order of workloads: its key, its name in the heading, and by what. Figures begin with the largest."""

    key: str
    name: str
    value: Callable[[Workload], Any]
    falls: bool = True


ORDERS: Final[Mapping[str, Order]] = {
    order.key: order
    for order in (
        Order("n", "name", lambda workload: workload.title.lower(), falls=False),
        Order("g", "GPU", lambda workload: workload.place_order, falls=False),
        Order("m", "memory", lambda workload: workload.memory_bytes),
        Order("s", "SM", lambda workload: workload.use.sm_ratio),
        Order("w", "power", lambda workload: workload.use.power_w),
        Order("e", "energy", lambda workload: workload.use.so_far.total_mj),
        Order("i", "idle", lambda workload: workload.use.idle_s),
        Order("c", "cost", lambda workload: workload.cost),
    )
}
"""In the order of the columns, which is the page's."""


class Overlay(Enum):
    """What covers the tables."""

    HELP = auto()
    TROUBLES = auto()


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table: a workload or, under an opened one, a process or a fact about it."""

    key: str
    workload: Workload
    process: Process | None = None
    fact: str | None = None


class Looking:
    """The state of one who looks. ``page`` and ``gpu_page`` are how many lines are seen, which whoever draws tells."""

    def __init__(self) -> None:
        self.colours = Colours()
        self.order = ORDERS["m"]
        self.falls = True
        self.filter = ""
        self.typing = False
        self.overlay: Overlay | None = None
        self.selected: str | None = None
        self.frozen: Cycle | None = None
        self.wants_to_quit = False
        self.wants_redraw = False
        self.page = 1
        self.top = 0
        self.gpu_page = 1
        self.gpu_top = 0
        self._opened: set[str] = set()
        self._at = 0

    # -- what is seen ---------------------------------------------------------------

    def shown(self, newest: Cycle) -> Cycle:
        """The cycle to show: the newest, or the one that was frozen."""
        return self.frozen or newest

    def workloads(self, cycle: Cycle) -> list[Workload]:
        """Those that the filter leaves, in order. What is not known comes last, whichever way."""
        if self.order.key == "c" and cycle.currency is None:  # an agent that came back without prices
            self.order, self.falls = ORDERS["m"], ORDERS["m"].falls
        found = list(filter(parse_filter(self.filter).matches, cycle.workloads))
        found.sort(key=lambda workload: (workload.title, workload.key))  # which holds among equal ones, whichever way
        value = self.order.value
        known = [workload for workload in found if value(workload) is not None]
        unknown = [workload for workload in found if value(workload) is None]
        return sorted(known, key=value, reverse=self.falls) + unknown

    def lines(self, cycle: Cycle) -> list[Line]:
        """The lines of the table, opened workloads with all that is in them."""
        self._opened &= {workload.key for workload in cycle.workloads}
        lines: list[Line] = []
        for workload in self.workloads(cycle):
            lines.append(Line(workload.key, workload))
            if workload.key in self._opened:
                inside = [Line(f"{workload.key}\n{at}", workload, fact=fact) for at, fact in enumerate(facts(workload))]
                inside += [Line(f"{workload.key}\n{each.key}", workload, each) for each in workload.processes]
                lines += inside
        return lines

    def position(self, lines: list[Line]) -> int:
        """Where the selected line is now; where it went, the one that took its place."""
        if self.selected is None or not lines:
            self._at = 0
            return 0
        found = next((at for at, line in enumerate(lines) if line.key == self.selected), None)
        self._at = min(self._at, len(lines) - 1) if found is None else found
        self.selected = lines[self._at].key
        return self._at

    def is_open(self, workload: Workload) -> bool:
        """Whether its processes are shown."""
        return workload.key in self._opened

    # -- what keys do ---------------------------------------------------------------

    def press(self, key: str, newest: Cycle | None) -> None:
        """Take a key. Before the first cycle there is nothing but the way out and help."""
        if key == keys.REDRAW:
            self.wants_redraw = True
        elif self.typing:
            self._type(key)
        elif self.overlay is not None:
            self._press_over(key)
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

    def _press_over(self, key: str) -> None:
        """Any key closes what covers the tables; one that opens the other opens it."""
        opens = {"h": Overlay.HELP, "?": Overlay.HELP, "t": Overlay.TROUBLES}.get(key)
        self.overlay = None if opens is self.overlay else opens

    def _press(self, key: str, newest: Cycle) -> None:
        cycle = self.shown(newest)
        match key:
            case "/":
                self.typing = True
            case keys.ESCAPE:
                self.filter = ""
            case " ":
                self.frozen = newest if self.frozen is None else None
            case "t":
                self.overlay = Overlay.TROUBLES
            case "p" | keys.ENTER:
                self._open(cycle)
            case "r":
                self.falls = not self.falls
            case "[" | "]":
                self.gpu_top = max(0, self.gpu_top + (self.gpu_page if key == "]" else -self.gpu_page))
            case "<" | ">":
                self._sort_beside(cycle, 1 if key == ">" else -1)
            case _ if key in ORDERS and (key != "c" or cycle.currency is not None):
                self._sort(ORDERS[key])
            case _:
                self._move(key, cycle)

    def _sort(self, order: Order) -> None:
        self.falls = not self.falls if order is self.order else order.falls
        self.order = order

    def _sort_beside(self, cycle: Cycle, step: int) -> None:
        orders = [order for order in ORDERS.values() if order.key != "c" or cycle.currency is not None]
        at = orders.index(self.order) + step if self.order in orders else 0
        if 0 <= at < len(orders):
            self._sort(orders[at])

    def _open(self, cycle: Cycle) -> None:
        lines = self.lines(cycle)
        if not lines:
            return
        workload = lines[self.position(lines)].workload
        self._opened ^= {workload.key}
        self.selected = workload.key

    def _move(self, key: str, cycle: Cycle) -> None:
        steps = {
            keys.UP: -1, "k": -1, keys.DOWN: 1, "j": 1,
            keys.PAGE_UP: -self.page, keys.PAGE_DOWN: self.page,
            keys.FIRST: -(1 << 30), keys.LAST: 1 << 30, "G": 1 << 30,
        }  # fmt: skip
        lines = self.lines(cycle)
        if key not in steps or not lines:
            return
        at = max(0, min(len(lines) - 1, self.position(lines) + steps[key]))
        # Who is at the top stays there, whoever comes to stand there; anybody else is followed.
        self._at, self.selected = at, lines[at].key if at else None
