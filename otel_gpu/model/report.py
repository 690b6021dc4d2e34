"""What follows from it: the answer of one cycle."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from otel_gpu.model.identity import GpuIdentity, Pod, ProcessKey, WorkloadNames, WorkloadRef
from otel_gpu.model.made import quickly_made
from otel_gpu.model.snapshot import DriverFacts, GpuReading, SourceOutcome


class GpuState(StrEnum):
    """What a process or workload does with a GPU."""

    BUSY = "busy"
    IDLE = "idle"
    ALLOCATED = "allocated"
    UNKNOWN = "unknown"


@quickly_made
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


class MethodEnergy(NamedTuple):
    """A workload's or process's energy by how it was found, in millijoules.

    A tuple, as ``Totals``: there are hundreds of both in every cycle, and a frozen dataclass takes ten times as long.
    """

    measured_mj: int | None = None
    estimated_mj: int | None = None
    inferred_mj: int | None = None

    @property
    def total_mj(self) -> int | None:
        """All methods together; ``None`` where none is known."""
        known = [part for part in (self.measured_mj, self.estimated_mj, self.inferred_mj) if part is not None]
        return sum(known) if known else None


NO_ENERGY: Final = MethodEnergy()
"""Of whom nothing is known."""


class Totals(NamedTuple):
    """What somebody has used of one GPU since ``since_ns`` (Unix time), in integers that never fall.

    Energy by state is that of time that is decided; what is still held back is in ``energy`` already. Billed is the
    part of the GPU's time that is this workload's to pay for: those who share it share that.
    """

    since_ns: int
    energy: MethodEnergy
    compute_us: int
    busy_us: int
    idle_us: int
    allocated_us: int
    unknown_us: int
    idle_byte_us: int
    idle_mj: int
    busy_mj: int = 0
    unknown_mj: int = 0
    billed_busy_us: int = 0
    billed_idle_us: int = 0
    billed_allocated_us: int = 0
    billed_unknown_us: int = 0


class CostBasis(StrEnum):
    """What is paid for: time on the GPU, or energy drawn."""

    TIME = "time"
    ENERGY = "energy"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a workload's use of one GPU has cost so far, in the currency configured."""

    state: GpuState
    basis: CostBasis
    amount: float


@dataclass(frozen=True, slots=True)
class DeviceTotals:
    """Where a GPU's energy went since the ledger began, in millijoules."""

    attributed_mj: int
    idle_mj: int
    unattributed_mj: int

    @property
    def total_mj(self) -> int:
        """All of it."""
        return self.attributed_mj + self.idle_mj + self.unattributed_mj


@quickly_made
@dataclass(frozen=True, slots=True)
class EnergyBasis:
    """What the division of a GPU's energy rests on: ``source`` is the counter or the integral of power.

    ``idle_w`` is its power with no contexts, ``held_w`` with contexts and no work; an origin says how each was found.
    """

    source: str
    policy: str
    model: str
    idle_w: float
    idle_origin: str
    held_w: float
    held_origin: str


@dataclass(frozen=True, slots=True)
class MigReport:
    """One MIG instance and the split of its memory."""

    uuid: str
    profile: str | None
    memory: MemorySplit | None


class Counted(NamedTuple):
    """What is counted of a GPU's users. Where it is not, 0 would only mean that nobody counts."""

    energy: bool
    work: bool


@quickly_made
@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU: what it has, and how that divides.

    ``energy_error_mj`` is how far the books of processes or workloads miss the GPU's; anything but 0 is a bug.
    ``told_counted`` says what is counted where the figures that would show it are left out.
    """

    reading: GpuReading
    memory: MemorySplit | None
    energy: EnergySplit | None
    mig: tuple[MigReport, ...] | None
    totals: DeviceTotals | None = None
    basis: EnergyBasis | None = None
    energy_error_mj: int = 0
    told_counted: Counted | None = None

    @property
    def identity(self) -> GpuIdentity:
        """The GPU this speaks of."""
        return self.reading.identity

    @property
    def counted(self) -> Counted:
        """What is counted of those who are on it."""
        if self.told_counted is not None:
            return self.told_counted
        reading, totals = self.reading, self.totals
        metered = reading.energy_mj is not None or reading.power_w is not None
        return Counted(
            energy=totals is not None and (metered or totals.total_mj > 0),
            work=reading.utilization is not None,
        )


@quickly_made
@dataclass(frozen=True, slots=True)
class WorkloadGpu:
    """One workload's part of one GPU (or of one MIG instance of it).

    ``gpu_index`` and ``mig_profile`` are as last told, also while the GPU does not answer. ``allocation`` is the part
    of a GPU that it was given. Who could use a GPU (``possible``) and neither was given it nor has used it, has no
    figures.
    """

    gpu_uuid: str
    mig_uuid: str | None
    measured_bytes: int | None
    inferred_bytes: int | None = None
    confidence: float | None = None
    sm_ratio: float | None = None
    bandwidth_ratio: float | None = None
    energy: MethodEnergy = NO_ENERGY
    state: GpuState | None = None
    idle_s: float | None = None
    idle_bytes: int | None = None
    totals: Totals | None = None
    active: bool = True
    costs: tuple[Cost, ...] = ()
    gpu_index: int | None = None
    mig_profile: str | None = None
    allocation: float | None = None
    possible: bool = False


@quickly_made
@dataclass(frozen=True, slots=True)
class WorkloadReport:
    """A workload, its names and its parts of the GPUs.

    ``naming`` counts its names: after a rename the old entry ends and stays for a while beside its successor. While
    ``held``, its names are still being looked up, and it is not exported.
    """

    ref: WorkloadRef
    names: WorkloadNames | None
    gpus: tuple[WorkloadGpu, ...]
    naming: int = 0
    held: bool = False

    @property
    def told_gpus(self) -> tuple[WorkloadGpu, ...]:
        """Its parts of the GPUs that it is on now or drew energy from in this window: these sum to the GPU's."""
        return tuple(part for part in self.gpus if part.active or part.energy.total_mj)

    @property
    def active_gpus(self) -> tuple[WorkloadGpu, ...]:
        """Its parts of the GPUs that it is on now; the others it has left."""
        return tuple(part for part in self.gpus if part.active)

    @property
    def display_name(self) -> str:
        """The best name known; the id where nobody knows one."""
        names = self.names
        return (names is not None and (names.title or names.container)) or self.ref.unnamed


@quickly_made
@dataclass(frozen=True, slots=True)
class ProcessReport:
    """One process's part of one GPU. ``name`` and ``start_time_s`` are ``None`` if /proc never showed it.

    It belongs to the workload with this ``workload`` and ``naming``.
    """

    key: ProcessKey
    name: str | None
    start_time_s: float | None
    workload: WorkloadRef
    gpu_uuid: str
    mig_uuid: str | None
    memory_bytes: int | None
    sm_ratio: float | None = None
    bandwidth_ratio: float | None = None
    energy: MethodEnergy = NO_ENERGY
    state: GpuState | None = None
    idle_s: float | None = None
    idle_bytes: int | None = None
    totals: Totals | None = None
    active: bool = True
    naming: int = 0
    gpu_index: int | None = None
    mig_profile: str | None = None

    @property
    def told(self) -> bool:
        """Whether it is there now, or drew energy in this window."""
        return self.active or bool(self.energy.total_mj)


@dataclass(frozen=True, slots=True)
class Report:
    """The answer of one cycle, which every exporter reads. ``window_s`` is ``None`` for the first cycle.

    ``epoch_ns`` (Unix time) is when the books began. ``anomalies`` counts figures that could not be true, ever since.
    ``pod`` is the one pod that it speaks of, ``None`` where it speaks of everybody; it has no figures of GPUs then.
    """

    wall_ns: int
    monotonic_ns: int
    window_s: float | None
    gpus: tuple[GpuReport, ...]
    workloads: tuple[WorkloadReport, ...]
    processes: tuple[ProcessReport, ...]
    sources: tuple[SourceOutcome, ...]
    driver: DriverFacts | None = None
    anomalies: int = 0
    epoch_ns: int = 0
    pod: Pod | None = None
