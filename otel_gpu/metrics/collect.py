"""One report becomes one collection: every metric of the catalogue with its points.

What is unknown has no point: never 0, never -1, never NaN.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from otel_gpu.metrics.agent_values import ATTRIBUTION, SelfAccount, SelfStats, agent_values
from otel_gpu.metrics.catalogue import METRICS, Kind, Level, Metric
from otel_gpu.metrics.device_values import gpu_values
from otel_gpu.metrics.labels import NO_ATTRIBUTES, Attributes, WorkloadIdentity
from otel_gpu.metrics.rows import Use, UseRow, Value, report_rows
from otel_gpu.metrics.series import Collection, MetricBlock, SeriesSet
from otel_gpu.metrics.workload_values import process_values, workload_values
from otel_gpu.model import Report

log = logging.getLogger(__name__)

SERIES: Final = "otel_gpu.series"
"""The number of series in a collection: the last metric, since it counts the others."""

DROPPED: Final = "otel_gpu.series.dropped"
_OF_PROCESSES: Final[Attributes] = {"otel_gpu.series.kind": "process"}

MAX_SERIES: Final = 60_000
"""Series in a collection. Each takes 4.5 kB at most while it is collected, rendered, pushed and received by slow
clients (docs/limits.md), so that an agent needs about 320 MB. Workloads and processes are capped, and only a host at
both caps with prices has more: then series of processes are left out."""

_RESUME_RATIO: Final = 0.9
"""The share of the limit that all series must fit into before those of processes are exported again."""

_LIFETIME_ERRORS: Final = ("corrected", "uncorrected")
"""ECC errors count over the life of the board: their counters have no start."""


class RowLabels(NamedTuple):
    """What all series of a row have in common. ``since_ns`` (Unix time) is when its counters started."""

    attributes: Attributes
    workload: WorkloadIdentity | None
    since_ns: int | None


_Member: TypeAlias = tuple[RowLabels, Attributes]
"""A series: the labels of its row, and the attributes that it adds."""


@dataclass(slots=True)
class _Column:
    """A metric in one collection: its series, and a value for each."""

    members: list[_Member] = field(default_factory=list)
    values: list[int | float | None] = field(default_factory=list)


class MetricCollector:
    """Collects the reports of one host, one after the other. For one thread at a time.

    A collection with more than ``max_series`` has none of processes. ``dropped_series`` is how many it leaves out.

    ``currency`` is that of the prices configured. A workload that awaits its names is left out unless
    ``include_awaiting_names``.

    A metric keeps the SeriesSet object of the last collection while its series are equal, which saves the Prometheus
    renderer 4 ms of 5 with 8 GPUs and 64 processes. To see that cheaply, the labels of rows are kept too. Nothing
    else is kept from one collection to the next.
    """

    def __init__(
        self,
        stats: Callable[[], SelfStats],
        *,
        currency: str = "",
        process_level: bool = True,
        include_awaiting_names: bool = False,
        max_series: int = MAX_SERIES,
    ) -> None:
        self.dropped_series = 0
        self._max_series = max_series
        self._stats = stats
        self._currency = currency
        self._process_level = process_level
        self._include_awaiting_names = include_awaiting_names
        self._labels: dict[str, list[RowLabels]] = {}
        """By kind of row."""
        self._series: dict[str, tuple[list[_Member], SeriesSet]] = {}
        """By metric: what its SeriesSet was made of, and the SeriesSet."""

    def collect(self, report: Report) -> Collection:
        """All metrics of a report, in the order of the catalogue, as of when the host was read."""
        metrics = [metric for metric in METRICS if report.pod is None or metric.of_pod]
        columns = self._columns(report)
        self._limit_series([(metric, columns[metric.name]) for metric in metrics])
        columns[DROPPED] = _column_of_agent(_OF_PROCESSES, self.dropped_series)
        blocks: list[MetricBlock] = []
        points = 0
        for metric in metrics:
            column = columns[metric.name]
            if metric.name == SERIES:
                column = _column_of_agent(NO_ATTRIBUTES, points + 1)
            block = MetricBlock(metric, self._series_set(metric, column.members), tuple(column.values))
            if found := block.point_count:
                blocks.append(block)
                points += found
        self._series = {metric.name: self._series[metric.name] for metric, *_ in blocks}
        return Collection(report.wall_ns, tuple(blocks))

    def _limit_series(self, columns: Sequence[tuple[Metric, _Column]]) -> None:
        """Empty the columns of processes if there are too many series."""
        total, of_processes = 2, 0  # two of the agent count series
        for metric, column in columns:
            found = len(column.values) - column.values.count(None)
            total += found
            of_processes += found if metric.level is Level.PROCESS else 0
        was_dropping = self.dropped_series > 0
        limit = self._max_series * (_RESUME_RATIO if was_dropping else 1.0)
        self.dropped_series = of_processes if total > limit else 0
        if self.dropped_series:
            for metric, column in columns:
                if metric.level is Level.PROCESS:
                    column.members, column.values = [], []

    def _columns(self, report: Report) -> dict[str, _Column]:
        """The column of every metric, filled row by row; those that count series are empty."""
        rows, stats = report_rows(report, include_awaiting_names=self._include_awaiting_names), self._stats()
        processes = rows.processes if self._process_level else ()
        gpus = [RowLabels(row.attributes, None, report.epoch_ns) for row in rows.gpus]
        values_of = partial(workload_values, currency=self._currency)
        own = RowLabels(NO_ATTRIBUTES, None, stats.started_ns)
        anomalies: Value = ("otel_gpu.source.errors", report.anomalies, {"otel_gpu.source": ATTRIBUTION})
        values_of_rows: Iterable[tuple[RowLabels, Iterable[Value]]] = chain(
            zip(self._known("gpus", gpus), map(gpu_values, rows.gpus), strict=True),
            zip(self._known("workloads", map(_labels, rows.workloads)), map(values_of, rows.workloads), strict=True),
            zip(self._known("processes", map(_labels, processes)), map(process_values, processes), strict=True),
            [(own, agent_values(report, stats)), (own._replace(since_ns=report.epoch_ns), [anomalies])],
        )
        columns = {metric.name: _Column() for metric in METRICS}
        for labels, values in values_of_rows:
            for name, value, attributes in values:
                column = columns[name]
                column.members.append((labels, attributes))
                column.values.append(value)
        return columns

    def _known(self, kind: str, labels: Iterable[RowLabels]) -> list[RowLabels]:
        """The labels of a kind of row: those of the last collection if they are equal."""
        found = list(labels)
        if found != self._labels.get(kind):
            self._labels[kind] = found
        return self._labels[kind]

    def _series_set(self, metric: Metric, members: list[_Member]) -> SeriesSet:
        """The SeriesSet of a metric: that of the last collection if it has the same members."""
        known = self._series.get(metric.name)
        if known is not None and known[0] == members:
            return known[1]
        is_counter = metric.kind is Kind.COUNTER
        found = SeriesSet(
            tuple([{**row.attributes, **own} if own else row.attributes for row, own in members]),
            tuple([row.workload for row, _ in members]),
            tuple(
                [
                    row.since_ns if is_counter and own.get("error.type") not in _LIFETIME_ERRORS else None
                    for row, own in members
                ]
            ),
        )
        self._series[metric.name] = members, found
        return found


def _column_of_agent(attributes: Attributes, value: int) -> _Column:
    """One point of the agent itself."""
    return _Column([(RowLabels(NO_ATTRIBUTES, None, None), attributes)], [value])


def _labels(row: UseRow[Use]) -> RowLabels:
    totals = row.use.totals
    return RowLabels(row.attributes, row.workload, None if totals is None else totals.since_ns)


class CycleMetrics:
    """Collects each cycle once, for however many exporters ask. Any thread may ask.

    ``fresh`` gives the newest report, sampled now if the last one is too old; ``None`` before the first.
    """

    def __init__(
        self,
        fresh: Callable[[], Report | None],
        account: SelfAccount,
        *,
        currency: str = "",
        process_level: bool = True,
        max_series: int = MAX_SERIES,
    ) -> None:
        self._fresh = fresh
        self._account = account
        self._collector = MetricCollector(
            account.stats, currency=currency, process_level=process_level, max_series=max_series
        )
        self._max_series = max_series
        self._lock = threading.Lock()
        self._newest: tuple[int, Collection] | None = None

    @property
    def dropped_series(self) -> int:
        """How many series of processes the newest collection leaves out."""
        return self._collector.dropped_series

    def collect(self) -> Collection | None:
        """The collection of the newest cycle; ``None`` before the first. It waits for a sample without the lock."""
        report = self._fresh()
        if report is None:
            return None
        with self._lock:
            if self._newest is None or report.monotonic_ns > self._newest[0]:
                self._account.observe(report)
                dropped_before = self._collector.dropped_series
                self._newest = report.monotonic_ns, self._collector.collect(report)
                self._log_change(dropped_before, self._collector.dropped_series)
            return self._newest[1]

    def _log_change(self, before: int, now: int) -> None:
        """Log one line when series begin to be left out, and one when they are exported again."""
        if now and not before:
            text = "%d series of processes are not exported: with them, there are more than %d"
            log.warning(text, now, self._max_series)
        elif before and not now:
            log.info("series of processes are exported again")
