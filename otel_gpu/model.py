"""What is known, as frozen data: what was read (Snapshot) and what follows from it (Attribution).

Units are in the names. ``None`` means "not known": never zero, never a sentinel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

# ---------------------------------------------------------------------------- identity


class ProcessKey(NamedTuple):
    """A process: its pid on the host and its start in clock ticks since boot. A pid alone is reused."""

    pid: int
    start_ticks: int


START_UNKNOWN: Final = -1
"""``ProcessKey.start_ticks`` of a pid that a driver names but ``/proc`` has never shown."""


class WorkloadKind(StrEnum):
    """What a process belongs to, as far as its cgroup tells."""

    CONTAINER = "container"
    SLURM_JOB = "slurm_job"
    SYSTEMD_UNIT = "systemd_unit"
    LXC = "lxc"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class WorkloadRef:
    """Which workload a process belongs to: enough to identify it, nothing that needs a look-up.

    ``id`` is the container id, Slurm job id, unit name or LXC name. ``outer_container_id`` is the
    container around the innermost one (a ``kind`` node, Docker in Docker).
    """

    kind: WorkloadKind
    id: str
    runtime: str | None = None
    pod_uid: str | None = None
    slurm_step: str | None = None
    outer_container_id: str | None = None


HOST_WORKLOAD: Final = WorkloadRef(WorkloadKind.HOST, "host")
"""Everything that runs on the host in nobody's container, job or unit."""

UNIDENTIFIED_WORKLOAD: Final = WorkloadRef(WorkloadKind.HOST, "unidentified")
"""Processes the driver measured but that this agent cannot see: named, so that nobody is billed for them."""


@dataclass(frozen=True, slots=True)
class WorkloadNames:
    """The names people know a workload by. What nobody told stays ``None``."""

    container: str | None = None
    image: str | None = None
    pod: str | None = None
    namespace: str | None = None
    pod_uid: str | None = None


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """What does not change about a physical GPU while the driver is loaded. ``index`` may, over reloads."""

    index: int
    uuid: str
    name: str
    minor: int | None = None
    pci_bus_id: str | None = None
    serial: str | None = None


# ---------------------------------------------------------------------------- what was read


class ProcessKind(StrEnum):
    """The driver's list a process stands in."""

    COMPUTE = "compute"
    GRAPHICS = "graphics"
    MPS = "mps"


class GpuHealth(StrEnum):
    """How the driver answers for a GPU."""

    OK = "ok"
    DEGRADED = "degraded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a GPU or MIG instance. ``reserved_bytes`` is ``None`` where ``used_bytes`` includes it."""

    total_bytes: int
    used_bytes: int
    free_bytes: int
    reserved_bytes: int | None


@dataclass(frozen=True, slots=True)
class ListedProcess:
    """One entry of one of the driver's process lists; the same pid may stand in several."""

    pid: int
    kind: ProcessKind
    memory_bytes: int | None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None


@dataclass(frozen=True, slots=True)
class UtilizationRow:
    """A process's mean use of the engines over the driver's samples, as the driver gave it."""

    pid: int
    timestamp_us: int
    sm_percent: int
    memory_percent: int
    encoder_percent: int
    decoder_percent: int


@dataclass(frozen=True, slots=True)
class UtilizationRead:
    """One answer of the driver: rows of all samples after ``since_us`` (Unix time), read at ``read_at_us``."""

    since_us: int
    read_at_us: int
    rows: tuple[UtilizationRow, ...]


@dataclass(frozen=True, slots=True)
class AccountingRecord:
    """What the driver booked for one process over its life, kept after its exit."""

    pid: int
    start_time_us: int
    time_ms: int
    gpu_percent: int | None
    memory_percent: int | None
    max_memory_bytes: int | None
    running: bool


@dataclass(frozen=True, slots=True)
class MigReading:
    """One MIG instance of a GPU."""

    uuid: str
    gpu_instance_id: int | None
    compute_instance_id: int | None
    profile: str | None
    sm_count: int | None
    memory: DeviceMemory | None
    processes: tuple[ListedProcess, ...] | None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """All that one pass read of one GPU. ``energy_mj`` was read before ``utilization``, always.

    ``taken_at_ns`` (monotonic) belongs to ``energy_mj`` and ``power_w``. Ratios are 0 to 1.
    ``processes`` and ``utilization`` are ``None`` where the driver cannot tell, empty where it says nobody.
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
    accounting: tuple[AccountingRecord, ...] | None = None


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """Versions of what answers behind NVML."""

    driver_version: str | None
    nvml_version: str | None


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What ``/proc`` shows of one process. ``uvm_mapping_bytes`` is ``None`` where it was not readable."""

    key: ProcessKey
    name: str
    start_time_s: float
    owner_uid: int | None
    workload: WorkloadRef
    gpu_minors_open: frozenset[int] = frozenset()
    mig_caps_open: frozenset[int] = frozenset()
    uvm_open: bool = False
    uvm_mapping_bytes: int | None = None
    alive: bool = True


class SourceState(StrEnum):
    """How a source did in a cycle. Degraded: it answered, and something is missing from the answer."""

    OK = "ok"
    DEGRADED = "degraded"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class SourceOutcome:
    """How one source did in one cycle: state, the reason in one line, time taken, errors met."""

    name: str
    state: SourceState
    reason: str | None = None
    duration_s: float = 0.0
    errors: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The world as read in one cycle. Nothing after this reads anything."""

    wall_ns: int
    monotonic_ns: int
    gpus: tuple[GpuReading, ...]
    processes: Mapping[int, ProcessFacts]
    names: Mapping[str, WorkloadNames]
    sources: tuple[SourceOutcome, ...]
    driver: DriverFacts | None = None


# ---------------------------------------------------------------------------- what follows


class GpuState(StrEnum):
    """What a process or workload does with a GPU."""

    BUSY = "busy"
    IDLE = "idle"
    ALLOCATED = "allocated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """limit = reserved + measured - overcount + inferred + unattributed + free, in bytes, exactly.

    ``reserved_bytes`` is ``None`` where the driver does not tell it apart; it then counts as 0 in the sum.
    """

    limit_bytes: int
    reserved_bytes: int | None
    measured_bytes: int
    overcount_bytes: int
    inferred_bytes: int
    unattributed_bytes: int
    free_bytes: int

    @property
    def conservation_error_bytes(self) -> int:
        """How far the parts miss the limit; anything but 0 is a bug."""
        parts = (self.reserved_bytes or 0) + self.measured_bytes - self.overcount_bytes
        return self.limit_bytes - (parts + self.inferred_bytes + self.unattributed_bytes + self.free_bytes)


@dataclass(frozen=True, slots=True)
class EnergySplit:
    """What the energy counter advanced by, and to whom it went, in millijoules."""

    delta_mj: int
    attributed_mj: int | None = None
    idle_mj: int | None = None
    unattributed_mj: int | None = None


@dataclass(frozen=True, slots=True)
class MethodEnergy:
    """A workload's or process's energy by how it was found, in millijoules."""

    measured_mj: int | None = None
    estimated_mj: int | None = None
    inferred_mj: int | None = None


@dataclass(frozen=True, slots=True)
class MigAttribution:
    """One MIG instance and the split of its memory."""

    uuid: str
    profile: str | None
    memory: MemorySplit | None


@dataclass(frozen=True, slots=True)
class GpuAttribution:
    """One GPU: what it has, and how that divides."""

    reading: GpuReading
    memory: MemorySplit | None
    energy: EnergySplit | None
    mig: tuple[MigAttribution, ...] | None

    @property
    def identity(self) -> GpuIdentity:
        """The GPU this speaks of."""
        return self.reading.identity


@dataclass(frozen=True, slots=True)
class WorkloadGpu:
    """One workload's part of one GPU (or of one MIG instance of it)."""

    gpu_uuid: str
    mig_uuid: str | None
    measured_bytes: int | None
    inferred_bytes: int | None = None
    confidence: float | None = None
    sm_ratio: float | None = None
    energy: MethodEnergy = MethodEnergy()
    state: GpuState | None = None
    idle_s: float | None = None


@dataclass(frozen=True, slots=True)
class WorkloadAttribution:
    """A workload, its names and its parts of the GPUs."""

    ref: WorkloadRef
    names: WorkloadNames | None
    gpus: tuple[WorkloadGpu, ...]

    @property
    def display_name(self) -> str:
        """The best name known; the id where nobody knows one."""
        return (self.names.container if self.names is not None else None) or self.ref.id


@dataclass(frozen=True, slots=True)
class ProcessAttribution:
    """One process's part of one GPU. ``name`` and ``start_time_s`` are ``None`` if /proc never showed it."""

    key: ProcessKey
    name: str | None
    start_time_s: float | None
    workload: WorkloadRef
    gpu_uuid: str
    mig_uuid: str | None
    memory_bytes: int | None
    sm_ratio: float | None = None
    energy: MethodEnergy = MethodEnergy()
    state: GpuState | None = None
    idle_s: float | None = None


@dataclass(frozen=True, slots=True)
class Attribution:
    """The answer of one cycle, which every exporter reads. ``window_s`` is ``None`` for the first cycle."""

    wall_ns: int
    monotonic_ns: int
    window_s: float | None
    gpus: tuple[GpuAttribution, ...]
    workloads: tuple[WorkloadAttribution, ...]
    processes: tuple[ProcessAttribution, ...]
    sources: tuple[SourceOutcome, ...]
    driver: DriverFacts | None = None


NO_NAMES: Final[Mapping[str, WorkloadNames]] = MappingProxyType({})
NO_PROCESSES: Final[Mapping[int, ProcessFacts]] = MappingProxyType({})
