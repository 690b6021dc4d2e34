"""Builders for tests: readings, process facts, snapshots, reports and fake sources."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.model import (
    HOST_WORKLOAD,
    DeviceMemory,
    DriverFacts,
    GpuHealth,
    GpuIdentity,
    GpuReading,
    ListedProcess,
    MigAccess,
    MigReading,
    ProcessFacts,
    ProcessKey,
    ProcessKind,
    Report,
    Snapshot,
    SourceOutcome,
    SourceState,
    WorkloadKind,
    WorkloadNames,
    WorkloadRef,
)
from otel_gpu.sources.base import GpuRead, NameRead, ProcessRead

MIB: Final = 1 << 20
GIB: Final = 1 << 30
WALL_NS: Final = 1_700_000_000_000_000_000
DRIVER: Final = DriverFacts("570.124.06")
CONTAINER_ID: Final = "c0ffee" + "0" * 58
CONTAINER: Final = WorkloadRef(WorkloadKind.CONTAINER, CONTAINER_ID, runtime="containerd", pod_uid="pod-uid")

T = TypeVar("T")


def nothing() -> None:
    """Do nothing."""


# ---------------------------------------------------------------------------- the driver


def uuid_of(index: int) -> str:
    """The UUID of the GPU that ``gpu`` builds for an index."""
    return f"GPU-{index}"


def memory(
    *, total_gib: float = 80, used_gib: float = 10, free_gib: float | None = None, reserved_gib: float | None = 1
) -> DeviceMemory:
    """A device's memory. Free memory is the rest, unless ``free_gib`` is given."""
    free = total_gib - used_gib - (reserved_gib or 0) if free_gib is None else free_gib
    return DeviceMemory(
        total_bytes=int(total_gib * GIB),
        used_bytes=int(used_gib * GIB),
        free_bytes=int(free * GIB),
        reserved_bytes=None if reserved_gib is None else int(reserved_gib * GIB),
    )


def listed(
    pid: int,
    memory_bytes: int | None = GIB,
    kind: ProcessKind = ProcessKind.COMPUTE,
    *,
    instance: tuple[int | None, int | None] = (None, None),
) -> ListedProcess:
    """An entry of a process list; ``instance`` is GPU instance and compute instance."""
    return ListedProcess(pid, kind, memory_bytes, *instance)


def mig(
    uuid: str,
    instance: tuple[int | None, int | None],
    processes: Iterable[ListedProcess] | None = (),
    *,
    profile: str | None = "1g.10gb",
    memory: DeviceMemory | None = None,
) -> MigReading:
    """A MIG instance; ``processes`` is ``None`` where its lists cannot be read."""
    return MigReading(
        uuid=uuid,
        gpu_instance_id=instance[0],
        compute_instance_id=instance[1],
        profile=profile,
        sm_count=14,
        memory=memory,
        processes=None if processes is None else tuple(processes),
    )


def gpu(
    index: int = 0,
    processes: Iterable[ListedProcess] | None = (),
    *,
    name: str = "NVIDIA A100-SXM4-80GB",
    memory: DeviceMemory | None = None,
    mig: Iterable[MigReading] | None = None,
    energy_mj: int | None = None,
    power_w: float | None = None,
    temperature_c: float | None = None,
    gpu_ratio: float | None = None,
    health: GpuHealth = GpuHealth.OK,
    reason: str | None = None,
) -> GpuReading:
    """One GPU's reading; its device node is ``/dev/nvidia<index>``."""
    return GpuReading(
        identity=GpuIdentity(index, uuid_of(index), name, minor=index),
        taken_at_ns=0,
        health=health,
        reason=reason,
        memory=memory,
        processes=None if processes is None else tuple(processes),
        energy_mj=energy_mj,
        power_w=power_w,
        temperature_c=temperature_c,
        gpu_ratio=gpu_ratio,
        mig=None if mig is None else tuple(mig),
    )


def failed_gpu(index: int = 0, reason: str = "GPU is lost") -> GpuReading:
    """A GPU that does not answer: in the snapshot, without figures."""
    return gpu(index, None, health=GpuHealth.FAILED, reason=reason)


def gpu_read(*gpus: GpuReading, state: SourceState = SourceState.OK, reason: str | None = None) -> GpuRead:
    """The driver's read of one cycle."""
    return GpuRead(gpus, DRIVER, state, reason, errors=int(reason is not None))


# ---------------------------------------------------------------------------- /proc and snapshots


def facts(
    pid: int,
    workload: WorkloadRef = HOST_WORKLOAD,
    *,
    name: str = "python3",
    start_ticks: int = 100,
    opens: Collection[int] = (),
    uvm: bool = False,
    access: Collection[MigAccess] = (),
    alive: bool = True,
) -> ProcessFacts:
    """A process; ``opens`` are the minors of the GPUs it has open, ``access`` its MIG capabilities."""
    return ProcessFacts(
        key=ProcessKey(pid, start_ticks),
        name=name,
        start_time_s=1_700_000_000 + start_ticks / 100,
        owner_uid=1000,
        workload=workload,
        gpu_minors_open=frozenset(opens),
        mig_access=frozenset(access),
        uvm_open=uvm,
        alive=alive,
    )


def by_pid(*processes: ProcessFacts) -> dict[int, ProcessFacts]:
    """Processes by pid, as a source returns them."""
    return {process.key.pid: process for process in processes}


def process_read(
    *processes: ProcessFacts, state: SourceState = SourceState.OK, reason: str | None = None
) -> ProcessRead:
    """The read of ``/proc`` in one cycle."""
    return ProcessRead(by_pid(*processes), state, reason)


def snapshot(
    *gpus: GpuReading,
    processes: Iterable[ProcessFacts] = (),
    names: Mapping[str, WorkloadNames] = MappingProxyType({}),
    sources: Iterable[SourceOutcome] = (SourceOutcome("nvml", SourceState.OK), SourceOutcome("procfs", SourceState.OK)),
    at_s: float = 0,
) -> Snapshot:
    """The snapshot of a cycle ``at_s`` seconds after the first. ``names`` are by container id."""
    at_ns = round(at_s * 1e9)
    gpus = tuple(replace(reading, taken_at_ns=at_ns) for reading in gpus)
    keyed = {(WorkloadKind.CONTAINER.value, id_): known for id_, known in names.items()}
    return Snapshot(WALL_NS + at_ns, at_ns, gpus, by_pid(*processes), keyed, tuple(sources), DRIVER)


def attribute(previous: Snapshot | None, now: Snapshot) -> Report:
    """The report of a cycle, with or without a cycle before it."""
    attributor = Attributor()
    if previous is not None:
        attributor.observe(previous)
    return attributor.observe(now)


def attribution(name: str = "vllm-chat") -> Report:
    """A report with MIG, a lost GPU, known and unknown names, and missing figures.

    ``name`` is the name of one container and its process, and a prefix of its pod's.
    """
    before = snapshot(gpu(0, energy_mj=1_000_000), gpu(1, energy_mj=7_000))
    on_instance = listed(300, 4 * GIB, instance=(1, 0))
    now = snapshot(
        gpu(
            0,
            [listed(100, 54 * GIB), listed(200, 512 * MIB), listed(201, None), listed(999, GIB)],
            memory=memory(used_gib=60),
            energy_mj=1_300_000,
            power_w=295.7,
            temperature_c=49,
            gpu_ratio=0.834,
        ),
        gpu(
            1,
            [on_instance],
            name="NVIDIA H100 80GB HBM3",
            memory=memory(used_gib=8),
            mig=[mig("MIG-1", (1, 0), [on_instance], memory=memory(total_gib=10, used_gib=4, reserved_gib=0))],
            energy_mj=9_500,
            power_w=70,
        ),
        failed_gpu(2, "GPU is lost: it fell off the bus"),
        processes=[
            facts(100, CONTAINER, name=name),
            facts(200, WorkloadRef(WorkloadKind.SYSTEMD_UNIT, "ollama.service"), name="ollama"),
            facts(201, HOST_WORKLOAD),
            facts(300, WorkloadRef(WorkloadKind.CONTAINER, "d" * 64)),
        ],
        names={
            CONTAINER_ID: WorkloadNames(
                container=name, image="vllm:1", pod=f"{name}-0", namespace="inference", pod_uid="pod-uid"
            )
        },
        sources=[
            SourceOutcome("nvml", SourceState.DEGRADED, "GPU 2: GPU is lost: it fell off the bus", 0.25, 1),
            SourceOutcome("procfs", SourceState.OK),
        ],
        at_s=5,
    )
    return attribute(before, now)


# ---------------------------------------------------------------------------- sources


class _Script(Generic[T]):
    """Returns these reads in order, then the last one forever. ``on_read`` runs before each."""

    def __init__(self, name: str, answers: Sequence[T], on_read: Callable[[], None]) -> None:
        self.name = name
        self.reads = 0
        self._answers = answers
        self._on_read = on_read

    def _next(self) -> T:
        self.reads += 1
        self._on_read()
        return self._answers[min(self.reads, len(self._answers)) - 1]


class FakeGpus(_Script[GpuRead]):
    """A GPU source with scripted reads."""

    def __init__(self, *answers: GpuRead, name: str = "nvml", on_read: Callable[[], None] = nothing) -> None:
        super().__init__(name, answers or (GpuRead(),), on_read)
        self.closed = False

    def read(self) -> GpuRead:
        """The next read."""
        return self._next()

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True


class FakeProcesses(_Script[ProcessRead]):
    """A process source with scripted reads. ``asked`` and ``measured`` are the pids of each read."""

    def __init__(self, *answers: ProcessRead, name: str = "procfs", on_read: Callable[[], None] = nothing) -> None:
        super().__init__(name, answers or (ProcessRead(),), on_read)
        self.asked: list[set[int]] = []
        self.measured: list[set[int]] = []

    def read(self, pids: Collection[int], measured: Collection[int] = ()) -> ProcessRead:
        """The next read."""
        self.asked.append(set(pids))
        self.measured.append(set(measured))
        return self._next()


class FakeNames(_Script[NameRead]):
    """A name source with scripted reads. ``asked`` are the workloads of each read."""

    def __init__(self, *answers: NameRead, name: str = "names", on_read: Callable[[], None] = nothing) -> None:
        super().__init__(name, answers or (NameRead(),), on_read)
        self.asked: list[set[WorkloadRef]] = []
        self.closed = False

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        """The next read."""
        self.asked.append(set(workloads))
        return self._next()

    def wait(self, timeout_s: float) -> bool:
        """No look-up is pending."""
        return timeout_s >= 0

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True
