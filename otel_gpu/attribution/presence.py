"""Who is on a GPU: by the driver's lists, by open device files, by work seen. Nobody is judged here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from otel_gpu.attribution.memory import holders_by_instance
from otel_gpu.attribution.places import Place, ProcessAt
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

UNEXPLAINED_BYTES: Final = 256 << 20
"""So much memory in use that the lists do not explain, and somebody must be there whom they do not show: a CUDA context
takes more, the driver's own rest less."""


@dataclass(frozen=True, slots=True)
class Resident:
    """A process on a GPU. ``memory_bytes`` is the driver's figure, ``None`` where it gives none.

    ``listed`` is false for a process known only by what it has open or by its work.
    """

    at: ProcessAt
    ref: WorkloadRef
    name: str | None
    start_time_s: float | None
    listed: bool
    memory_bytes: int | None
    mapping_bytes: int | None = None
    sm_count: int | None = None


def residents(reading: GpuReading, processes: Mapping[int, ProcessFacts]) -> tuple[Resident, ...]:
    """Everybody on this GPU, in the order of their keys."""
    uuid = reading.identity.uuid
    found: dict[ProcessAt, Resident] = {}
    sizes = {mig.uuid: mig.sm_count for mig in reading.mig or ()}
    listed_pids: set[int] = set()
    for mig_uuid, holders in holders_by_instance(reading).items():
        listed_pids.update(holders)
        for pid, memory_bytes in holders.items():
            resident = _resident(
                pid,
                processes.get(pid),
                Place(uuid, mig_uuid or ""),
                listed=True,
                memory_bytes=memory_bytes,
                sm_count=sizes.get(mig_uuid or ""),
            )
            found[resident.at] = resident
    working = {row.pid for row in reading.utilization.rows} if reading.utilization is not None else set()
    hiding = _where_hidden(reading, tuple(found.values()))
    # Of all processes of a host only where memory is unexplained: there is a GPU for each time this is done.
    others = processes if hiding else {pid: processes[pid] for pid in working if pid in processes}
    for pid, facts in others.items():
        if pid in listed_pids or not facts.alive:
            continue
        if pid not in working and not _uses_cuda(reading, facts):
            continue
        mig_uuid = _instance_of(reading, facts)
        if pid in working or mig_uuid in hiding:
            place = Place(uuid, mig_uuid)
            resident = _resident(pid, facts, place, listed=False, memory_bytes=None, sm_count=sizes.get(mig_uuid))
            found[resident.at] = resident
    return tuple(found[at] for at in sorted(found))


def _uses_cuda(reading: GpuReading, facts: ProcessFacts) -> bool:
    """An open /dev/nvidiaN alone may be a monitor's; with nvidia-uvm it is CUDA's."""
    return facts.uvm_open and reading.identity.minor in facts.gpu_minors_open


def _where_hidden(reading: GpuReading, listed: Collection[Resident]) -> set[str]:
    """Where memory is in use that the lists do not explain, more than where nobody is: the GPU (""), MIG instances.

    CUDA opens the device of every GPU it may see, so that a job on one GPU has all of a host's open; without this it
    would be taken for a user of them all.
    """
    hiding = {""} if _is_unexplained(reading.memory, listed) else set()
    for mig in reading.mig or ():
        # Compute instances share the memory of their GPU instance.
        sharing = {other.uuid for other in reading.mig or () if other.gpu_instance_id == mig.gpu_instance_id}
        if _is_unexplained(mig.memory, (resident for resident in listed if resident.at.place.mig_uuid in sharing)):
            hiding.add(mig.uuid)
    return hiding


def _is_unexplained(memory: DeviceMemory | None, listed: Iterable[Resident]) -> bool:
    if memory is None:
        return True  # nothing says that there is nobody
    explained = sum(max(0, resident.memory_bytes or 0) for resident in listed)
    return memory.used_bytes - explained >= UNEXPLAINED_BYTES


def _instance_of(reading: GpuReading, facts: ProcessFacts) -> str:
    """The MIG instance of a process that none lists: the only one that it may use. "" if it may use several, or none.

    A process without any capability of this GPU open may use them all: with CAP_SYS_ADMIN none is needed (MIG User
    Guide, "Device Nodes and Capabilities").
    """
    instances = reading.mig or ()
    if access := [access for access in facts.mig_access if access.gpu_minor == reading.identity.minor]:
        instances = tuple(mig for mig in instances if _may_use(access, mig))
    return instances[0].uuid if len(instances) == 1 else ""


def _may_use(access: Iterable[MigAccess], mig: MigReading) -> bool:
    """Whether capabilities lead to an instance. That of its GPU instance does if it is the only one open there.

    To use a compute instance takes both, its own and its GPU instance's.
    """
    opened = {one.compute_instance_id for one in access if one.gpu_instance_id == mig.gpu_instance_id}
    return opened == {None} or mig.compute_instance_id in opened - {None}


def _resident(
    pid: int,
    facts: ProcessFacts | None,
    place: Place,
    *,
    listed: bool,
    memory_bytes: int | None,
    sm_count: int | None = None,
) -> Resident:
    return Resident(
        at=ProcessAt(facts.key if facts is not None else ProcessKey(pid, START_UNKNOWN), place),
        ref=facts.workload if facts is not None else UNIDENTIFIED_WORKLOAD,
        name=facts.name if facts is not None else None,
        start_time_s=facts.start_time_s if facts is not None else None,
        listed=listed,
        memory_bytes=memory_bytes,
        mapping_bytes=facts.uvm_mapping_bytes if facts is not None else None,
        sm_count=sm_count,
    )
