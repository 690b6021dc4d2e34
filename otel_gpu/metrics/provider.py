"""The agent's own MeterProvider: runs the observable instruments and passes on their points without aggregation.

An observation of an asynchronous instrument is the value itself: there is nothing to aggregate. The SDK's provider
remembers every attribute set for the life of the process (2,000 per instrument, then one overflow series), has one
Resource, and takes the first observation for the start of a counter.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from opentelemetry.metrics import (
    CallbackT,
    Meter,
    MeterProvider,
    NoOpMeter,
    ObservableCounter,
    ObservableGauge,
    ObservableUpDownCounter,
)

from otel_gpu.metrics.collect import CycleMetrics
from otel_gpu.metrics.instruments import MetricCallback, create_instruments
from otel_gpu.metrics.series import Collection


class AgentMeterProvider(MeterProvider):
    """Collects the instruments of ``create_instruments``; other instruments that are created on it do nothing."""

    def __init__(self) -> None:
        self._callbacks: list[MetricCallback] = []

    def get_meter(
        self,
        name: str,
        version: str | None = None,
        schema_url: str | None = None,
        attributes: Any = None,  # noqa: ARG002 - attributes of the scope, which has none here
    ) -> Meter:
        """A meter whose observable instruments are collected."""
        return _AgentMeter(self._callbacks, name, version, schema_url)

    def collect(self, time_ns: int) -> Collection:
        """Run every instrument once. Its points are as of ``time_ns`` (Unix time)."""
        blocks = [callback.block() for callback in self._callbacks]
        return Collection(time_ns, tuple(block for block in blocks if block is not None))


class _AgentMeter(NoOpMeter):
    def __init__(self, collected: list[MetricCallback], name: str, version: str | None, schema_url: str | None) -> None:
        super().__init__(name, version, schema_url)
        self._collected = collected

    def _collect(self, callbacks: Sequence[CallbackT] | None) -> None:
        self._collected += [callback for callback in callbacks or () if isinstance(callback, MetricCallback)]

    def create_observable_gauge(
        self, name: str, callbacks: Sequence[CallbackT] | None = None, unit: str = "", description: str = ""
    ) -> ObservableGauge:
        """A gauge that is collected."""
        self._collect(callbacks)
        return super().create_observable_gauge(name, callbacks, unit, description)

    def create_observable_counter(
        self, name: str, callbacks: Sequence[CallbackT] | None = None, unit: str = "", description: str = ""
    ) -> ObservableCounter:
        """A counter that is collected."""
        self._collect(callbacks)
        return super().create_observable_counter(name, callbacks, unit, description)

    def create_observable_up_down_counter(
        self, name: str, callbacks: Sequence[CallbackT] | None = None, unit: str = "", description: str = ""
    ) -> ObservableUpDownCounter:
        """An updowncounter that is collected."""
        self._collect(callbacks)
        return super().create_observable_up_down_counter(name, callbacks, unit, description)


class AgentMetrics:
    """The instruments on the agent's own provider. Any thread may collect."""

    def __init__(self, cycles: CycleMetrics) -> None:
        self._cycles = cycles
        self._provider = AgentMeterProvider()
        self._collected: Collection | None = None
        self._lock = threading.Lock()
        create_instruments(self._provider, lambda: self._collected)

    def collect(self) -> Collection | None:
        """All points of the newest cycle; ``None`` before the first."""
        newest = self._cycles.collect()  # may wait for a sample, so outside the lock: exporters wait at the same time
        if newest is None:
            return None
        with self._lock:
            self._collected = newest
            return self._provider.collect(newest.time_ns)
