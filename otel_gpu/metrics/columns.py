"""Metrics in columns, cycle after cycle: what is as it was in the last one is the same object.

Exporters then know what they need not write again by looking at one object, and not at thousands of points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from operator import ne
from struct import pack
from typing import Generic, NamedTuple, TypeAlias, cast

from otel_gpu.metrics.catalogue import Kind, Metric
from otel_gpu.metrics.collection import MetricBlock
from otel_gpu.metrics.layout import DeviceTags
from otel_gpu.metrics.points_reading import Device, Reading
from otel_gpu.metrics.points_use import Values
from otel_gpu.metrics.rows import Rows, Use
from otel_gpu.metrics.series import Cells, Point, Series
from otel_gpu.metrics.tags import Attributes, Tags
from otel_gpu.model import SourceOutcome

Devices: TypeAlias = Sequence[Device]


@dataclass(frozen=True, slots=True)
class OfRows(Generic[Use]):
    """A metric of workloads or processes: its values, and what attributes those of a row have of their own.

    Values with the same of these attributes stand together, in the order of the rows. Who only could use a GPU has
    points of it only ``of_possible``. With a ``per``, values are whole numbers of which so many make one.
    """

    values: Callable[[Rows[Use]], Values]
    own: tuple[Attributes, ...] = ()
    of_possible: bool = False
    per: float | None = None


@dataclass(frozen=True, slots=True)
class OfDevices:
    """A metric of whole GPUs: their values, the attributes of each, and which of them count since the books began.

    Where it says nothing of that, none of them does. ``per`` is that of ``OfRows``.
    """

    values: Callable[[Devices], Values]
    tags: Callable[[DeviceTags], tuple[Tags, ...]]
    counted: tuple[bool, ...] = ()
    per: float | None = None


@dataclass(frozen=True, slots=True)
class OfSources:
    """A metric of the agent's sources: their values, and what attributes those of a source have beside its name."""

    values: Callable[[Sequence[SourceOutcome]], Values]
    own: tuple[Attributes, ...] = ({},)


def of_each(values: Callable[[Device], Iterable[float | None]]) -> Callable[[Devices], Values]:
    """The values of GPUs, one GPU after the other."""
    return lambda devices: list(chain.from_iterable(map(values, devices)))


def plain(device: DeviceTags) -> tuple[Tags, ...]:
    """Attributes of a GPU, and none beside them."""
    return (device.attributes,)


class _Last(NamedTuple):
    """What was told of a metric, and what that followed from: who sits there, since when, and what was found.

    Equal are also 1 and 1.0, and 0.0 and -0.0, which are written otherwise: their types differ, or their bits. What
    ``is_whole`` is whole numbers throughout.
    """

    seats: object
    starts: object
    found: Values
    family: MetricBlock
    is_whole: bool

    def is_of(self, found: Values) -> bool:
        """Whether the same was found, which is written alike however it is written."""
        return found == self.found and (self.is_whole or _exactly(found) == _exactly(self.found))


def _exactly(found: Values) -> tuple[list[type], bytes]:
    """Types and bits of values."""
    told = [value for value in found if value is not None] if None in found else found
    return [*map(type, found)], pack(f"{len(told)}d", *told)


class Columns:
    """What was told of each metric in the last cycle, and nothing older."""

    def __init__(self) -> None:
        self._last: dict[str, _Last] = {}

    def of_rows(self, metric: Metric, how: OfRows[Use], rows: Rows[Use]) -> MetricBlock | None:
        """A metric of workloads or processes."""
        values, runs = how.values(rows), len(how.own) or 1
        if not how.of_possible:
            for number in rows.possible:
                values[number :: len(rows)] = [None] * runs
        starts = rows.starts if metric.kind is Kind.COUNTER else None

        def series() -> Series:
            identities, attributes = rows.seats
            if how.own:
                attributes = tuple([tags.adding(own) for own in how.own for tags in attributes])
            return Series(attributes, identities * runs, (starts or (None,) * len(rows)) * runs, runs)

        return self._family(metric, rows.seats, starts, values, series, per=how.per)

    def of_devices(self, metric: Metric, how: OfDevices, reading: Reading) -> MetricBlock | None:
        """A metric of whole GPUs."""
        values = how.values(reading.devices)
        epoch_ns = reading.attribution.epoch_ns

        def series() -> Series:
            attributes = tuple(chain.from_iterable(map(how.tags, reading.seats)))
            starts = [epoch_ns if counts else None for counts in how.counted] * len(reading.seats)
            return Series(attributes, (None,) * len(values), tuple(starts or (None,) * len(values)))

        return self._family(metric, reading.seats, epoch_ns, values, series, per=how.per)

    def of_sources(self, metric: Metric, how: OfSources, reading: Reading) -> MetricBlock | None:
        """A metric of the agent's sources."""
        values = how.values(reading.attribution.sources)

        def series() -> Series:
            sources = [{"otel_gpu.source": name} for name in reading.sources]
            attributes = tuple([reading.agent.adding({**source, **own}) for source in sources for own in how.own])
            return Series(attributes, (None,) * len(values), (None,) * len(values))

        return self._family(metric, reading.sources, None, values, series)

    def of_points(self, metric: Metric, points: Iterable[Point]) -> MetricBlock | None:
        """A metric that has as many points as there are."""
        found = tuple(points)
        if not found:
            self._last.pop(metric.name, None)
            return None
        last = self._last.get(metric.name)
        series = last.family.series if last is not None and last.family.series.is_that_of(found) else Series.of(found)
        return self._family(metric, series, None, [point[0] for point in found], lambda: series)

    def _family(
        self,
        metric: Metric,
        seats: object,
        starts: object,
        found: Values,
        series: Callable[[], Series],
        *,
        per: float | None = None,
    ) -> MetricBlock | None:
        """The family of what was found, of which that which is absent is left out; the last one if it is the same."""
        name = metric.name
        last = self._last.get(name)
        if last is not None and (last.seats is not seats or (last.starts is not starts and last.starts != starts)):
            last = None
        if last is not None and last.is_of(found):
            return last.family
        values = tuple(found if per is None else _divided(found, per, last))
        told = cast("tuple[float, ...]", values)
        if None in found:
            told = tuple([value for value in values if value is not None])
        if not told:
            self._last.pop(name, None)
            return None
        family = _made(metric, values, told, series() if last is None else last.family.cells.series, last)
        self._last[name] = _Last(seats, starts, found, family, per is not None)
        return family


def _divided(found: Values, per: float, last: _Last | None) -> Values:
    """Whole numbers in a larger unit; of those that are as they were, the quotients of the last time."""
    if last is None:
        return [None if number is None else number / per for number in found]
    values: Values = [*last.family.cells.values]
    for place in compress(range(len(found)), map(ne, found, last.found)):
        number = found[place]
        values[place] = None if number is None else number / per
    return values


def _made(
    metric: Metric, values: tuple[float | None, ...], told: tuple[float, ...], whole: Series, last: _Last | None
) -> MetricBlock:
    if len(told) == len(values):
        return MetricBlock(metric, whole, told)
    present = [value is not None for value in values]
    before = None if last is None else last.family
    if before is not None and present == [value is not None for value in before.cells.values]:
        return MetricBlock(metric, before.series, told, Cells(whole, values))
    return MetricBlock(metric, whole.only(present), told, Cells(whole, values))
