"""A GPU's memory by the driver's own figures: what each process holds, and parts that sum to the limit, in bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from otel_gpu.model import DeviceMemory, GpuReading, ListedProcess, MemorySplit

Holders = dict[int, int | None]
"""Bytes held by pid; ``None`` where the driver lists a process without a figure."""

UNEXPLAINED_BYTES: Final = 256 << 20
"""Used memory beyond the process lists from which on an unlisted process must exist. A CUDA context takes more than
this; what the driver keeps for itself takes less."""

_MAX_BYTES: Final = 1 << 60
"""More than any GPU has; exporters could not carry much more."""


def holders(listed: Iterable[ListedProcess], max_bytes: int = _MAX_BYTES) -> Holders:
    """Memory per pid: the largest figure of all lists, never their sum, since the lists overlap.

    A figure above ``max_bytes`` or below 0 counts as absent.
    """
    held: Holders = {}
    for process in listed:
        figure = process.memory_bytes
        if figure is not None and not 0 <= figure <= max_bytes:
            figure = None
        known = held.setdefault(process.pid, figure)
        if figure is not None and (known is None or figure > known):
            held[process.pid] = figure
    return held


def holders_by_instance(reading: GpuReading) -> dict[str | None, Holders]:
    """Memory per pid by MIG instance; under ``None`` what belongs to no instance (all of it without MIG)."""
    max_bytes = reading.memory.total_bytes if reading.memory is not None else _MAX_BYTES
    if reading.mig is None:
        return {None: holders(reading.processes or (), max_bytes)}
    # The GPU's own lists repeat its instances' lists: two entries for one device are one holding.
    listed: dict[str | None, list[ListedProcess]] = {mig.uuid: list(mig.processes or ()) for mig in reading.mig}
    instance_of: dict[tuple[int | None, int | None], str] = {
        (mig.gpu_instance_id, mig.compute_instance_id): mig.uuid
        for mig in reading.mig
        if mig.gpu_instance_id is not None
    }
    unplaced = []
    for process in reading.processes or ():
        uuid = instance_of.get((process.gpu_instance_id, process.compute_instance_id))
        if uuid is not None:
            listed[uuid].append(process)
        else:
            unplaced.append(process)
    # An entry that names no instance repeats another one if an instance lists its pid.
    placed_pids = {process.pid for processes in listed.values() for process in processes}
    listed[None] = [process for process in unplaced if process.pid not in placed_pids]
    return {uuid: holders(processes, max_bytes) for uuid, processes in listed.items()}


def split(memory: DeviceMemory | None, measured: Iterable[int | None]) -> MemorySplit | None:
    """Divide a device's memory; ``None`` where the driver gives no memory figures (unified memory).

    Figures that contradict each other (more used than there is) are cut to the device's size.
    """
    if memory is None:
        return None
    limit = max(0, memory.total_bytes)
    reserved = None if memory.reserved_bytes is None else min(max(0, memory.reserved_bytes), limit)
    usable = limit - (reserved or 0)
    used = min(max(0, memory.used_bytes), usable)
    claimed = sum([bytes_ for bytes_ in measured if bytes_ is not None and bytes_ > 0])
    return MemorySplit(
        limit_bytes=limit,
        reserved_bytes=reserved,
        measured_bytes=claimed,
        overcount_bytes=max(0, claimed - used),
        inferred_bytes=0,
        unattributed_bytes=max(0, used - claimed),
        free_bytes=usable - used,
    )


def implausible_figures(reading: GpuReading) -> int:
    """Count figures that cannot be true: more memory than there is, a process listed twice, energy below 0."""
    found = sum(not _is_plausible(memory) for memory in (reading.memory, *(mig.memory for mig in reading.mig or ())))
    max_bytes = reading.memory.total_bytes if reading.memory is not None else _MAX_BYTES
    for processes in (reading.processes, *(mig.processes for mig in reading.mig or ())):
        listed = processes or ()
        entries = {(each.pid, each.kind, each.gpu_instance_id, each.compute_instance_id) for each in listed}
        found += len(listed) - len(entries)
        figures = [each.memory_bytes for each in listed if each.memory_bytes is not None]
        found += sum([not 0 <= figure <= max_bytes for figure in figures])
    found += reading.energy_mj is not None and reading.energy_mj < 0
    found += reading.power_w is not None and not 0 <= reading.power_w < math.inf
    return found


def _is_plausible(memory: DeviceMemory | None) -> bool:
    if memory is None:
        return True
    used, free, reserved = memory.used_bytes, memory.free_bytes, memory.reserved_bytes or 0
    return (
        min(used, free, reserved) >= 0
        and max(used, free, reserved) <= memory.total_bytes
        and used + reserved <= memory.total_bytes
    )
