"""Who holds a GPU's memory, by the driver's own lists. The parts always make the whole, in bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from otel_gpu.model import DeviceMemory, GpuReading, ListedProcess, MemorySplit

Holders = dict[int, int | None]
"""Bytes a pid holds; ``None`` where the driver lists it without a figure."""


_LARGEST_BYTES: Final = 1 << 60
"""More than any GPU has; exporters could not carry much more."""


def holders(listed: Iterable[ListedProcess], most_bytes: int = _LARGEST_BYTES) -> Holders:
    """Memory per pid: the largest figure of all lists, never their sum, since the lists overlap.

    A figure above ``most_bytes``, or below 0, is none.
    """
    held: Holders = {}
    for process in listed:
        figure = process.memory_bytes
        if figure is not None and not 0 <= figure <= most_bytes:
            figure = None
        known = held.setdefault(process.pid, figure)
        if figure is not None and (known is None or figure > known):
            held[process.pid] = figure
    return held


def holders_by_instance(reading: GpuReading) -> dict[str | None, Holders]:
    """Memory per pid, by MIG instance; under ``None`` what belongs to no instance (all of it without MIG)."""
    most_bytes = reading.memory.total_bytes if reading.memory is not None else _LARGEST_BYTES
    if reading.mig is None:
        return {None: holders(reading.processes or (), most_bytes)}
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
    return {uuid: holders(processes, most_bytes) for uuid, processes in listed.items()}


class Oddities:
    """Counts figures of one GPU that cannot be true. What is the same as in the cycle before is not looked at again."""

    __slots__ = ("_found", "_lists")

    def __init__(self) -> None:
        self._lists: tuple[object, ...] = ()
        self._found = 0

    def of(self, reading: GpuReading) -> int:
        """How many: more used, or held by one process, than there is; one listed twice; less than no energy."""
        lists = (reading.memory, reading.processes, reading.mig)
        if lists != self._lists:  # mostly the same objects
            self._lists, self._found = lists, _odd_lists(reading)
        return self._found + self._of_energy(reading)

    def _of_energy(self, reading: GpuReading) -> int:
        found = 0
        if reading.energy_mj is not None:
            found += reading.energy_mj < 0
        if reading.power_w is not None:
            found += not 0 <= reading.power_w < _INFINITE
        return found


_INFINITE: Final = float("inf")


def _odd_lists(reading: GpuReading) -> int:
    devices = (reading.memory, *(mig.memory for mig in reading.mig or ()))
    found = sum(1 for memory in devices if memory is not None and not _credible(memory))
    most_bytes = reading.memory.total_bytes if reading.memory is not None else _LARGEST_BYTES
    for processes in (reading.processes, *(mig.processes for mig in reading.mig or ())):
        if not processes:
            continue
        if len({p.pid for p in processes}) < len(processes):  # mostly nobody stands there twice, in whatever list
            entries = {(p.pid, p.kind, p.gpu_instance_id, p.compute_instance_id) for p in processes}
            found += len(processes) - len(entries)
        found += sum([p.memory_bytes is not None and not 0 <= p.memory_bytes <= most_bytes for p in processes])
    return found


def _credible(memory: DeviceMemory) -> bool:
    parts = (memory.used_bytes, memory.free_bytes, memory.reserved_bytes or 0)
    return min(parts) >= 0 and max(parts) <= memory.total_bytes and parts[0] + parts[2] <= memory.total_bytes


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
