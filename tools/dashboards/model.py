"""What a dashboard is made of. Queries, legends and selectors are in the names of the catalogue (``promql``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

COLUMNS: Final = 24
"""The width of every Grafana dashboard."""

Colors = tuple[tuple[str, str], ...]
"""What a series is called, and its colour."""


class Unit(StrEnum):
    """Units as Grafana names them (packages/grafana-data/src/valueFormats/categories.ts)."""

    NONE = "none"
    COUNT = "short"
    BYTES = "bytes"
    RATIO = "percentunit"
    WATTS = "watt"
    KWH = "kwatth"
    JOULES = "joule"
    CELSIUS = "celsius"
    SECONDS = "s"
    GPUS = "suffix: GPU"
    GPU_HOURS = "suffix: GPU·h"
    # One workload on one GPU: two on one GPU are two, and so is one on two.
    WORKLOADS = "suffix: workloads"
    WORKLOAD_HOURS = "suffix: workload·h"
    GIB_HOURS = "suffix: GiB·h"
    CORES = "suffix: cores"


class Draw(StrEnum):
    """How a panel shows what it finds. ``STACK`` is lines whose sum means something."""

    STAT = "stat"
    LINES = "lines"
    STACK = "stack"
    BARS = "bars"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and what each of its series is called."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: a label, or the value of the query of that letter (``A`` the first)."""

    of: str
    title: str
    unit: Unit = Unit.NONE
    link: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture. ``description`` says how its figures are obtained. ``alarm`` is the value from which it is red."""

    title: str
    description: str
    draw: Draw
    unit: Unit
    queries: tuple[Query, ...]
    width: int = 12
    height: int = 8
    columns: tuple[Column, ...] = ()
    colors: Colors = ()
    alarm: float | None = None
    top: float | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """Panels under a heading, from left to right as far as they fit. ``repeat`` is a variable: once for each value."""

    title: str
    panels: tuple[Panel, ...]
    repeat: str = ""


@dataclass(frozen=True, slots=True)
class Variable:
    """What can be chosen at the top: the values of a label of a selector. ``several`` at once, or all."""

    name: str
    title: str
    selector: str
    key: str
    several: bool = True


@dataclass(frozen=True, slots=True)
class Dashboard:
    """``scope`` is what every metric of its queries is selected by: the variables' choice."""

    name: str
    title: str
    description: str
    scope: str
    variables: tuple[Variable, ...]
    sections: tuple[Section, ...]

    @property
    def uid(self) -> str:
        """Its address in Grafana, which stays whatever its title is."""
        return f"otel-gpu-{self.name}"
