"""The form of the table: another exporter as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Generic, TypeVar

from otel_gpu.metrics.rows import ReportRows

S = TypeVar("S")


class Kind(StrEnum):
    """What Prometheus is told a family is."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Join(Enum):
    """What becomes of values with the same labels, such as of two MIG instances where an exporter names GPUs only."""

    ADDED = "added"
    LARGEST = "largest"


@dataclass(frozen=True, slots=True)
class Scene:
    """What a listener tells of: a cycle, the host it was read on, and whether pods are told of."""

    rows: ReportRows
    host_name: str = ""
    kubernetes: bool = True


@dataclass(frozen=True, slots=True)
class Family(Generic[S]):
    """One metric of another exporter: whom it is ``of``, its labels, its value. A value of ``None`` has no series."""

    name: str
    kind: Kind
    help: str
    of: Callable[[Scene], Iterable[S]]
    labels: tuple[tuple[str, Callable[[S], str]], ...]
    value: Callable[[S], float | None]
    join: Join = Join.ADDED


@dataclass(frozen=True, slots=True)
class Option:
    """A variable or a flag of another exporter. It counts where that exporter is stood in for, and nowhere else.

    ``sets`` is the field of the listener that it decides; ``label`` the label it puts on every series. ``bare`` is a
    flag that is true without a value, as Go has them.

    ``agent`` is the setting of the agent that decides it for every listener alike, ``usual`` what the agent does if
    that setting says nothing, ``only`` what it does always. Another value is told with ``note``, and stops nobody.
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
    """Another exporter. ``health`` is the path it answers on while it lives; ``max_age_s`` how often it looks."""

    name: str
    port: int
    max_age_s: float
    families: tuple[Family[Any], ...]
    prefix: str = ""
    health: str | None = None
    variables: tuple[Option, ...] = ()
    flags: tuple[Option, ...] = ()
