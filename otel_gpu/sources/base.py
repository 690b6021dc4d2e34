"""Interfaces of sources and the types of their answers. A partial answer is better than none."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from otel_gpu.model import (
    NO_PROCESSES,
    NO_UNREADABLE,
    DriverFacts,
    GpuReading,
    ProcessFacts,
    SourceState,
    UnreadableReason,
    WorkloadNames,
    WorkloadRef,
)


@dataclass(frozen=True, slots=True)
class GpuRead:
    """What the driver returned in this cycle.

    ``by_gpu``: the state is that of single GPUs, which have the same reasons. ``asleep`` is the number of GPUs that
    sleep and have not been seen awake, so that their identity is unknown.
    """

    gpus: tuple[GpuReading, ...] = ()
    driver: DriverFacts | None = None
    state: SourceState = SourceState.OK
    reason: str | None = None
    errors: int = 0
    by_gpu: bool = False
    asleep: int = 0


class UnreadableProcess(NamedTuple):
    """A process that could not be read, or not in full, and why. ``name`` is ``None`` if it was never read."""

    pid: int
    name: str | None
    reason: UnreadableReason
    detail: str


@dataclass(frozen=True, slots=True)
class ProcessRead:
    """What ``/proc`` showed in this cycle, by pid: the processes asked for and those with a GPU device open.

    ``pids_complete`` is false in a private pid namespace, where drivers hide processes of others.
    ``pids_are_own`` is false if the pids are those of another namespace than the agent's: a host's ``/proc`` mounted
    elsewhere. ``all_visible`` is false unless every process of the host and its open files could be read.
    ``processes`` is never changed after it was returned. ``unreadable`` is the number of processes that could not be
    read, or not in full, by ``UnreadableReason``; the first of them are ``unreadable_processes``.
    """

    processes: Mapping[int, ProcessFacts] = field(default_factory=lambda: NO_PROCESSES)
    state: SourceState = SourceState.OK
    reason: str | None = None
    errors: int = 0
    pids_complete: bool = True
    pids_are_own: bool = True
    all_visible: bool = True
    unreadable: Mapping[str, int] = field(default_factory=lambda: NO_UNREADABLE)
    unreadable_processes: tuple[UnreadableProcess, ...] = ()


class Claim(NamedTuple):
    """A claim to a GPU, as the runtime or scheduler that granted it states it.

    ``device`` is ``all``, an index (``0``), a MIG instance by indices (``0:1``), a UUID or the beginning of one
    (``GPU-…``, ``MIG-…``), or a device node (``nvidia0``, ``nvidia0/gi1``). ``replicas`` is the number of parts of a
    time-sliced GPU. ``possible`` means access without a grant.
    """

    device: str
    replicas: int | None = None
    possible: bool = False


class PodContainer(NamedTuple):
    """A container by the names that the kubelet uses. The kubelet does not give its id."""

    namespace: str
    pod: str
    container: str


class SpeakerKind(StrEnum):
    """What kind of program a name source asks, which decides what its text may identify."""

    HOST = "host"
    """The whole host: the simulated one."""
    ENGINE = "engine"
    """Docker or Podman."""
    KUBERNETES = "kubernetes"
    """The runtime of a node (CRI), its kubelet, the API."""
    SLURM = "slurm"


@dataclass(frozen=True, slots=True)
class Speaker:
    """The program that a name source asks. ``runtimes`` are those that cgroups of an engine's containers show.

    ``uid`` is the user whose own engine it is, ``None`` for root's.
    """

    kind: SpeakerKind
    runtimes: frozenset[str] = frozenset()
    uid: int | None = None


HOST: Final = Speaker(SpeakerKind.HOST)
KUBERNETES: Final = Speaker(SpeakerKind.KUBERNETES)
SLURM: Final = Speaker(SpeakerKind.SLURM)


class WorkloadInfo(NamedTuple):
    """What a source knows of one workload: names, whether it runs, since when (Unix time), its claims to GPUs.

    ``labelled`` are names of a pod from labels that an engine does not check. ``place`` is the workload as the cgroup
    of its process shows it, where the source named a process that exists.
    """

    ref: WorkloadRef
    names: WorkloadNames
    running: bool = True
    since_s: float | None = None
    claims: tuple[Claim, ...] = ()
    labelled: WorkloadNames | None = None
    place: WorkloadRef | None = None


NO_WORKLOADS: Final[Mapping[str, WorkloadInfo]] = MappingProxyType({})
NO_PODS: Final[Mapping[PodContainer, tuple[Claim, ...]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NameRead:
    """What a name source knows: workloads by their ids, and the kubelet's claims by pod and container name.

    The mappings are never changed after they were returned. ``pending`` are ids that are still being looked up. What
    is accepted depends on the ``speaker``.
    """

    known: Mapping[str, WorkloadInfo] = field(default_factory=lambda: NO_WORKLOADS)
    pods: Mapping[PodContainer, tuple[Claim, ...]] = field(default_factory=lambda: NO_PODS)
    pending: frozenset[str] = frozenset()
    state: SourceState = SourceState.OK
    reason: str | None = None
    errors: int = 0
    speaker: Speaker = HOST


class GpuSource(Protocol):
    """Reads GPUs. Never raises; returns within its deadline whatever the driver does."""

    @property
    def name(self) -> str:
        """Its name in ``sources`` and in ``otel_gpu.source``."""

    def read(self) -> GpuRead:
        """Read every GPU once."""

    def close(self) -> None:
        """Release the driver; a later read opens it again."""


class ProcessSource(Protocol):
    """Reads processes. Never raises."""

    @property
    def name(self) -> str:
        """Its name in ``sources`` and in ``otel_gpu.source``."""

    def read(self, pids: Collection[int], measured: Collection[int] = ()) -> ProcessRead:
        """Read these pids and every other process that has a GPU device open.

        Of the ``measured`` among them the driver reports the memory, so evidence for it need not be read.
        """


class NameSource(Protocol):
    """Knows names of workloads. Never raises and never blocks: it looks them up on a thread of its own."""

    @property
    def name(self) -> str:
        """Its name in ``sources`` and in ``otel_gpu.source``."""

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        """What is known by now. ``workloads`` are those on GPUs, each with its pids; the mapping is never changed."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first answer; false if that takes longer than ``timeout_s``."""

    def close(self) -> None:
        """Stop looking up names."""
