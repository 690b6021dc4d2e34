"""Which cycle the instruments read: the newest there is, and the same one for a whole collection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from otel_gpu.metrics.catalogue import BY_NAME, Metric
from otel_gpu.metrics.collection import MetricBlock
from otel_gpu.metrics.columns import Columns
from otel_gpu.metrics.layout import Layout
from otel_gpu.metrics.points import Point, Reading, blocks, family
from otel_gpu.metrics.selfstats import SelfAccount
from otel_gpu.model import Report


class Readings:
    """Lays out each Report once, for however many collections read it. Any thread may ask."""

    def __init__(
        self,
        fresh: Callable[[], Report | None],
        account: SelfAccount,
        *,
        currency: str = "",
        process_level: bool = True,
    ) -> None:
        self._fresh = fresh
        self._account = account
        self._currency = currency
        self._process_level = process_level
        self._newest: Reading | None = None
        self._layout = Layout()
        self._turn = threading.Lock()

    def newest(self) -> Reading | None:
        """The newest cycle, sampled now if the last one is too old; ``None`` before the first."""
        attribution = self._fresh()
        return None if attribution is None else self.of(attribution)

    def of(self, attribution: Report) -> Reading:
        """This cycle, laid out once for however many ask for it in a row."""
        with self._turn:
            newest = self._newest
            if newest is None or newest.attribution is not attribution:
                self._account.observe(attribution)
                newest = self._newest = Reading.of(
                    attribution,
                    self._account.stats(),
                    currency=self._currency,
                    process_level=self._process_level,
                    layout=self._layout,
                )
            return newest


class SharedReading:
    """One reading for all instruments of a collection.

    OpenTelemetry calls every instrument once in a collection and does not say when one begins. An instrument that
    has had the current reading and asks again is in the next one: it gets a new reading, and the others share it.
    They are called in the order they were created in, so the last can tell how many points all of them gave.
    """

    def __init__(self, newest: Callable[[], Reading | None]) -> None:
        self._newest = newest
        self._lock = threading.Lock()
        self._reading: Reading | None = None
        self._served: set[str] = set()
        self._count = 0
        self._columns = Columns()

    def points(self, instrument: str) -> tuple[Point, ...]:
        """The instrument's points in the collection that it is asked in; none before the first sample."""
        with self._lock:
            if not self._served or instrument in self._served:
                self._begin()
            self._served.add(instrument)
            reading, metric = self._reading, BY_NAME[instrument]
            found = None if reading is None else family(metric, reading, self._columns, self._count)
            self._count += 0 if found is None else len(found.values)
            return () if found is None else found.points

    def blocks(self, metrics: Sequence[Metric]) -> list[MetricBlock]:
        """What these tell in a collection of their own, in columns; those are left out that have no point."""
        with self._lock:
            self._begin()
            return [] if self._reading is None else blocks(metrics, self._reading, self._columns)

    def _begin(self) -> None:
        """Another collection."""
        self._reading = self._newest()
        self._served.clear()
        self._count = 0
