"""The agent's own figures: its cost, and the errors of its sources."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from otel_gpu.model import Report


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
