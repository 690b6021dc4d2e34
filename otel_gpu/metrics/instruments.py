"""The catalogue as observable instruments of any OpenTelemetry ``Meter``: the SDK's, or the agent's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
from opentelemetry.util.types import Attributes

from otel_gpu.metrics.catalogue import METRICS, Kind, Metric
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


class Observer:
    """The callback of one metric. Any provider calls it; the agent's own takes all of them together, in columns."""

    def __init__(self, metric: Metric, shared: SharedReading) -> None:
        self.metric, self.shared = metric, shared

    def __call__(self, _: CallbackOptions) -> Iterable[Observation]:
        """What is observed, one by one."""
        return map(Sample, self.shared.points(self.metric.name))


def create_instruments(provider: MeterProvider, newest: Callable[[], Reading | None]) -> None:
    """Create every instrument of the catalogue; their callbacks only read, all of a collection the same cycle.

    Once for a provider: the SDK gives whoever asks again the first instruments, and forgets the new callbacks.
    """
    meter = provider.get_meter(SCOPE, __version__)
    shared = SharedReading(newest)
    for metric in METRICS:
        _create(meter, metric, shared)


def _create(meter: Meter, metric: Metric, shared: SharedReading) -> None:
    create = {
        Kind.GAUGE: meter.create_observable_gauge,
        Kind.COUNTER: meter.create_observable_counter,
        Kind.UPDOWNCOUNTER: meter.create_observable_up_down_counter,
    }[metric.kind]
    create(metric.name, [Observer(metric, shared)], metric.unit, metric.description)
