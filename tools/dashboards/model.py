"""The parts of a dashboard. Queries, legends and selectors use the names of the catalogue (``promql``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

COLUMNS: Final = 24
"""The width of every Grafana dashboard."""

Colors = tuple[tuple[str, str], ...]
"""Names of series with their colours."""


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
    # One workload on one GPU counts as one. Two workloads on a GPU are two, and so is one workload on two GPUs.
    WORKLOADS = "suffix: workloads"
    WORKLOAD_HOURS = "suffix: workload·h"
    GIB_HOURS = "suffix: GiB·h"
    CORES = "suffix: cores"


class Draw(StrEnum):
    """How a panel shows its figures. ``STACK`` is for parts of a sum."""

    STAT = "stat"
    LINES = "lines"
    STACK = "stack"
    BARS = "bars"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and the legend of its series."""

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
    """A panel. ``description`` says how its figures are obtained. From ``alarm`` on, a value is red."""

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
    """Panels under a heading, filled from left to right. ``repeat`` is a variable with one section for each value."""

    title: str
    panels: tuple[Panel, ...]
    repeat: str = ""


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top: the values of a label of a selector. ``several`` allows more than one, or all."""

    name: str
    title: str
    selector: str
    key: str
    several: bool = True


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard. ``scope`` selects every metric of its queries by the chosen variables."""

    name: str
    title: str
    description: str
    scope: str
    variables: tuple[Variable, ...]
    sections: tuple[Section, ...]

    @property
    def uid(self) -> str:
        """The address in Grafana, independent of the title."""
        return f"otel-gpu-{self.name}"
