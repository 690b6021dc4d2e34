"""Which processes are on a GPU: by the driver's process lists, open device files, utilisation rows, accounting records.

The driver's lists also have the memory of each process, except for those that they have without a figure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self

from otel_gpu.attribution.cycle import Cycle
from otel_gpu.attribution.keys import DeviceKey, ProcessOnDevice
from otel_gpu.attribution.saved_values import (
    boolean,
    number,
    optional,
    parts,
    process_on_device_from,
    ref_from,
    ref_state,
    restoring,
    text,
    whole,
)
from otel_gpu.model import (
    START_UNKNOWN,
    UNIDENTIFIED_WORKLOAD,
    AccountingRecord,
    DeviceMemory,
    GpuReading,
    ListedProcess,
    MigAccess,
    MigReading,
    ProcessFacts,
    ProcessKey,
    WorkloadRef,
)

Holders = dict[int, int | None]
"""Bytes held by pid; ``None`` where the driver lists a process without a figure."""

UNEXPLAINED_BYTES: Final = 256 << 20
"""Used memory beyond the process lists from which on an unlisted process must exist. A CUDA context takes more than
this; what the driver keeps for itself takes less."""

MAX_BYTES: Final = 1 << 60
"""More than any GPU has; exporters could not carry much more."""

_REMEMBERED_DEPARTURES: Final = 4096
"""How many departed processes are remembered per GPU; the driver's buffer of records holds about as many."""


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

    # -- checkpoint -----------------------------------------------------------------

    def to_state(self) -> list[Any]:
        """The process as plain data."""
        at, ref, *figures = self
        return [at, ref_state(ref), *figures]

    @classmethod
    def from_state(cls, data: Any) -> Self:
        """The counterpart of ``to_state``; ValueError for any other data."""
        at, ref, name, start_time_s, listed, *amounts = parts(data, 8)
        memory_bytes, mapping_bytes, sm_count = (optional(whole, each) for each in amounts)
        return cls(
            at=process_on_device_from(at),
            ref=ref_from(ref),
            name=optional(text, name),
            start_time_s=optional(number, start_time_s),
            listed=boolean(listed),
            memory_bytes=memory_bytes,
            mapping_bytes=mapping_bytes,
            sm_count=sm_count,
        )


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
    sm_counts = {mig.uuid: mig.sm_count for mig in reading.mig or ()}
    listed = _listed(reading, host, sm_counts)
    residents = [*listed, *_unlisted(reading, host, listed, sm_counts)]
    return {resident.at: resident for resident in sorted(residents, key=_BY_KEY)}


def _listed(reading: GpuReading, host: HostProcesses, sm_counts: Mapping[str, int | None]) -> list[Resident]:
    """Processes in the driver's lists."""
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


def _unlisted(
    reading: GpuReading, host: HostProcesses, listed: Sequence[Resident], sm_counts: Mapping[str, int | None]
) -> Iterator[Resident]:
    """Processes in no list: those with utilisation rows, and where memory is unexplained those with CUDA open."""
    working = {row.pid for row in reading.utilization.rows} if reading.utilization is not None else set()
    unexplained = _devices_with_unexplained_memory(reading, listed)
    candidates = {pid: host.by_pid[pid] for pid in working if pid in host.by_pid}
    if unexplained and reading.identity.minor is not None:
        candidates |= host.cuda_by_minor.get(reading.identity.minor, {})
    listed_pids = {resident.at.process.pid for resident in listed}
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


# ---------------------------------------------------------------------------- the driver's lists


def holders(listed: Iterable[ListedProcess], max_bytes: int = MAX_BYTES) -> Holders:
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
    max_bytes = reading.memory.total_bytes if reading.memory is not None else MAX_BYTES
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


# ---------------------------------------------------------------------------- short-lived processes


class ShortLivedProcess(NamedTuple):
    """A process that no cycle saw: when it started (Unix time) and its work in GPU-microseconds."""

    pid: int
    start_time_us: int
    compute_us: int


class ShortLivedProcesses:
    """Distinguishes records of processes that no cycle saw from those whose work is already in the ledger."""

    def __init__(self) -> None:
        self._departed_s: dict[str, dict[int, float]] = {}
        """By GPU and pid: when a process that was seen left (Unix time)."""

    def note_departure(self, at: ProcessOnDevice, cycle: Cycle) -> None:
        """A process that was seen has left a GPU: its accounting record is already counted."""
        departed_s = self._departed_s.setdefault(at.device.gpu_uuid, {})
        departed_s.pop(at.process.pid, None)
        departed_s[at.process.pid] = cycle.wall_s
        while len(departed_s) > _REMEMBERED_DEPARTURES:
            del departed_s[next(iter(departed_s))]

    def find(
        self,
        gpu_uuid: str,
        records: Iterable[AccountingRecord],
        present_pids: Collection[int],
        *,
        epoch_us: int,
        now_us: int,
    ) -> list[ShortLivedProcess]:
        """Processes that were never seen. A record that began after a pid's last owner left is another process's."""
        departed_s = self._departed_s.get(gpu_uuid, {})
        found = []
        for _, record in sorted({(record.pid, record.start_time_us): record for record in records}.items()):
            left_s = departed_s.get(record.pid)
            if record.pid in present_pids or (left_s is not None and record.start_time_us / 1e6 <= left_s):
                continue
            compute_us = _compute_us(record, epoch_us, now_us)
            found.append(ShortLivedProcess(record.pid, record.start_time_us, compute_us))
        return found

    # -- checkpoint -----------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """The departures, as plain data, the oldest first."""
        return {uuid: [list(item) for item in left.items()] for uuid, left in sorted(self._departed_s.items())}

    @classmethod
    def from_state(cls, data: Any) -> Self:
        """The counterpart of ``to_state``; ValueError for any other data."""
        restored = cls()
        with restoring("departures"):
            for uuid, departed_s in data.items():
                restored._departed_s[text(uuid)] = {whole(pid): number(at_s) for pid, at_s in departed_s}
        return restored


def _compute_us(record: AccountingRecord, epoch_us: int, now_us: int) -> int:
    """Work in GPU-microseconds for the part of the process's life since the ledger began, up to now."""
    end_us = min(now_us, record.start_time_us + max(0, record.time_ms) * 1000)
    lived_us = max(0, end_us - max(epoch_us, record.start_time_us))
    return lived_us * min(100, max(0, record.gpu_percent or 0)) // 100
