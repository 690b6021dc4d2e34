"""What the engine asks of a source, and what a source answers. A partial answer beats none."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from otel_gpu.model import (
    NO_NAMES,
    NO_PROCESSES,
    DriverFacts,
    GpuReading,
    ProcessFacts,
    SourceState,
    WorkloadNames,
    WorkloadRef,
)


@dataclass(frozen=True, slots=True)
class GpuRead:
    """What the driver said this cycle."""

    gpus: tuple[GpuReading, ...] = ()
    driver: DriverFacts | None = None
    state: SourceState = SourceState.OK
    reason: str | None = None
    errors: int = 0


@dataclass(frozen=True, slots=True)
class ProcessRead:
    """What ``/proc`` said this cycle, by its pids: those asked for and those found holding a GPU device.

    ``pids_complete`` is false in a pid namespace of the agent's own, where drivers hide others' processes.
    ``pids_are_own`` is false if there, too, these pids are another namespace's: a host's ``/proc`` mounted elsewhere.
    """

    processes: Mapping[int, ProcessFacts] = field(default_factory=lambda: NO_PROCESSES)
    state: SourceState = SourceState.OK
    reason: str | None = None
    errors: int = 0
    pids_complete: bool = True
    pids_are_own: bool = True


@dataclass(frozen=True, slots=True)
class NameRead:
    """Names known this cycle, by workload id."""

    names: Mapping[str, WorkloadNames] = field(default_factory=lambda: NO_NAMES)
    state: SourceState = SourceState.OK
    reason: str | None = None
    errors: int = 0


class GpuSource(Protocol):
    """Reads devices. Never raises; returns within its deadline whatever the driver does."""

    @property
    def name(self) -> str:
        """Its name in ``sources`` and in ``otel_gpu.source``."""

    def read(self) -> GpuRead:
        """Read every GPU once."""

    def close(self) -> None:
        """Let go of the driver."""


class ProcessSource(Protocol):
    """Reads processes. Never raises."""

    @property
    def name(self) -> str:
        """Its name in ``sources`` and in ``otel_gpu.source``."""

    def read(self, pids: Collection[int]) -> ProcessRead:
        """Read these pids, and whoever else has a GPU device open."""


class NameSource(Protocol):
    """Knows what people call a workload. Never raises, never blocks."""

    @property
    def name(self) -> str:
        """Its name in ``sources`` and in ``otel_gpu.source``."""

    def read(self, workloads: Collection[WorkloadRef]) -> NameRead:
        """Names of these workloads, as far as known by now."""
