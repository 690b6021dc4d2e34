"""Who holds a GPU's memory, by the driver's own lists. The parts always make the whole, in bytes."""

from __future__ import annotations

from collections.abc import Iterable

from otel_gpu.model import DeviceMemory, GpuReading, ListedProcess, MemorySplit

Holders = dict[int, int | None]
"""Bytes a pid holds; ``None`` where the driver lists it without a figure."""


def holders(listed: Iterable[ListedProcess]) -> Holders:
    """Memory per pid: the largest figure of all lists, never their sum, since the lists overlap."""
    held: Holders = {}
    for process in listed:
        known = held.setdefault(process.pid, process.memory_bytes)
        if process.memory_bytes is not None and (known is None or process.memory_bytes > known):
            held[process.pid] = process.memory_bytes
    return held


def holders_by_instance(reading: GpuReading) -> dict[str | None, Holders]:
    """Memory per pid, by MIG instance; under ``None`` what belongs to no instance (all of it without MIG)."""
    if reading.mig is None:
        return {None: holders(reading.processes or ())}
    # The GPU's own lists repeat what its instances' lists say: what both tell of one place is one holding.
    listed: dict[str | None, list[ListedProcess]] = {mig.uuid: list(mig.processes or ()) for mig in reading.mig}
    instance_of: dict[tuple[int | None, int | None], str] = {
        (mig.gpu_instance_id, mig.compute_instance_id): mig.uuid
        for mig in reading.mig
        if mig.gpu_instance_id is not None
    }
    placeless = []
    for process in reading.processes or ():
        uuid = instance_of.get((process.gpu_instance_id, process.compute_instance_id))
        if uuid is not None:
            listed[uuid].append(process)
        else:
            placeless.append(process)
    # Where an entry names no instance, only its pid tells whether it is a repetition.
    placed_pids = {process.pid for processes in listed.values() for process in processes}
    listed[None] = [process for process in placeless if process.pid not in placed_pids]
    return {uuid: holders(processes) for uuid, processes in listed.items()}


def split(memory: DeviceMemory | None, measured: Iterable[int | None]) -> MemorySplit | None:
    """Divide a device's memory; ``None`` where the device does not tell it (unified memory).

    Figures that cannot be true together (more used than there is) are cut to what there is.
    """
    if memory is None:
        return None
    limit = max(0, memory.total_bytes)
    reserved = None if memory.reserved_bytes is None else min(max(0, memory.reserved_bytes), limit)
    usable = limit - (reserved or 0)
    used = min(max(0, memory.used_bytes), usable)
    claimed = sum(max(0, bytes_) for bytes_ in measured if bytes_ is not None)
    return MemorySplit(
        limit_bytes=limit,
        reserved_bytes=reserved,
        measured_bytes=claimed,
        overcount_bytes=max(0, claimed - used),
        inferred_bytes=0,
        unattributed_bytes=max(0, used - claimed),
        free_bytes=usable - used,
    )
