"""The table and a cycle, as Prometheus's text format 0.0.4 has it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from otel_gpu.compat.form import Exporter, Family, Join, S, Scene
from otel_gpu.metrics.exposition_text import help_text, labels_text

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(exporter: Exporter, scene: Scene, *, prefix: str, labels: Iterable[tuple[str, str]] = ()) -> bytes:
    """All that an exporter tells of a cycle; ``labels`` are on every series. What is not known has no series."""
    labelled = _Labelled(scene, tuple(labels))
    lines = [line for family in exporter.families for line in _family(family, prefix, labelled)]
    return "\n".join([*lines, ""]).encode()


class _Labelled:
    """Subjects with their labels as text, made once for all families that have the same."""

    def __init__(self, scene: Scene, constant: tuple[tuple[str, str], ...]) -> None:
        self._scene = scene
        self._constant = constant
        self._made: dict[tuple[object, object], list[tuple[Any, str]]] = {}

    def of(self, family: Family[S]) -> list[tuple[S, str]]:
        """Whom a family is of, and the labels of each."""
        made = self._made.get((family.of, family.labels))
        if made is None:
            made = [(subject, self._text(family, subject)) for subject in family.of(self._scene)]
            self._made[family.of, family.labels] = made
        return made

    def _text(self, family: Family[S], subject: S) -> str:
        return labels_text([*((label, read(subject)) for label, read in family.labels), *self._constant])


def _family(family: Family[Any], prefix: str, labelled: _Labelled) -> Iterator[str]:
    name = f"{prefix}{family.name}"
    yield f"# HELP {name} {help_text(family.help)}"
    yield f"# TYPE {name} {family.kind}"
    for labels, value in _series(family, labelled).items():
        yield f"{name}{{{labels}}} {value!r}" if labels else f"{name} {value!r}"


def _series(family: Family[S], labelled: _Labelled) -> dict[str, float]:
    series: dict[str, float] = {}
    for subject, labels in labelled.of(family):
        value = family.value(subject)
        if value is None or not math.isfinite(value):
            continue
        before = series.get(labels)
        if before is not None:
            value = before + value if family.join is Join.ADDED else max(before, value)
        series[labels] = value
    return series
