"""The agent's own MeterProvider: runs the observable instruments and passes on their points without aggregation.

An observation of an asynchronous instrument is the value itself: there is nothing to aggregate. The SDK's provider
remembers every attribute set for the life of the process (2,000 per instrument, then one overflow series), has one
Resource, and takes the first observation for the start of a counter.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from otel_gpu.metrics.collect import CycleMetrics
from otel_gpu.metrics.instruments import MetricCallback, create_instruments
from otel_gpu.metrics.series import Collection


class AgentMeterProvider:
    """Collects the instruments of ``create_instruments``. It is no subclass of OpenTelemetry's, which takes 2 MB."""

    def __init__(self) -> None:
        self._callbacks: list[MetricCallback] = []

    def get_meter(self, name: str, version: str | None = None) -> AgentMeter:  # noqa: ARG002 - there is one scope
        """A meter whose observable instruments are collected."""
        return AgentMeter(self._callbacks)

    def collect(self, time_ns: int) -> Collection:
        """Run every instrument once. Its points are as of ``time_ns`` (Unix time)."""
        blocks = [callback.block() for callback in self._callbacks]
        return Collection(time_ns, tuple(block for block in blocks if block is not None))


class AgentMeter:
    """Keeps the callbacks of observable instruments."""

    def __init__(self, collected: list[MetricCallback]) -> None:
        self._collected = collected

    def create_observable_gauge(
        self,
        name: str,  # noqa: ARG002 - the callback has the metric
        callbacks: Sequence[MetricCallback],
        unit: str,  # noqa: ARG002
        description: str,  # noqa: ARG002
    ) -> None:
        """An instrument that is collected."""
        self._collected += callbacks

    create_observable_counter = create_observable_gauge
    create_observable_up_down_counter = create_observable_gauge


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
