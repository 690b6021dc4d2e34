"""The catalogue as observable instruments of any OpenTelemetry ``Meter``: the SDK's, or the agent's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
from opentelemetry.util.types import Attributes

from otel_gpu.metrics.catalogue import METRICS, Kind, Metric
from otel_gpu.metrics.collection import Family
from otel_gpu.metrics.points import Point, Reading
from otel_gpu.metrics.readings import SharedReading
from otel_gpu.version import __version__

SCOPE = "otel_gpu"


class Sample(Observation):
    """An observation that still knows its point: an SDK reads value and attributes, the agent's provider all of it."""

    def __init__(self, point: Point) -> None:
        super().__init__(point.value)
        self.point = point

    @property
    def attributes(self) -> Attributes:
        """The point's own, and the workload's identity, which is no Resource in somebody else's provider.

        Every key is there, empty where nothing is known: an instrument has one set of keys.
        """
        workload = self.point.workload
        return self.point.attributes if workload is None else {**self.point.attributes, **workload.complete()}


class Samples:
    """The observations of one callback: the agent's provider takes them as they are, in columns."""

    def __init__(self, family: Family | None) -> None:
        self.family = family

    def __iter__(self) -> Iterator[Observation]:
        return map(Sample, () if self.family is None else self.family.points)


def create_instruments(provider: MeterProvider, newest: Callable[[], Reading | None]) -> None:
    """Create every instrument of the catalogue; their callbacks only read, all of a collection the same cycle.

    Once for a provider: the SDK gives whoever asks again the first instruments, and forgets the new callbacks.
    """
    meter = provider.get_meter(SCOPE, __version__)
    shared = SharedReading(newest)
    for metric in METRICS:
        _create(meter, metric, shared)


def _create(meter: Meter, metric: Metric, shared: SharedReading) -> None:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return Samples(shared.family(metric))

    create = {
        Kind.GAUGE: meter.create_observable_gauge,
        Kind.COUNTER: meter.create_observable_counter,
        Kind.UPDOWNCOUNTER: meter.create_observable_up_down_counter,
    }[metric.kind]
    create(metric.name, [observe], metric.unit, metric.description)
