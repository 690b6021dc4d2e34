"""Which processes are on a GPU: by the driver's process lists, by open device files, by utilisation rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, Self

from otel_gpu.attribution.keys import DeviceKey, ProcessOnDevice
from otel_gpu.attribution.memory import UNEXPLAINED_BYTES, holders_by_instance
from otel_gpu.model import (
    START_UNKNOWN,
    UNIDENTIFIED_WORKLOAD,
    DeviceMemory,
    GpuReading,
    MigAccess,
    MigReading,
    ProcessFacts,
    ProcessKey,
    WorkloadRef,
)


class Resident(NamedTuple):
    """A process on a GPU. ``memory_bytes`` is the driver's figure, ``None`` where it gives none.

    ``listed`` is false for a process known only by its open device files or by its utilisation rows.
    """

    at: ProcessOnDevice
    ref: WorkloadRef
    name: str | None
    start_time_s: float | None
    listed: bool
    memory_bytes: int | None
    mapping_bytes: int | None = None
    sm_count: int | None = None

    def owned_by(self, ref: WorkloadRef) -> Resident:
        """The same process as part of this workload."""
        return self if ref == self.ref else self._replace(ref=ref)


Residents = Mapping[ProcessOnDevice, Resident]
"""All processes on a GPU, in the order of their keys."""

_BY_KEY: Final = attrgetter("at")


class HostProcesses(NamedTuple):
    """All processes of a host in one cycle, and which of them have CUDA open on which device minor."""

    by_pid: Mapping[int, ProcessFacts]
    cuda_by_minor: Mapping[int, Mapping[int, ProcessFacts]]

    @classmethod
    def of(cls, processes: Mapping[int, ProcessFacts]) -> Self:
        """Index processes by device minor: /dev/nvidiaN alone may be a monitor's, with nvidia-uvm it is CUDA's."""
        cuda_by_minor: dict[int, dict[int, ProcessFacts]] = {}
        for pid, facts in processes.items():
            if facts.uvm_open and facts.alive:
                for minor in facts.gpu_minors_open:
                    cuda_by_minor.setdefault(minor, {})[pid] = facts
        return cls(processes, cuda_by_minor)


def find_residents(reading: GpuReading, host: HostProcesses) -> dict[ProcessOnDevice, Resident]:
    """Every process on this GPU, in the order of their keys."""
    listed = _listed(reading, host)
    residents = [*listed, *_unlisted(reading, host, listed)]
    return {resident.at: resident for resident in sorted(residents, key=_BY_KEY)}


def _listed(reading: GpuReading, host: HostProcesses) -> list[Resident]:
    """Processes in the driver's lists."""
    sm_counts = _sm_counts(reading)
    uuid = reading.identity.uuid
    found = []
    for mig_uuid, holders in holders_by_instance(reading).items():
        device, sm_count = DeviceKey(uuid, mig_uuid or ""), sm_counts.get(mig_uuid or "")
        for pid, memory_bytes in holders.items():
            facts = host.by_pid.get(pid)
            if facts is None:
                found.append(_unidentified(pid, device, sm_count, memory_bytes))
            else:
                found.append(_resident(facts, device, sm_count, listed=True, memory_bytes=memory_bytes))
    return found


def _unlisted(reading: GpuReading, host: HostProcesses, listed: Sequence[Resident]) -> Iterator[Resident]:
    """Processes in no list: those with utilisation rows, and where memory is unexplained those with CUDA open."""
    working = {row.pid for row in reading.utilization.rows} if reading.utilization is not None else set()
    unexplained = _devices_with_unexplained_memory(reading, listed)
    candidates = {pid: host.by_pid[pid] for pid in working if pid in host.by_pid}
    if unexplained and reading.identity.minor is not None:
        candidates |= host.cuda_by_minor.get(reading.identity.minor, {})
    listed_pids = {resident.at.process.pid for resident in listed}
    sm_counts = _sm_counts(reading)
    for pid, facts in candidates.items():
        if pid in listed_pids or not facts.alive:
            continue
        mig_uuid = _instance_of(reading, facts)
        if pid in working or mig_uuid in unexplained:
            device = DeviceKey(reading.identity.uuid, mig_uuid)
            yield _resident(facts, device, sm_counts.get(mig_uuid), listed=False, memory_bytes=None)


def _resident(
    facts: ProcessFacts, device: DeviceKey, sm_count: int | None, *, listed: bool, memory_bytes: int | None
) -> Resident:
    return Resident(
        ProcessOnDevice(facts.key, device),
        facts.workload,
        facts.name,
        facts.start_time_s,
        listed,
        memory_bytes,
        facts.uvm_mapping_bytes,
        sm_count,
    )


def _unidentified(pid: int, device: DeviceKey, sm_count: int | None, memory_bytes: int | None) -> Resident:
    """A pid that the driver lists and that /proc has never shown."""
    return Resident(
        at=ProcessOnDevice(ProcessKey(pid, START_UNKNOWN), device),
        ref=UNIDENTIFIED_WORKLOAD,
        name=None,
        start_time_s=None,
        listed=True,
        memory_bytes=memory_bytes,
        sm_count=sm_count,
    )


def _sm_counts(reading: GpuReading) -> dict[str, int | None]:
    return {mig.uuid: mig.sm_count for mig in reading.mig or ()}


def _devices_with_unexplained_memory(reading: GpuReading, listed: Sequence[Resident]) -> set[str]:
    """The GPU ("") and the MIG instances with more memory in use than their lists explain.

    CUDA opens the device node of every GPU it may see, so a job on one GPU has all GPUs of the host open. Without this
    condition it would count as a resident of all of them.
    """
    found = {""} if _is_unexplained(reading.memory, listed) else set()
    for mig in reading.mig or ():
        # Compute instances share the memory of their GPU instance.
        sharing = {other.uuid for other in reading.mig or () if other.gpu_instance_id == mig.gpu_instance_id}
        if _is_unexplained(mig.memory, [resident for resident in listed if resident.at.device.mig_uuid in sharing]):
            found.add(mig.uuid)
    return found


def _is_unexplained(memory: DeviceMemory | None, listed: Iterable[Resident]) -> bool:
    if memory is None:  # without memory figures nothing rules out an unlisted process
        return True
    explained_bytes = sum([resident.memory_bytes for resident in listed if resident.memory_bytes])
    return memory.used_bytes - explained_bytes >= UNEXPLAINED_BYTES


def _instance_of(reading: GpuReading, facts: ProcessFacts) -> str:
    """The MIG instance of an unlisted process: the only one it may use. "" if it may use several, or none.

    A process without any capability of this GPU open may use them all: with CAP_SYS_ADMIN none is needed (MIG User
    Guide, "Device Nodes and Capabilities").
    """
    instances: Sequence[MigReading] = reading.mig or ()
    if access := [each for each in facts.mig_access if each.gpu_minor == reading.identity.minor]:
        instances = [mig for mig in instances if _may_use(access, mig)]
    return instances[0].uuid if len(instances) == 1 else ""


def _may_use(access: Iterable[MigAccess], mig: MigReading) -> bool:
    """Whether capabilities give access to an instance: its own, or its GPU instance's if that is the only one open.

    A compute instance needs both, its own and its GPU instance's.
    """
    opened = {each.compute_instance_id for each in access if each.gpu_instance_id == mig.gpu_instance_id}
    return opened == {None} or mig.compute_instance_id in opened - {None}
