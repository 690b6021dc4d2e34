"""The Report of one cycle: what was attributed to which workload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from otel_gpu.model.identity import GpuIdentity, Pod, ProcessKey, WorkloadNames, WorkloadRef
from otel_gpu.model.snapshot import NO_UNREADABLE, DriverFacts, GpuReading, SourceOutcome


class GpuState(StrEnum):
    """What a process or workload does with a GPU."""

    BUSY = "busy"
    IDLE = "idle"
    ALLOCATED = "allocated"
    UNKNOWN = "unknown"


_PRECEDENCE: Final = (GpuState.BUSY, GpuState.UNKNOWN, GpuState.IDLE, GpuState.ALLOCATED)


def workload_state(states: Iterable[GpuState]) -> GpuState | None:
    """The state of a workload, from the states of its processes on a GPU or of its parts of several GPUs.

    It is busy if any is, and idle only if none may be busy. Without states it is ``None``.
    """
    found = set(states)
    return next((state for state in _PRECEDENCE if state in found), None)


class MemorySplit(NamedTuple):
    """limit = reserved + measured - overcount + inferred + unattributed + free, in bytes, exactly.

    ``reserved_bytes`` is ``None`` where the driver does not report it; it then counts as 0 in the sum.
    """

    limit_bytes: int
    reserved_bytes: int | None
    measured_bytes: int
    overcount_bytes: int
    inferred_bytes: int
    unattributed_bytes: int
    free_bytes: int

    @property
    def used_bytes(self) -> int:
        """Memory in use, without what the driver reserves."""
        return self.limit_bytes - self.free_bytes - (self.reserved_bytes or 0)

    @property
    def conservation_error_bytes(self) -> int:
        """How far the parts miss the limit; anything but 0 is a bug."""
        parts = (self.reserved_bytes or 0) + self.measured_bytes - self.overcount_bytes
        return self.limit_bytes - (parts + self.inferred_bytes + self.unattributed_bytes + self.free_bytes)


class EnergySplit(NamedTuple):
    """How far the energy counter advanced, and how that divides, in millijoules."""

    delta_mj: int
    attributed_mj: int | None = None
    idle_mj: int | None = None
    unattributed_mj: int | None = None


class MethodEnergy(NamedTuple):
    """The energy of a workload or process by method, in millijoules."""

    measured_mj: int | None = None
    estimated_mj: int | None = None
    inferred_mj: int | None = None

    @property
    def total_mj(self) -> int | None:
        """The sum over all methods; ``None`` if none has a figure."""
        known = [part for part in (self.measured_mj, self.estimated_mj, self.inferred_mj) if part is not None]
        return sum(known) if known else None


NO_ENERGY: Final = MethodEnergy()
"""No figures."""


class Totals(NamedTuple):
    """What a process or workload has used of one GPU since ``since_ns`` (Unix time), in integers that never fall.

    Energy and time by state lack what is still undecided; ``energy`` has all of it. Billed time is the workload's part
    of the GPU's elapsed time, which its holders share.
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


class Cost(NamedTuple):
    """The cost of a workload's use of one GPU so far, in the configured currency."""

    state: GpuState
    basis: CostBasis
    amount: float


class GpuTotals(NamedTuple):
    """How a GPU's energy divides since the ledger began, in millijoules."""

    attributed_mj: int
    idle_mj: int
    unattributed_mj: int

    @property
    def total_mj(self) -> int:
        """The sum of the three."""
        return self.attributed_mj + self.idle_mj + self.unattributed_mj


class EnergyBasis(NamedTuple):
    """How a GPU's energy was measured and divided: ``source`` is the counter or the integral of power.

    ``idle_power_w`` is its power without contexts, ``context_power_w`` with contexts and no work. An origin says how
    each was obtained.
    """

    source: str
    policy: str
    model: str
    idle_power_w: float
    idle_power_origin: str
    context_power_w: float
    context_power_origin: str


class MigReport(NamedTuple):
    """One MIG instance and the split of its memory."""

    uuid: str
    profile: str | None
    memory: MemorySplit | None


class GpuReport(NamedTuple):
    """One GPU: its reading, and how its memory and energy divide.

    ``energy_error_mj`` is how far the accounts of processes or workloads miss the GPU's; anything but 0 is a bug.
    ``has_energy`` and ``has_utilization`` say whether the GPU reports these at all: where it does not, a count of 0
    would only mean that nothing is counted. They hold also where a report for one pod leaves the GPU's figures out.
    """

    reading: GpuReading
    memory: MemorySplit | None
    energy: EnergySplit | None
    mig: tuple[MigReport, ...] | None
    totals: GpuTotals | None = None
    basis: EnergyBasis | None = None
    energy_error_mj: int = 0
    has_energy: bool = False
    has_utilization: bool = False

    @property
    def identity(self) -> GpuIdentity:
        """The GPU this describes."""
        return self.reading.identity


class WorkloadGpu(NamedTuple):
    """One workload's part of one GPU, or of one MIG instance of it.

    ``gpu_index`` and ``mig_profile`` are as last read, also while the GPU does not answer. ``allocation`` is the
    fraction of a GPU that was granted. ``possible`` is a workload that could use the GPU, and neither was granted it
    nor has used it: it has no figures.
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


class WorkloadReport(NamedTuple):
    """A workload, its names and its parts of the GPUs.

    ``naming`` numbers its names: after a rename the old entry ends and stays for a while beside its successor. While
    it is ``awaiting_names`` it is not exported.
    """

    ref: WorkloadRef
    names: WorkloadNames | None
    gpus: tuple[WorkloadGpu, ...]
    naming: int = 0
    awaiting_names: bool = False

    @property
    def reported_gpus(self) -> tuple[WorkloadGpu, ...]:
        """Its parts of GPUs that it is on now or used energy of in this window: these sum to the GPU's."""
        return tuple(part for part in self.gpus if part.active or part.energy.total_mj)

    @property
    def active_gpus(self) -> tuple[WorkloadGpu, ...]:
        """Its parts of GPUs that it is on now."""
        return tuple(part for part in self.gpus if part.active)

    @property
    def display_name(self) -> str:
        """The best name known, else the id."""
        names = self.names
        return (names is not None and (names.title or names.container)) or self.ref.id_label


class ProcessReport(NamedTuple):
    """One process's part of one GPU. ``name`` and ``start_time_s`` are ``None`` if /proc never showed it.

    It belongs to the WorkloadReport with the same ``workload`` and ``naming``.
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
    def is_reported(self) -> bool:
        """Whether it is on the GPU now, or used energy in this window."""
        return self.active or bool(self.energy.total_mj)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one cycle, which every exporter reads. ``window_s`` is ``None`` for the first cycle.

    ``epoch_ns`` (Unix time) is when the ledger began; ``anomalies`` counts figures since then that cannot be true.
    A report for a single ``pod`` has no figures of whole GPUs. ``unreadable`` is the count of the Snapshot.
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
    unreadable: Mapping[str, int] = field(default_factory=lambda: NO_UNREADABLE)
