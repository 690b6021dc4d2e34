"""Values of the agent itself (``otel_gpu.*``): its sources, how much of a GPU it explains, and what it costs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from otel_gpu.metrics.labels import NO_ATTRIBUTES
from otel_gpu.metrics.rows import MJ_PER_J, GpuRow, Value
from otel_gpu.model import Report, SourceState

ATTRIBUTION: Final = "attribution"
"""The source whose errors are impossible figures: a counter that fell, more energy than a GPU can draw."""


@dataclass(frozen=True, slots=True)
class SelfStats:
    """The agent's own figures. Counters count since ``started_ns`` (Unix time); unknown values are ``None``."""

    started_ns: int
    cpu_s: float | None = None
    memory_bytes: int | None = None
    source_errors: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


class SelfAccount:
    """Counts the errors of sources over cycles. Any thread may observe a cycle and read the figures."""

    def __init__(
        self, *, started_ns: int, cpu_s: Callable[[], float | None], memory_bytes: Callable[[], int | None]
    ) -> None:
        self._started_ns = started_ns
        self._cpu_s = cpu_s
        self._memory_bytes = memory_bytes
        self._errors: Mapping[str, int] = MappingProxyType({})
        self._newest_ns: int | None = None
        self._lock = threading.Lock()

    def observe(self, report: Report) -> None:
        """Count the errors of a cycle once: the same cycle again, or an older one, changes nothing."""
        with self._lock:
            if self._newest_ns is not None and report.monotonic_ns <= self._newest_ns:
                return
            self._newest_ns = report.monotonic_ns
            errors = dict(self._errors)
            for source in report.sources:
                errors[source.name] = errors.get(source.name, 0) + source.errors
            self._errors = MappingProxyType(errors)

    def stats(self) -> SelfStats:
        """The figures as they are now."""
        return SelfStats(
            started_ns=self._started_ns,
            cpu_s=self._cpu_s(),
            memory_bytes=self._memory_bytes(),
            source_errors=self._errors,
        )


def agent_values(report: Report, stats: SelfStats) -> Iterator[Value]:
    """The values of the agent's sources and of its cost. Its counters count since it started."""
    for source in report.sources:
        own = {"otel_gpu.source": source.name}
        yield "otel_gpu.up", int(source.state.answers), own
        yield "otel_gpu.collection.duration", source.duration_s, own
        for state in SourceState:
            yield "otel_gpu.source.state", int(source.state is state), {**own, "otel_gpu.state": state.value}
    for name, errors in stats.source_errors.items():
        yield "otel_gpu.source.errors", errors, {"otel_gpu.source": name}
    for reason, count in report.unreadable.items():
        yield "otel_gpu.process.unreadable", count, {"otel_gpu.reason": str(reason)}
    yield "otel_gpu.cpu.time", stats.cpu_s, NO_ATTRIBUTES
    yield "otel_gpu.memory.usage", stats.memory_bytes, NO_ATTRIBUTES


def explained_values(row: GpuRow) -> Iterator[Value]:
    """How much of a GPU is explained, and by how much its sums are wrong."""
    split = row.gpu.memory
    if split is not None:
        attributed = split.measured_bytes - split.overcount_bytes + split.inferred_bytes
        used = attributed + split.unattributed_bytes
        yield "otel_gpu.attribution.coverage", attributed / used if used else None, NO_ATTRIBUTES
        yield "otel_gpu.conservation.memory.error", split.conservation_error_bytes, NO_ATTRIBUTES
    if row.gpu.has_energy:
        yield "otel_gpu.conservation.energy.error", row.gpu.energy_error_mj / MJ_PER_J, NO_ATTRIBUTES
