"""The catalogue as observable instruments of any OpenTelemetry ``Meter``: the SDK's, or the agent's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from otel_gpu.metrics.catalogue import METRICS, Kind, Metric
from otel_gpu.metrics.series import Collection, MetricBlock
from otel_gpu.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation

SCOPE = "otel_gpu"


class SharedCollection:
    """One collection for all instruments that one OpenTelemetry collection calls.

    OpenTelemetry calls every instrument once per collection and does not say when a collection begins. An instrument
    that is called a second time is in the next one: ``collect`` is called again, and the other instruments share the
    result.
    """

    def __init__(self, collect: Callable[[], Collection | None]) -> None:
        self._collect = collect
        self._lock = threading.Lock()
        self._blocks: dict[str, MetricBlock] = {}
        self._served: set[str] = set()

    def block(self, metric: Metric) -> MetricBlock | None:
        """The metric in the collection that calls its instrument; ``None`` if it has no points."""
        with self._lock:
            if not self._served or metric.name in self._served:
                collection = self._collect()
                blocks = () if collection is None else collection.blocks
                self._blocks = {block.metric.name: block for block in blocks}
                self._served = set()
            self._served.add(metric.name)
            return self._blocks.get(metric.name)


class MetricCallback:
    """The callback of one instrument."""

    def __init__(self, metric: Metric, shared: SharedCollection) -> None:
        self._metric = metric
        self._shared = shared

    def __call__(self, _: CallbackOptions) -> Iterable[Observation]:
        """Observe every point.

        The workload's identity is on the points, because a provider of the SDK has one Resource.
        """
        # Imported here: the agent's own provider reads blocks.
        from opentelemetry.metrics import Observation  # noqa: PLC0415

        block = self.block()
        for point in () if block is None else block.points:
            identity = () if point.workload is None else point.workload.attributes
            yield Observation(point.value, {**point.attributes, **dict(identity)})

    def block(self) -> MetricBlock | None:
        """The same as a block, with workloads and starts, which an Observation has no place for."""
        return self._shared.block(self._metric)


class ObservableMeter(Protocol):
    """The part of OpenTelemetry's ``Meter`` that creates observable instruments."""

    def create_observable_gauge(
        self, name: str, callbacks: Sequence[MetricCallback], unit: str, description: str
    ) -> object:
        """Create a gauge."""

    def create_observable_counter(
        self, name: str, callbacks: Sequence[MetricCallback], unit: str, description: str
    ) -> object:
        """Create a counter."""

    def create_observable_up_down_counter(
        self, name: str, callbacks: Sequence[MetricCallback], unit: str, description: str
    ) -> object:
        """Create an updowncounter."""


class ObservableMeterProvider(Protocol):
    """The part of OpenTelemetry's ``MeterProvider`` that is needed here."""

    def get_meter(self, name: str, version: str | None = None) -> ObservableMeter:
        """A meter of an instrumentation scope."""


def create_instruments(provider: ObservableMeterProvider, collect: Callable[[], Collection | None]) -> None:
    """Create every instrument of the catalogue. Their callbacks call ``collect`` once per collection.

    Once per provider: the SDK answers a second creation with the first instruments and ignores the new callbacks.
    """
    meter = provider.get_meter(SCOPE, __version__)
    shared = SharedCollection(collect)
    for metric in METRICS:
        _create(meter, metric, MetricCallback(metric, shared))


def _create(meter: ObservableMeter, metric: Metric, callback: MetricCallback) -> None:
    create = {
        Kind.GAUGE: meter.create_observable_gauge,
        Kind.COUNTER: meter.create_observable_counter,
        Kind.UPDOWNCOUNTER: meter.create_observable_up_down_counter,
    }[metric.kind]
    create(metric.name, [callback], metric.unit, metric.description)
