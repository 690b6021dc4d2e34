"""The lines of a metric in Prometheus's text, kept from rendering to rendering: values that changed are written."""

from __future__ import annotations

from math import isfinite
from typing import Final

from otel_gpu.metrics.series import Cells, Series

_PIECES: Final = 4
_NO_LINE: Final = ("",) * _PIECES


class Lines:
    """The series of a metric, and the values last written.

    Each has four pieces: the metric's name, the labels of the point, those of its workload, and the value. The texts
    are shared: by all series of a metric, all metrics of a row, and all series of a workload. Of who has no value, or
    one that is no number, all four are empty.
    """

    def __init__(self, series: Series, begin: str, labels: list[str], others: list[str]) -> None:
        """``begin`` is the end of the line before and the metric's name; ``others`` end where the value begins."""
        self.series = series
        self._begin, self._labels, self._others = begin, labels, others
        self._distinct = len(set(zip(labels, others, strict=True))) == len(labels)
        self._cells = Cells(series, (None,) * len(labels))
        self._pieces = [""] * (1 + _PIECES * len(labels))
        self._count = 0

    def text(self, head: str, values: tuple[float | None, ...]) -> tuple[int, str]:
        """How many lines there are with these values, and all of them after a ``head``.

        Where the same series stands twice, the last one counts.
        """
        if not self._distinct:
            return self._once(head, values)
        if not (self._count == 0 and self._write_all(values)):
            self._write(Cells(self.series, values))
        self._pieces[0] = head
        return self._count, "".join(self._pieces)

    def _write_all(self, values: tuple[float | None, ...]) -> bool:
        """Write every line at once, as most metrics are the first time; false where somebody has none."""
        told = [value for value in values if value is not None and isfinite(value)]
        self._count = count = len(told) if len(told) == len(values) else 0
        if count:
            columns = [self._begin] * count, self._labels, self._others, [*map(repr, told)]
            for number, column in enumerate(columns, 1):
                self._pieces[number::_PIECES] = column
            self._cells = Cells(self.series, values)
        return bool(count)

    def _write(self, cells: Cells) -> None:
        """Write the lines whose values changed."""
        values, pieces = cells.values, self._pieces
        for number in cells.changed(self._cells):
            value, last = values[number], _PIECES * (number + 1)
            if value is None or not isfinite(value):
                self._count -= pieces[last] != ""
                pieces[last - _PIECES + 1 : last + 1] = _NO_LINE
            elif pieces[last]:
                pieces[last] = repr(value)
            else:
                self._count += 1
                line = self._begin, self._labels[number], self._others[number], repr(value)
                pieces[last - _PIECES + 1 : last + 1] = line
        self._cells = cells

    def _once(self, head: str, values: tuple[float | None, ...]) -> tuple[int, str]:
        """One line of each series."""
        series = zip(zip(self._labels, self._others, strict=True), values, strict=True)
        told = {labels: value for labels, value in series if value is not None and isfinite(value)}
        lines = [f"{self._begin}{own}{others}{value!r}" for (own, others), value in told.items()]
        return len(told), "".join([head, *lines])
