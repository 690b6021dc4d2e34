"""The schema of the table, another exporter as data, and parsers for the values of its variables and flags."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from otel_gpu.config.values import Address, address, socket_path, whole_number
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


# ---------------------------------------------------------------------------- values of variables and flags
#
# Each parser raises ValueError and nothing else.

_GO_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_GO_PART: Final = r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
_MAX_S: Final = 86_400.0
_MAX_GO_S: Final = (2**63 - 1) / 1e9

GO_DURATION: Final = "a duration up to 24h, such as 5s or 1m30s"
GO_RETENTION: Final = "a duration such as 5m or 1h30m"
PORT: Final = "a port from 1 to 65535"
LISTEN: Final = ":PORT on the agent's host, or HOST:PORT, with a port from 1 to 65535"


def port(text: str) -> Address:
    """A port of the agent's host."""
    return Address("", whole_number(1, 65535)(text))


def listen(text: str) -> Address:
    """``:9400``, ``host:9400``. Without a host it is the agent's, not every host as in Go."""
    text = text.strip()
    found = port(text[1:]) if text.startswith(":") else address(text)
    if not found.port:
        raise ValueError(text)
    return found


def go_duration_s(text: str) -> float:
    """A Go duration such as ``1m30s``, up to 24 h, in seconds."""
    return _within(go_retention_s(text), text)


def go_retention_s(text: str) -> float:
    """A Go duration of any length, in seconds; 0 is valid."""
    word = text.strip().removeprefix("+")
    parts = re.findall(_GO_PART, word, re.ASCII)
    if word != "0" and (not parts or "".join(number + unit for number, unit in parts) != word):
        raise ValueError(text)
    found_s = sum(float(number) * _GO_UNITS[unit] for number, unit in parts)
    if found_s > _MAX_GO_S:
        raise ValueError(text)
    return found_s


def seconds(text: str) -> float:
    """A number of seconds."""
    if not re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", text.strip(), re.ASCII):
        raise ValueError(text)
    return _within(float(text), text)


def milliseconds(text: str) -> float:
    """A whole number of milliseconds, in seconds."""
    return _within(whole_number(1, 10**9)(text) / 1e3, text)


def _within(found_s: float, text: str) -> float:
    if not 0 < found_s <= _MAX_S:
        raise ValueError(text)
    return found_s


def go_switch(text: str) -> bool:
    """A boolean as Go parses it."""
    word = text.strip()
    if word in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if word in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise ValueError(text)


def watts(text: str) -> float:
    """A number of watts."""
    if not re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{0,9})?", text.strip(), re.ASCII):
        raise ValueError(text)
    return float(text)


def metric_prefix(text: str) -> str:
    """A prefix of metric names; an underscore is added."""
    if not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", text.strip(), re.ASCII):
        raise ValueError(text)
    return f"{text.strip()}_"


def url_path(text: str) -> str:
    """A URL path."""
    if not re.fullmatch(r"/[A-Za-z0-9._~/-]*", text.strip(), re.ASCII):
        raise ValueError(text)
    return text.strip()


def log_level(text: str) -> str:
    """The agent's name for a Go log level; an unknown level is info, as in Go."""
    return {"debug": "debug", "warn": "warning", "error": "error"}.get(text, "info")


def socket(text: str) -> Path:
    """The path of a socket."""
    path = socket_path(text)
    if path is None:
        raise ValueError(text)
    return path


def label_value(text: str) -> str:
    """Any text."""
    return text.strip()
