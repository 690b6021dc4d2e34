"""Who is on a GPU: by the driver's lists, by open device files, by work seen. Nobody is judged here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from otel_gpu.attribution.memory import holders_by_instance
from otel_gpu.attribution.places import Place, ProcessAt
from otel_gpu.model import (
    START_UNKNOWN,
    UNIDENTIFIED_WORKLOAD,
    GpuReading,
    ProcessFacts,
    ProcessKey,
    WorkloadRef,
)

UNEXPLAINED_BYTES: Final = 256 << 20
"""So much memory in use that the lists do not explain, and somebody must be on the GPU whom they do not show: a CUDA
context takes more, the driver's own rest less."""


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
    hidden = _may_be_hidden(reading, found.values())
    only = _only_instance(reading)
    for pid, facts in processes.items():
        if pid not in listed_pids and facts.alive and (pid in working or (hidden and _uses_cuda(reading, facts))):
            place = Place(uuid, only)
            resident = _resident(pid, facts, place, listed=False, memory_bytes=None, sm_count=sizes.get(only))
            found[resident.at] = resident
    return tuple(found[at] for at in sorted(found))


def _uses_cuda(reading: GpuReading, facts: ProcessFacts) -> bool:
    """An open /dev/nvidiaN alone may be a monitor's; with nvidia-uvm it is CUDA's."""
    return facts.uvm_open and reading.identity.minor in facts.gpu_minors_open


def _may_be_hidden(reading: GpuReading, listed: Iterable[Resident]) -> bool:
    """Whether memory is in use that the lists do not explain: more than a GPU that nobody uses shows.

    CUDA opens the device of every GPU it may see, so that a job on one GPU has all of a host's open; without this it
    would be taken for a user of them all.
    """
    if reading.memory is None:
        return True  # nothing says that there is nobody
    explained = sum(max(0, resident.memory_bytes or 0) for resident in listed)
    return reading.memory.used_bytes - explained >= UNEXPLAINED_BYTES


def _only_instance(reading: GpuReading) -> str:
    """A process that no instance lists is in the only one there is, if there is one only."""
    return reading.mig[0].uuid if reading.mig is not None and len(reading.mig) == 1 else ""


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
