"""The schema of the table: another exporter as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Generic, TypeVar

from otel_gpu.metrics.rows import ReportRows

S = TypeVar("S")


class Kind(StrEnum):
    """The Prometheus type of a family."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Aggregation(Enum):
    """How values with equal labels become one, such as those of two MIG instances without a label that differs."""

    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class RenderContext:
    """The input of a rendering: the rows of a cycle, the host's name, and whether pods are reported."""

    rows: ReportRows
    host_name: str = ""
    kubernetes: bool = True


@dataclass(frozen=True, slots=True)
class Family(Generic[S]):
    """One metric of another exporter: its subjects, its labels, its value. A value of ``None`` has no series."""

    name: str
    kind: Kind
    help: str
    subjects: Callable[[RenderContext], Iterable[S]]
    labels: tuple[tuple[str, Callable[[S], str]], ...]
    value: Callable[[S], float | None]
    aggregation: Aggregation = Aggregation.SUM


@dataclass(frozen=True, slots=True)
class Option:
    """A variable or flag of another exporter. It applies to that exporter's listener only.

    ``sets`` is the field of the listener that it sets; ``label`` is the label it adds to every series. ``bare`` marks a
    flag that is true without a value, as in Go.

    ``agent`` is the agent's setting that decides it for all listeners, ``usual`` the agent's default for that setting,
    ``only`` the one value the agent supports. Any other value logs a warning with ``note``.
    """

    name: str
    parse: Callable[[str], Any]
    allowed: str
    sets: str = ""
    label: str = ""
    bare: bool = False
    agent: str = ""
    usual: Any = None
    only: Any = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Exporter:
    """Another exporter. ``health`` is the path of its health check, ``max_age_s`` its sampling interval."""

    name: str
    port: int
    max_age_s: float
    families: tuple[Family[Any], ...]
    prefix: str = ""
    health: str | None = None
    variables: tuple[Option, ...] = ()
    flags: tuple[Option, ...] = ()
