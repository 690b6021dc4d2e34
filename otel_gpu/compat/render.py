"""Series of another exporter in Prometheus text format 0.0.4, and a shorter retention for them."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from otel_gpu.compat.schema import Aggregation, Family, RenderContext, S
from otel_gpu.metrics.names import help_text, labels_text
from otel_gpu.metrics.rows import ReportRows, UseRow
from otel_gpu.model import ProcessKey, ProcessReport

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(
    families: Iterable[Family[Any]], context: RenderContext, *, prefix: str, labels: Iterable[tuple[str, str]] = ()
) -> bytes:
    """All series of some families for one cycle; ``labels`` are on every series. An unknown value has no series."""
    return b"".join(render_parts(families, context, prefix=prefix, labels=labels))


def render_parts(
    families: Iterable[Family[Any]], context: RenderContext, *, prefix: str, labels: Iterable[tuple[str, str]] = ()
) -> Iterator[bytes]:
    """The same, family by family."""
    subjects = _LabelledSubjects(context, tuple(labels))
    for family in families:
        yield "\n".join([*_family(family, prefix, subjects), ""]).encode()


class _LabelledSubjects:
    """Subjects with their label text, rendered once for all families with the same subjects and labels."""

    def __init__(self, context: RenderContext, constant: tuple[tuple[str, str], ...]) -> None:
        self._context = context
        self._constant = constant
        self._rendered: dict[tuple[object, object], list[tuple[Any, str]]] = {}

    def get(self, family: Family[S]) -> list[tuple[S, str]]:
        """The subjects of a family, each with its label text."""
        rendered = self._rendered.get((family.subjects, family.labels))
        if rendered is None:
            rendered = [(subject, self._text(family, subject)) for subject in family.subjects(self._context)]
            self._rendered[family.subjects, family.labels] = rendered
        return rendered

    def _text(self, family: Family[S], subject: S) -> str:
        return labels_text([*((label, read(subject)) for label, read in family.labels), *self._constant])


def _family(family: Family[Any], prefix: str, subjects: _LabelledSubjects) -> Iterator[str]:
    name = f"{prefix}{family.name}"
    yield f"# HELP {name} {help_text(family.help)}"
    yield f"# TYPE {name} {family.type}"
    for labels, value in _series(family, subjects).items():
        yield f"{name}{{{labels}}} {value!r}" if labels else f"{name} {value!r}"


def _series(family: Family[S], subjects: _LabelledSubjects) -> dict[str, float]:
    series: dict[str, float] = {}
    for subject, labels in subjects.get(family):
        value = family.value(subject)
        if value is None or not math.isfinite(value):
            continue
        before = series.get(labels)
        if before is not None:
            value = before + value if family.aggregation is Aggregation.SUM else max(before, value)
        series[labels] = value
    return series


# ---------------------------------------------------------------------------- retention

_Key: TypeAlias = tuple[ProcessKey, str, str | None, int]


class ProcessRetention:
    """A filter for processes that ended more than ``retention_s`` ago.

    The time counts from the first report with the ended process, so that a scraper with a long interval still gets the
    last value once. Only processes of the latest report are kept.
    """

    def __init__(self, retention_s: float) -> None:
        self._retention_ns = round(retention_s * 1e9)
        self._ended_ns: dict[_Key, int] = {}
        self._lock = threading.Lock()

    def filter(self, rows: ReportRows) -> ReportRows:
        """The rows of a cycle without those processes."""
        now_ns = rows.report.monotonic_ns
        ended = [_key(row) for row in rows.processes if not row.use.active]
        with self._lock:
            self._ended_ns = {key: self._ended_ns.get(key, now_ns) for key in ended}
            expired = {key for key, since_ns in self._ended_ns.items() if now_ns - since_ns > self._retention_ns}
        return replace(rows, processes=tuple(row for row in rows.processes if _key(row) not in expired))


def _key(row: UseRow[ProcessReport]) -> _Key:
    return row.use.key, row.use.gpu_uuid, row.use.mig_uuid, row.use.naming
