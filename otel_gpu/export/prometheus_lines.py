"""The lines of a metric in Prometheus's text, kept from rendering to rendering: values that changed are written."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Final

from otel_gpu.metrics.series import Cells, Series

LINE_END: Final = "\n"
_PIECES: Final = 4
_NO_LINE: Final = ("",) * _PIECES


class Lines:
    """The series of a metric, and the values last written.

    Each has four pieces: the metric's name, the labels of the point, those of its workload, and the value. The texts
    are shared: by all series of a metric, all metrics of a row, and all series of a workload. Of who has no value, or
    one that is no number, all four are empty. Lines of a run of the series make a text of their own; of each, the one
    of ``editions`` is another object as soon as something was written there. Where the same series stands twice there
    is one text, and the last one counts.
    """

    def __init__(self, series: Series, begin: str, labels: list[str], others: list[str]) -> None:
        """``begin`` is the end of the line before and the metric's name; ``others`` end where the value begins."""
        self.series = series
        self._begin, self._labels, self._others = begin, labels, others
        self._distinct = len(set(zip(labels, others, strict=True))) == len(labels)
        self._cells = Cells(series, (None,) * len(labels))
        self._pieces = [""] * (_PIECES * len(labels))
        self._runs = series.runs if self._distinct else 1
        self._run = max(1, len(labels) // self._runs)
        self.editions = [object() for _ in range(self._runs)]
        self.count = 0
        """How many lines there are."""

    def write(self, values: tuple[float | None, ...]) -> None:
        """Have these values stand there from now on."""
        if not self._distinct:
            self._write_once(values)
        elif not (self.count == 0 and self._write_all(values)):
            self._write(Cells(self.series, values))

    def text(self, run: int, head: str) -> bytes:
        """The lines of a run, each after an end of line. The ``head`` stands before all runs, an end after the last."""
        size = _PIECES * self._run
        pieces = [head] if run == 0 else []
        pieces += self._pieces if self._runs == 1 else self._pieces[run * size : (run + 1) * size]
        if run == self._runs - 1:
            pieces.append(LINE_END)
        return "".join(pieces).encode()

    def _write_all(self, values: tuple[float | None, ...]) -> bool:
        """Write every line at once, as most metrics are the first time; false where somebody has none."""
        told = [value for value in values if value is not None and isfinite(value)]
        self.count = count = len(told) if len(told) == len(values) else 0
        if count:
            columns = [self._begin] * count, self._labels, self._others, [*map(repr, told)]
            for number, column in enumerate(columns):
                self._pieces[number::_PIECES] = column
            self._cells = Cells(self.series, values)
            self.editions = [object() for _ in self.editions]
        return bool(count)

    def _write(self, cells: Cells) -> None:
        """Write the lines whose values changed."""
        changed = [*cells.changed(self._cells)]
        if not self._write_block(changed, cells.values):
            self._write_each(changed, cells.values)
        for run in {number // self._run for number in changed}:
            self.editions[run] = object()
        self._cells = cells

    def _write_block(self, changed: list[int], values: tuple[float | None, ...]) -> bool:
        """Write lines that stand together at once, as those of a run mostly are; false where somebody has none."""
        if not changed or self.count < len(values) or changed[-1] - changed[0] >= len(changed):
            return False
        first, after = changed[0], changed[-1] + 1
        told = [value for value in values[first:after] if value is not None and isfinite(value)]
        if len(told) < len(changed):
            return False
        self._pieces[_PIECES * first + _PIECES - 1 : _PIECES * after : _PIECES] = map(repr, told)
        return True

    def _write_each(self, changed: Iterable[int], values: tuple[float | None, ...]) -> None:
        pieces = self._pieces
        for number in changed:
            value, last = values[number], _PIECES * number + _PIECES - 1
            if value is None or not isfinite(value):
                self.count -= pieces[last] != ""
                pieces[last - _PIECES + 1 : last + 1] = _NO_LINE
            elif pieces[last]:
                pieces[last] = repr(value)
            else:
                self.count += 1
                line = self._begin, self._labels[number], self._others[number], repr(value)
                pieces[last - _PIECES + 1 : last + 1] = line

    def _write_once(self, values: tuple[float | None, ...]) -> None:
        """One line of each series."""
        series = zip(zip(self._labels, self._others, strict=True), values, strict=True)
        told = {labels: value for labels, value in series if value is not None and isfinite(value)}
        self._pieces = [f"{self._begin}{own}{others}{value!r}" for (own, others), value in told.items()]
        self.count = len(told)
        self.editions[0] = object()
