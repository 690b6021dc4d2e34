"""The Snapshot of one cycle: everything that was read, before any rule is applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from otel_gpu.model.identity import GpuIdentity, MigAccess, ProcessKey, WorkloadKey, WorkloadNames, WorkloadRef


class ProcessKind(StrEnum):
    """The driver's list that a process is in."""

    COMPUTE = "compute"
    GRAPHICS = "graphics"
    MPS = "mps"


class GpuHealth(StrEnum):
    """How the driver answers for a GPU. A GPU that is asleep is not read, and none is while the agent is paused.

    The first three are values of OpenTelemetry's ``hw.state``, which allows others where none of its own applies.
    """

    OK = "ok"
    DEGRADED = "degraded"
    FAILED = "failed"
    ASLEEP = "asleep"
    PAUSED = "paused"


_ANSWERING: Final = (GpuHealth.OK, GpuHealth.DEGRADED)
"""A constant, because every reference to a member of an enumeration is a look-up."""


class DeviceMemory(NamedTuple):
    """Memory of a GPU or MIG instance. ``reserved_bytes`` is ``None`` where ``used_bytes`` includes it."""

    total_bytes: int
    used_bytes: int
    free_bytes: int
    reserved_bytes: int | None


class ListedProcess(NamedTuple):
    """One entry of one of the driver's process lists; a pid may be in several."""

    pid: int
    kind: ProcessKind
    memory_bytes: int | None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None


class UtilizationRow(NamedTuple):
    """A process's mean use of the engines over the driver's samples, in percent, as returned by the driver."""

    pid: int
    timestamp_us: int
    sm_percent: int
    memory_percent: int
    encoder_percent: int
    decoder_percent: int


@dataclass(frozen=True, slots=True)
class UtilizationRead:
    """One utilisation read: rows of all samples after ``since_us`` (Unix time), read at ``read_at_us``."""

    since_us: int
    read_at_us: int
    rows: tuple[UtilizationRow, ...]


@dataclass(frozen=True, slots=True)
class AccountingRecord:
    """The driver's accounting record of one process over its life, kept after its exit."""

    pid: int
    start_time_us: int
    time_ms: int
    gpu_percent: int | None
    memory_percent: int | None
    max_memory_bytes: int | None
    running: bool


@dataclass(frozen=True, slots=True)
class MigReading:
    """One MIG instance of a GPU. ``index`` is its number on the GPU; numbers can have gaps."""

    uuid: str
    gpu_instance_id: int | None
    compute_instance_id: int | None
    profile: str | None
    sm_count: int | None
    memory: DeviceMemory | None
    processes: tuple[ListedProcess, ...] | None
    index: int | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Everything read of one GPU in one cycle. ``energy_mj`` is always read before ``utilization``.

    ``taken_at_ns`` (monotonic) belongs to ``energy_mj`` and ``power_w``. Ratios are 0 to 1.
    ``processes`` and ``utilization`` are ``None`` where the driver does not report them, and empty where it reports no
    process. ``sm_count`` is the number of SMs of the largest possible MIG instance; it is read only in
    MIG mode.
    """

    identity: GpuIdentity
    taken_at_ns: int
    health: GpuHealth = GpuHealth.OK
    reason: str | None = None
    memory: DeviceMemory | None = None
    processes: tuple[ListedProcess, ...] | None = None
    utilization: UtilizationRead | None = None
    energy_mj: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    gpu_ratio: float | None = None
    memory_controller_ratio: float | None = None
    encoder_ratio: float | None = None
    decoder_ratio: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    xid_errors: int | None = None
    last_xid: int | None = None
    persistence_mode: bool | None = None
    mig: tuple[MigReading, ...] | None = None
    sm_count: int | None = None
    accounting: tuple[AccountingRecord, ...] | None = None

    @property
    def answered(self) -> bool:
        """Whether the driver returned figures; if not, only the identity, the health and its reason are set."""
        return self.health in _ANSWERING


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """The version of the driver."""

    driver_version: str | None


class ProcessFacts(NamedTuple):
    """What ``/proc`` shows of one process. ``mig_access`` are the capabilities it has open.

    ``start_time_s`` (Unix time) is ``None`` where the boot time is unknown, ``uvm_mapping_bytes`` where the mappings
    could not be read.
    """

    key: ProcessKey
    name: str
    start_time_s: float | None
    owner_uid: int | None
    workload: WorkloadRef
    gpu_minors_open: frozenset[int] = frozenset()
    mig_access: frozenset[MigAccess] = frozenset()
    uvm_open: bool = False
    uvm_mapping_bytes: int | None = None
    alive: bool = True


class SourceState(StrEnum):
    """State of a source in a cycle. Degraded: it answered, and something is missing. Paused: on the user's request."""

    OK = "ok"
    DEGRADED = "degraded"
    UNAVAILABLE = "unavailable"
    PAUSED = "paused"

    @property
    def answers(self) -> bool:
        """Whether the source returned data."""
        return self in (SourceState.OK, SourceState.DEGRADED)


@dataclass(frozen=True, slots=True)
class SourceOutcome:
    """Outcome of one source in one cycle: state, the reason in one line, duration in seconds, number of errors.

    ``by_gpu``: the state comes from single GPUs, whose readings have the same state and reason. ``blind``: nothing can
    be attributed until the reason is gone. A source that is only degraded is not blind.
    """

    name: str
    state: SourceState
    reason: str | None = None
    duration_s: float = 0.0
    errors: int = 0
    by_gpu: bool = False
    blind: bool = False


class UnreadableReason(StrEnum):
    """Why a process, or a file of it, could not be read."""

    DENIED = "denied"
    """Its descriptors or mappings need permission to trace the process (ptrace(2), PTRACE_MODE_READ)."""
    HIDDEN = "hidden"
    """Its stat is not readable; it is for every user, unless procfs is mounted with hidepid."""
    TIMED_OUT = "timed_out"
    """A read did not return in time."""
    TOO_LARGE = "too_large"
    """Its mappings are more than is read of one process."""
    MALFORMED = "malformed"
    """A file does not behave as in procfs."""
    UNIDENTIFIED = "unidentified"
    """Its cgroup does not show its workload."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A GPU or MIG instance granted to a workload, since ``since_s`` (Unix time; ``None`` if unknown).

    ``share`` is the granted part of the GPU, ``None`` where it is unknown. ``possible``: the workload has access to the
    device without a grant, and has no share.
    """

    workload: WorkloadRef
    gpu_uuid: str
    mig_uuid: str = ""
    since_s: float | None = None
    share: float | None = None
    possible: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything read in one cycle. No later step reads anything.

    ``pids_complete`` is false where the driver may hide processes from this agent (a pid namespace of its own).
    ``names_pending`` are workloads whose names are still being looked up. ``grants`` are devices that runtimes and
    schedulers gave to workloads. ``infers`` is false where memory and energy must not be attributed by evidence alone,
    because a process that the agent cannot see is as likely: an agent of one pod that does not see the whole host.
    ``unreadable`` counts processes for every ``UnreadableReason``; it is empty if the process source did not answer.
    """

    wall_ns: int
    monotonic_ns: int
    gpus: tuple[GpuReading, ...]
    processes: Mapping[int, ProcessFacts]
    names: Mapping[WorkloadKey, WorkloadNames]
    sources: tuple[SourceOutcome, ...]
    driver: DriverFacts | None = None
    pids_complete: bool = True
    names_pending: frozenset[WorkloadKey] = frozenset()
    grants: tuple[Grant, ...] = ()
    infers: bool = True
    unreadable: Mapping[str, int] = field(default_factory=lambda: NO_UNREADABLE)


NO_UNREADABLE: Final[Mapping[str, int]] = {}
NO_NAMES: Final[Mapping[WorkloadKey, WorkloadNames]] = MappingProxyType({})
NO_PROCESSES: Final[Mapping[int, ProcessFacts]] = MappingProxyType({})
