"""The agent's own MeterProvider: runs observable instruments and hands on what they observe, without aggregation.

Asynchronous instruments need none: each observation is the value. The SDK's would remember every attribute set for the
life of the process (2,000 per instrument, then one overflow series), know one Resource only, and take the first
observation for a counter's start.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, Final

from opentelemetry.metrics import (
    CallbackOptions,
    CallbackT,
    Meter,
    MeterProvider,
    NoOpMeter,
    ObservableCounter,
    ObservableGauge,
    ObservableUpDownCounter,
    Observation,
)

from otel_gpu.metrics.catalogue import BY_NAME, Metric
from otel_gpu.metrics.collection import Collection, MetricBlock
from otel_gpu.metrics.instruments import Observer, Sample, create_instruments
from otel_gpu.metrics.points import Reading
from otel_gpu.metrics.readings import Readings, SharedReading

_OPTIONS: Final = CallbackOptions()


class AgentMeterProvider(MeterProvider):
    """Collects observable instruments of the catalogue; others that are created on it do nothing."""

    def __init__(self) -> None:
        self._callbacks: dict[str, Sequence[CallbackT]] = {}
        self._judged: list[Sequence[CallbackT]] = []
        self._shared: tuple[SharedReading, list[Metric]] | None = None

    def get_meter(
        self,
        name: str,
        version: str | None = None,
        schema_url: str | None = None,
        attributes: Any = None,  # noqa: ARG002 - of a scope; there is one
    ) -> Meter:
        """A meter whose observable instruments are collected."""
        return _AgentMeter(self._callbacks, name, version, schema_url)

    def collect(self, time_ns: int) -> Collection:
        """Run every instrument once; what they observe is as of ``time_ns`` (Unix time)."""
        together = self._together()
        if together is None:
            found = [_family(BY_NAME[name], callbacks) for name, callbacks in self._callbacks.items()]
            return Collection(time_ns, tuple(family for family in found if family is not None))
        shared, metrics = together
        return Collection(time_ns, tuple(shared.blocks(metrics)))

    def _together(self) -> tuple[SharedReading, list[Metric]] | None:
        """The metrics of all instruments, where they are the catalogue's and of one reading."""
        callbacks = [*self._callbacks.values()]
        if callbacks != self._judged:
            self._judged, self._shared = callbacks, self._all_of_one()
        return self._shared

    def _all_of_one(self) -> tuple[SharedReading, list[Metric]] | None:
        observers = [each[0] for each in self._callbacks.values() if len(each) == 1 and isinstance(each[0], Observer)]
        if len(observers) < len(self._callbacks) or len({observer.shared for observer in observers}) != 1:
            return None
        return observers[0].shared, [observer.metric for observer in observers]


def _call(callback: CallbackT) -> Iterable[Observation]:
    """What a callback observes. The API also allows generators that are sent options; ours are functions."""
    if not callable(callback):
        raise TypeError("an instrument of the agent's provider takes functions")
    return callback(_OPTIONS)


def _family(metric: Metric, callbacks: Sequence[CallbackT]) -> MetricBlock | None:
    """What a metric's callbacks observe."""
    points = [sample.point for each in callbacks for sample in _call(each) if isinstance(sample, Sample)]
    return MetricBlock.of(metric, points) if points else None


class _AgentMeter(NoOpMeter):
    def __init__(
        self, callbacks: dict[str, Sequence[CallbackT]], name: str, version: str | None, schema_url: str | None
    ) -> None:
        super().__init__(name, version, schema_url)
        self._callbacks = callbacks

    def create_observable_gauge(
        self, name: str, callbacks: Sequence[CallbackT] | None = None, unit: str = "", description: str = ""
    ) -> ObservableGauge:
        """A gauge that is collected."""
        self._callbacks[name] = callbacks or ()
        return super().create_observable_gauge(name, callbacks, unit, description)

    def create_observable_counter(
        self, name: str, callbacks: Sequence[CallbackT] | None = None, unit: str = "", description: str = ""
    ) -> ObservableCounter:
        """A counter that is collected."""
        self._callbacks[name] = callbacks or ()
        return super().create_observable_counter(name, callbacks, unit, description)

    def create_observable_up_down_counter(
        self, name: str, callbacks: Sequence[CallbackT] | None = None, unit: str = "", description: str = ""
    ) -> ObservableUpDownCounter:
        """An updowncounter that is collected."""
        self._callbacks[name] = callbacks or ()
        return super().create_observable_up_down_counter(name, callbacks, unit, description)


class AgentMetrics:
    """The instruments on the agent's provider, collected at most once for a cycle however many exporters ask."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings
        self._provider = AgentMeterProvider()
        self._lock = threading.Lock()
        self._reading: Reading | None = None
        self._collection: Collection | None = None
        create_instruments(self._provider, lambda: self._reading)

    def collect(self) -> Collection | None:
        """All points of the newest cycle; ``None`` before the first."""
        reading = self._readings.newest()
        if reading is None:
            return None
        with self._lock:
            if reading is not self._reading or self._collection is None:
                self._reading = reading
                self._collection = self._provider.collect(reading.attribution.wall_ns)
            return self._collection
