"""Metrics in columns, cycle after cycle: what is as it was in the last one is the same object.

Exporters then know what they need not write again by looking at one object, and not at thousands of points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, compress
from struct import pack
from typing import Generic, NamedTuple, TypeVar

from otel_gpu.metrics.catalogue import Kind, Metric
from otel_gpu.metrics.collection import Family
from otel_gpu.metrics.layout import DeviceTags
from otel_gpu.metrics.points_reading import Device, Reading
from otel_gpu.metrics.points_use import Values
from otel_gpu.metrics.rows import Rows, Use
from otel_gpu.metrics.series import Point, Series
from otel_gpu.metrics.tags import Attributes, Tags

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class OfRows(Generic[Use]):
    """A metric of workloads or processes: its values, and what attributes those of a row have of their own.

    Who only could use a GPU has points of it only ``of_possible``.
    """

    values: Callable[[Rows[Use]], Values]
    own: tuple[Attributes, ...] = ()
    of_possible: bool = False


@dataclass(frozen=True, slots=True)
class OfDevices:
    """A metric of whole GPUs: the values of each, their attributes, and which of them count since the books began.

    Where it says nothing of that, none of them does.
    """

    values: Callable[[Device], Iterable[float | None]]
    tags: Callable[[DeviceTags], tuple[Tags, ...]]
    counted: tuple[bool, ...] = ()


def plain(device: DeviceTags) -> tuple[Tags, ...]:
    """Attributes of a GPU, and none beside them."""
    return (device.attributes,)


class _Last(NamedTuple):
    """What was told of a metric, and what that followed from: who sits there, since when, and who has a value."""

    seats: object
    starts: object
    values: tuple[float | None, ...]
    present: list[bool] | None
    family: Family

    def is_of(self, values: tuple[float | None, ...]) -> bool:
        """Whether these values are written alike, however they are written.

        Equal they are also if 1 becomes 1.0, or 0.0 becomes -0.0: types differ then, or bits.
        """
        if values != self.values or [*map(type, values)] != [*map(type, self.values)]:
            return False
        told = values if self.present is None else tuple(compress(values, self.present))
        doubles = f"{len(told)}d"
        return pack(doubles, *told) == pack(doubles, *self.family.values)


class Columns:
    """What was told of each metric in the last cycle, and nothing older."""

    def __init__(self) -> None:
        self._last: dict[str, _Last] = {}

    def of_rows(self, metric: Metric, how: OfRows[Use], rows: Rows[Use]) -> Family | None:
        """A metric of workloads or processes."""
        values, each = how.values(rows), len(how.own) or 1
        if not how.of_possible:
            for number in rows.possible:
                values[number * each : (number + 1) * each] = [None] * each
        starts = rows.starts if metric.kind is Kind.COUNTER else None

        def series() -> Series:
            identities, attributes = rows.seats
            if how.own:
                attributes = tuple([tags.adding(own) for tags in attributes for own in how.own])
            return Series(attributes, _each(identities, each), _each(starts or (None,) * len(rows), each))

        return self._family(metric, rows.seats, starts, values, series)

    def of_devices(self, metric: Metric, how: OfDevices, reading: Reading) -> Family | None:
        """A metric of whole GPUs."""
        values = list(chain.from_iterable(map(how.values, reading.devices)))
        epoch_ns = reading.attribution.epoch_ns

        def series() -> Series:
            attributes = tuple(chain.from_iterable(map(how.tags, reading.seats)))
            starts = [epoch_ns if counts else None for counts in how.counted] * len(reading.seats)
            return Series(attributes, (None,) * len(values), tuple(starts or (None,) * len(values)))

        return self._family(metric, reading.seats, epoch_ns, values, series)

    def of_points(self, metric: Metric, points: Iterable[Point]) -> Family | None:
        """A metric that has as many points as there are."""
        found = tuple(points)
        series, last = Series.of(found), self._last.get(metric.name)
        if last is not None and series.is_that_of(last.family.series):
            series = last.family.series
        return self._family(metric, series, None, [point[0] for point in found], lambda: series)

    def _family(
        self, metric: Metric, seats: object, starts: object, values: Values, series: Callable[[], Series]
    ) -> Family | None:
        """The family of these values, of which those that are absent are left out; the last one if it is the same."""
        found, last = tuple(values), self._last.get(metric.name)
        if last is not None and (last.seats is not seats or last.starts != starts):
            last = None
        if last is not None and last.is_of(found):
            return last.family
        present, told = None, tuple([value for value in found if value is not None])
        if len(told) < len(found):
            present = [value is not None for value in found]
        if not told:
            self._last.pop(metric.name, None)
            return None
        if last is not None and last.present == present:
            family = Family(metric, last.family.series, told)
        else:
            family = Family(metric, series() if present is None else series().only(present), told)
        self._last[metric.name] = _Last(seats, starts, found, present, family)
        return family


def _each(values: tuple[Value, ...], times: int) -> tuple[Value, ...]:
    """Each of them so many times in a row."""
    return values if times == 1 else tuple([value for value in values for _ in range(times)])
