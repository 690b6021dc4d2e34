"""Values of the agent itself: its sources, how much it explains, and what it costs (``otel_gpu.*``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from otel_gpu.metrics.labels import NO_ATTRIBUTES
from otel_gpu.metrics.rows import GpuRow, GpuValues
from otel_gpu.metrics.selfstats import SelfStats
from otel_gpu.metrics.series import Point
from otel_gpu.metrics.use_values import MJ_PER_J
from otel_gpu.model import Report, SourceState

SERIES: Final = "otel_gpu.series"
"""The number of series in a collection: the last metric, since it counts the others."""

ATTRIBUTION: Final = "attribution"
"""The source whose errors are impossible figures: a counter that fell, more energy than a GPU can draw."""


# ---------------------------------------------------------------------------- per GPU


def _coverage(row: GpuRow) -> GpuValues:
    """Fraction of the used memory that is attributed."""
    split = row.gpu.memory
    if split is not None:
        attributed = split.measured_bytes - split.overcount_bytes + split.inferred_bytes
        used = attributed + split.unattributed_bytes
        yield (attributed / used if used else None), NO_ATTRIBUTES


def _memory_error(row: GpuRow) -> GpuValues:
    if row.gpu.memory is not None:
        yield row.gpu.memory.conservation_error_bytes, NO_ATTRIBUTES


def _energy_error(row: GpuRow) -> GpuValues:
    if row.gpu.has_energy:
        yield row.gpu.energy_error_mj / MJ_PER_J, NO_ATTRIBUTES


EXPLAINED_VALUES: Final[Mapping[str, Callable[[GpuRow], GpuValues]]] = MappingProxyType(
    {
        "otel_gpu.attribution.coverage": _coverage,
        "otel_gpu.conservation.memory.error": _memory_error,
        "otel_gpu.conservation.energy.error": _energy_error,
    }
)


# ---------------------------------------------------------------------------- the agent


def _up(report: Report, _: SelfStats) -> Iterator[Point]:
    for source in report.sources:
        yield Point(int(source.state.answers), {"otel_gpu.source": source.name})


def _source_state(report: Report, _: SelfStats) -> Iterator[Point]:
    for source in report.sources:
        for state in SourceState:
            own = {"otel_gpu.source": source.name, "otel_gpu.state": state.value}
            yield Point(int(source.state is state), own)


def _duration(report: Report, _: SelfStats) -> Iterator[Point]:
    for source in report.sources:
        yield Point(source.duration_s, {"otel_gpu.source": source.name})


def _errors(report: Report, stats: SelfStats) -> Iterator[Point]:
    for name, errors in stats.source_errors.items():
        yield Point(errors, {"otel_gpu.source": name}, start_ns=stats.started_ns)
    yield Point(report.anomalies, {"otel_gpu.source": ATTRIBUTION}, start_ns=report.epoch_ns)


def _cpu_time(_: Report, stats: SelfStats) -> Iterator[Point]:
    if stats.cpu_s is not None:
        yield Point(stats.cpu_s, NO_ATTRIBUTES, start_ns=stats.started_ns)


def _memory(_: Report, stats: SelfStats) -> Iterator[Point]:
    if stats.memory_bytes is not None:
        yield Point(stats.memory_bytes, NO_ATTRIBUTES)


AGENT_POINTS: Final[Mapping[str, Callable[[Report, SelfStats], Iterator[Point]]]] = MappingProxyType(
    {
        "otel_gpu.up": _up,
        "otel_gpu.source.state": _source_state,
        "otel_gpu.collection.duration": _duration,
        "otel_gpu.source.errors": _errors,
        "otel_gpu.cpu.time": _cpu_time,
        "otel_gpu.memory.usage": _memory,
    }
)
