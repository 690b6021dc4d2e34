"""Which processes are on a GPU: by the driver's process lists, by open device files, by utilisation rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self

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


class _Sighting(NamedTuple):
    """What one resident follows from."""

    facts: ProcessFacts | None
    listed: bool
    memory_bytes: int | None


def find_residents(reading: GpuReading, host: HostProcesses) -> dict[ProcessOnDevice, Resident]:
    """Every process on this GPU, in the order of their keys."""
    found = _listed(reading, host)
    found |= _unlisted(reading, host, found)
    sm_counts = {mig.uuid: mig.sm_count for mig in reading.mig or ()}
    uuid = reading.identity.uuid
    residents = [
        _resident(pid, DeviceKey(uuid, mig_uuid), sighting, sm_counts.get(mig_uuid))
        for (pid, mig_uuid), sighting in found.items()
    ]
    return {resident.at: resident for resident in sorted(residents, key=lambda resident: resident.at)}


def _listed(reading: GpuReading, host: HostProcesses) -> dict[tuple[int, str], _Sighting]:
    """Processes in the driver's lists, by pid and MIG instance."""
    return {
        (pid, mig_uuid or ""): _Sighting(host.by_pid.get(pid), listed=True, memory_bytes=memory_bytes)
        for mig_uuid, holders in holders_by_instance(reading).items()
        for pid, memory_bytes in holders.items()
    }


def _unlisted(
    reading: GpuReading, host: HostProcesses, listed: Mapping[tuple[int, str], _Sighting]
) -> dict[tuple[int, str], _Sighting]:
    """Processes in no list: those with utilisation rows, and where memory is unexplained those with CUDA open."""
    working = {row.pid for row in reading.utilization.rows} if reading.utilization is not None else set()
    unexplained = _devices_with_unexplained_memory(reading, listed)
    candidates = {pid: host.by_pid[pid] for pid in working if pid in host.by_pid}
    if unexplained and reading.identity.minor is not None:
        candidates |= host.cuda_by_minor.get(reading.identity.minor, {})
    listed_pids = {pid for pid, _ in listed}
    found = {}
    for pid, facts in candidates.items():
        if pid in listed_pids or not facts.alive:
            continue
        mig_uuid = _instance_of(reading, facts)
        if pid in working or mig_uuid in unexplained:
            found[pid, mig_uuid] = _Sighting(facts, listed=False, memory_bytes=None)
    return found


def _devices_with_unexplained_memory(reading: GpuReading, listed: Mapping[tuple[int, str], _Sighting]) -> set[str]:
    """The GPU ("") and the MIG instances with more memory in use than their lists explain.

    CUDA opens the device node of every GPU it may see, so a job on one GPU has all GPUs of the host open. Without this
    condition it would count as a resident of all of them.
    """
    found = {""} if _is_unexplained(reading.memory, listed.values()) else set()
    for mig in reading.mig or ():
        # Compute instances share the memory of their GPU instance.
        sharing = {other.uuid for other in reading.mig or () if other.gpu_instance_id == mig.gpu_instance_id}
        if _is_unexplained(mig.memory, [sighting for (_, uuid), sighting in listed.items() if uuid in sharing]):
            found.add(mig.uuid)
    return found


def _is_unexplained(memory: DeviceMemory | None, listed: Iterable[_Sighting]) -> bool:
    if memory is None:  # without memory figures nothing rules out an unlisted process
        return True
    explained_bytes = sum([sighting.memory_bytes for sighting in listed if sighting.memory_bytes])
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


def _resident(pid: int, device: DeviceKey, sighting: _Sighting, sm_count: int | None) -> Resident:
    facts = sighting.facts
    if facts is None:  # the driver lists a pid that /proc has never shown
        key = ProcessOnDevice(ProcessKey(pid, START_UNKNOWN), device)
        return Resident(key, UNIDENTIFIED_WORKLOAD, None, None, sighting.listed, sighting.memory_bytes, None, sm_count)
    return Resident(
        at=ProcessOnDevice(facts.key, device),
        ref=facts.workload,
        name=facts.name,
        start_time_s=facts.start_time_s,
        listed=sighting.listed,
        memory_bytes=sighting.memory_bytes,
        mapping_bytes=facts.uvm_mapping_bytes,
        sm_count=sm_count,
    )
