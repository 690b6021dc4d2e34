"""Who is on a GPU: by the driver's lists, by open device files, by work seen. Nobody is judged here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from otel_gpu.attribution.memory import holders_by_instance
from otel_gpu.attribution.places import Place, ProcessAt
from otel_gpu.model import (
    START_UNKNOWN,
    UNIDENTIFIED_WORKLOAD,
    DeviceMemory,
    GpuReading,
    ListedProcess,
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


class Openers:
    """All processes of a host in one cycle, and who of them has which GPU open. One pass over them serves all GPUs."""

    def __init__(self, processes: Mapping[int, ProcessFacts]) -> None:
        self.processes = processes
        self._by_minor: dict[int, list[tuple[int, ProcessFacts]]] | None = None

    def after(self, processes: Mapping[int, ProcessFacts]) -> Openers:
        """Those of the next cycle: this very object while they are the same. ``processes`` must not change later."""
        return self if processes is self.processes or processes == self.processes else Openers(processes)

    def of(self, minor: int | None) -> Sequence[tuple[int, ProcessFacts]]:
        """Who uses CUDA on a GPU: an open /dev/nvidiaN alone may be a monitor's, with nvidia-uvm it is CUDA's."""
        if minor is None:
            return ()
        if self._by_minor is None:
            self._by_minor = {}
            for pid, facts in self.processes.items():
                if facts.uvm_open and facts.alive:
                    for opened in facts.gpu_minors_open:
                        self._by_minor.setdefault(opened, []).append((pid, facts))
        return self._by_minor.get(minor, ())


_Told = tuple[ProcessFacts | None, bool, int | None, int | None]
"""What one resident follows from: what /proc shows of it, whether it is listed, its memory, its instance's SMs."""


class _Grounds(NamedTuple):
    """Why these are on a GPU and nobody else; only of one without MIG, where nobody works who is not listed."""

    host: Openers
    listed: tuple[ListedProcess, ...] | None
    memory: DeviceMemory | None
    minor: int | None
    pids: list[int]
    facts: list[ProcessFacts | None]
    explained_bytes: int
    openers: Sequence[tuple[int, ProcessFacts]] | None
    """Who has the GPU open; ``None`` where that does not count, as its memory is explained."""

    @classmethod
    def of(cls, reading: GpuReading, host: Openers, told: Mapping[tuple[int, str], _Told]) -> Self | None:
        """After it was found out who is there."""
        pids = [pid for (pid, _), (_, listed, _, _) in told.items() if listed]
        if reading.mig is not None or not _working(reading).issubset(pids):
            return None
        explained_bytes = _explained_bytes(told.values())
        return cls(
            host,
            reading.processes,
            reading.memory,
            reading.identity.minor,
            pids,
            [host.processes.get(pid) for pid in pids],
            explained_bytes,
            _openers(reading, host, explained_bytes),
        )

    def still_hold(self, reading: GpuReading, host: Openers) -> bool:
        """Whether it would be found to be the same. What is compared is mostly an object with itself."""
        read = reading.utilization
        return (
            reading.mig is None
            and self.listed == reading.processes
            and (self._is_same(reading, host) or self._comes_to_the_same(reading, host))
            and (read is None or not read.rows or _working(reading).issubset(self.pids))
        )

    def _is_same(self, reading: GpuReading, host: Openers) -> bool:
        """Whether processes and memory are as they were."""
        return host is self.host and self.memory == reading.memory and self.minor == reading.identity.minor

    def _comes_to_the_same(self, reading: GpuReading, host: Openers) -> bool:
        """Whether nobody else follows from processes and memory as they are now."""
        was_bytes = None if self.memory is None else self.memory.total_bytes
        total_bytes = None if reading.memory is None else reading.memory.total_bytes
        return (
            was_bytes == total_bytes
            and (host is self.host or self.facts == [host.processes.get(pid) for pid in self.pids])
            and self.openers == _openers(reading, host, self.explained_bytes)
        )


class Presence:
    """Who is on one GPU from cycle to cycle. Of whom the same is told, the same object is handed on."""

    __slots__ = ("_before", "_grounds", "_residents")

    def __init__(self) -> None:
        self._before: dict[tuple[int, str], tuple[_Told, Resident]] = {}
        self._residents: Mapping[ProcessAt, Resident] = {}
        self._grounds: _Grounds | None = None

    def observe(self, reading: GpuReading, host: Openers) -> Mapping[ProcessAt, Resident]:
        """Everybody on this GPU, in the order of their keys. Not to be changed: the next answer may be the same."""
        if self._grounds is not None and self._grounds.still_hold(reading, host):
            return self._residents
        told = _told(reading, host)
        before, uuid = self._before, reading.identity.uuid
        now: dict[tuple[int, str], tuple[_Told, Resident]] = {}
        news = len(told) != len(before)
        for where, what in told.items():
            known = before.get(where)
            if known is None or known[0] != what:
                known = (what, _resident(where[0], Place(uuid, where[1]), what))
                news = True
            now[where] = known
        if news:
            self._before = now
            found = {resident.at: resident for _, resident in now.values()}
            self._residents = {at: found[at] for at in sorted(found)}
        # Worth finding where nothing was new: who grows in this cycle mostly grows in the next.
        self._grounds = None if news else _Grounds.of(reading, host, told)
        return self._residents


def same_processes(some: Mapping[ProcessAt, Resident], others: Mapping[ProcessAt, Resident]) -> bool:
    """Whether these are the same processes in the same order. Lists are compared without hashing nested keys."""
    return some is others or (len(some) == len(others) and list(some) == list(others))


def residents(reading: GpuReading, processes: Mapping[int, ProcessFacts]) -> tuple[Resident, ...]:
    """Everybody on this GPU, in the order of their keys."""
    return tuple(Presence().observe(reading, Openers(processes)).values())


def _told(reading: GpuReading, host: Openers) -> dict[tuple[int, str], _Told]:
    """What is told of everybody on this GPU, by pid and MIG instance."""
    processes = host.processes
    sizes = {mig.uuid: mig.sm_count for mig in reading.mig or ()}
    told: dict[tuple[int, str], _Told] = {}
    listed_pids: set[int] = set()
    for mig_uuid, holders in holders_by_instance(reading).items():
        listed_pids.update(holders)
        place, sm_count = mig_uuid or "", sizes.get(mig_uuid or "")
        for pid, memory_bytes in holders.items():
            told[pid, place] = (processes.get(pid), True, memory_bytes, sm_count)
    working = _working(reading)
    hiding = _where_hidden(reading, told)
    others = {pid: processes[pid] for pid in working if pid in processes}
    if hiding:  # only where memory is unexplained: there is a GPU for each time this is done
        others |= dict(host.of(reading.identity.minor))
    for pid, facts in others.items():
        if pid in listed_pids or not facts.alive:
            continue
        mig_uuid = _instance_of(reading, facts)
        if pid in working or mig_uuid in hiding:
            told[pid, mig_uuid] = (facts, False, None, sizes.get(mig_uuid))
    return told


def _working(reading: GpuReading) -> set[int]:
    return {row.pid for row in reading.utilization.rows} if reading.utilization is not None else set()


def _openers(reading: GpuReading, host: Openers, explained_bytes: int) -> Sequence[tuple[int, ProcessFacts]] | None:
    """Who has a GPU without MIG open, if its memory is not explained."""
    return host.of(reading.identity.minor) if _is_unexplained(reading.memory, explained_bytes) else None


def _where_hidden(reading: GpuReading, listed: Mapping[tuple[int, str], _Told]) -> set[str]:
    """Where memory is in use that the lists do not explain, more than where nobody is: the GPU (""), MIG instances.

    CUDA opens the device of every GPU it may see, so that a job on one GPU has all of a host's open; without this it
    would be taken for a user of them all.
    """
    hiding = {""} if _is_unexplained(reading.memory, _explained_bytes(listed.values())) else set()
    for mig in reading.mig or ():
        # Compute instances share the memory of their GPU instance.
        sharing = {other.uuid for other in reading.mig or () if other.gpu_instance_id == mig.gpu_instance_id}
        there = [told for (_, mig_uuid), told in listed.items() if mig_uuid in sharing]
        if _is_unexplained(mig.memory, _explained_bytes(there)):
            hiding.add(mig.uuid)
    return hiding


def _explained_bytes(listed: Iterable[_Told]) -> int:
    return sum([memory_bytes for _, _, memory_bytes, _ in listed if memory_bytes is not None and memory_bytes > 0])


def _is_unexplained(memory: DeviceMemory | None, explained_bytes: int) -> bool:
    # Without figures of memory nothing says that there is nobody.
    return memory is None or memory.used_bytes - explained_bytes >= UNEXPLAINED_BYTES


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


def _resident(pid: int, place: Place, told: _Told) -> Resident:
    facts, listed, memory_bytes, sm_count = told
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
