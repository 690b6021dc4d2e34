"""What the engine asks of a source, and what a source answers. A partial answer beats none."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from otel_gpu.model import (
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
    """What the driver said this cycle. ``by_gpu``: the state is that of single GPUs, which give the same reasons.

    ``asleep`` are GPUs that sleep and have not been seen awake: nobody knows who they are.
    """

    gpus: tuple[GpuReading, ...] = ()
    driver: DriverFacts | None = None
    state: SourceState = SourceState.OK
    reason: str | None = None
    errors: int = 0
    by_gpu: bool = False
    asleep: int = 0


@dataclass(frozen=True, slots=True)
class ProcessRead:
    """What ``/proc`` said this cycle, by its pids: those asked for and those found holding a GPU device.

    ``pids_complete`` is false in a pid namespace of the agent's own, where drivers hide others' processes.
    ``pids_are_own`` is false if there, too, these pids are another namespace's: a host's ``/proc`` mounted elsewhere.
    ``everybody`` is false unless every process of the host was there to be looked at, and what each has open.
    ``processes`` does not change after that: the same object says the same again.
    """

    processes: Mapping[int, ProcessFacts] = field(default_factory=lambda: NO_PROCESSES)
    state: SourceState = SourceState.OK
    reason: str | None = None
    errors: int = 0
    pids_complete: bool = True
    pids_are_own: bool = True
    everybody: bool = True


class Claim(NamedTuple):
    """A GPU that somebody was given, in the words of whoever gave it.

    ``device`` is ``all``, an index (``0``), a MIG instance by indices (``0:1``), a UUID or the beginning of one
    (``GPU-…``, ``MIG-…``), or a device node (``nvidia0``, ``nvidia0/gi1``). ``replicas`` is among how many it was
    divided, where it is time-sliced. ``possible`` is one who could use it without having been given it.
    """

    device: str
    replicas: int | None = None
    possible: bool = False


class PodContainer(NamedTuple):
    """A container as the kubelet names it: without an id."""

    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Known:
    """What a source knows of one workload: its names, whether it runs, since when (Unix time), what it was given."""

    ref: WorkloadRef
    names: WorkloadNames
    running: bool = True
    since_s: float | None = None
    claims: tuple[Claim, ...] = ()


NOBODY: Final[Mapping[str, Known]] = MappingProxyType({})
NO_PODS: Final[Mapping[PodContainer, tuple[Claim, ...]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NameRead:
    """What a source of names knows by now: workloads by their ids, and what the kubelet gave to containers of pods.

    The mappings are the same objects as long as nothing has changed. ``pending`` are ids of workloads asked for that
    are still being looked up.
    """

    known: Mapping[str, Known] = field(default_factory=lambda: NOBODY)
    pods: Mapping[PodContainer, tuple[Claim, ...]] = field(default_factory=lambda: NO_PODS)
    pending: frozenset[str] = frozenset()
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
        """Let go of the driver; a later read takes hold of it again."""


class ProcessSource(Protocol):
    """Reads processes. Never raises."""

    @property
    def name(self) -> str:
        """Its name in ``sources`` and in ``otel_gpu.source``."""

    def read(self, pids: Collection[int]) -> ProcessRead:
        """Read these pids, and whoever else has a GPU device open."""


class NameSource(Protocol):
    """Knows what people call a workload. Never raises, never blocks: it looks up on a thread of its own."""

    @property
    def name(self) -> str:
        """Its name in ``sources`` and in ``otel_gpu.source``."""

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        """What is known by now; ``workloads`` are those on GPUs, each with its pids.

        The mapping does not change after that: the same object is the same workloads again.
        """

    def wait(self, timeout_s: float) -> bool:
        """Wait for what it finds out first of all; false if that takes longer."""

    def close(self) -> None:
        """Ask no more."""
