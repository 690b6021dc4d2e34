"""The schema of the table: what a metric of another exporter is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Generic, TypeVar

from otel_gpu.metrics.rows import ReportRows

S = TypeVar("S")


class FamilyType(StrEnum):
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
    type: FamilyType
    help: str
    subjects: Callable[[RenderContext], Iterable[S]]
    labels: tuple[tuple[str, Callable[[S], str]], ...]
    value: Callable[[S], float | None]
    aggregation: Aggregation = Aggregation.SUM
