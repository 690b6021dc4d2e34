"""The memory of one GPU: measured by the driver's lists, inferred where they have no figure. Parts sum to the limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from otel_gpu.attribution.cycle import Cycle
from otel_gpu.attribution.hidden import Candidate, Evidence, HiddenMemory, HiddenSplit
from otel_gpu.attribution.keys import ProcessOnDevice, WorkloadOnDevice
from otel_gpu.attribution.residents import UNEXPLAINED_BYTES, Resident, Residents
from otel_gpu.attribution.saved_values import restoring, text
from otel_gpu.model import DeviceMemory, GpuReading, MemorySplit


class MemoryResult(NamedTuple):
    """How the memory of one GPU divides in a cycle, by MIG instance, "" for the GPU itself."""

    splits: Mapping[str, MemorySplit | None]
    hidden: Mapping[str, HiddenSplit]

    @property
    def unexplained_bytes(self) -> int:
        """Used memory without a holder: the GPU's own figure, or its instances' where the GPU gives none."""
        whole = self.splits.get("")
        if whole is not None:
            return whole.unattributed_bytes
        return sum(parts.unattributed_bytes for parts in self.splits.values() if parts is not None)

    @property
    def cannot_rule_out_users(self) -> bool:
        """Whether memory does not show if there are further users: no figures, or a GPU divided into instances.

        An agent in a container sees the instances of that container, and the energy of the whole GPU.
        """
        return self.splits.get("") is None or len(self.splits) > 1

    def inferred_by_process(self) -> dict[ProcessOnDevice, int]:
        """Inferred bytes of processes. Workloads with a grant and no process are not among them."""
        return {
            candidate: inferred.bytes
            for parts in self.hidden.values()
            for candidate, inferred in parts.inferred.items()
            if isinstance(candidate, ProcessOnDevice)
        }


class _Pool(NamedTuple):
    """One memory: a GPU's, or a GPU instance's, which all its compute instances share and each report whole."""

    mig_uuids: tuple[str, ...]
    memory: DeviceMemory | None


class MemoryTracker:
    """Divides the memory of one GPU cycle by cycle; remembers what it inferred."""

    __slots__ = ("_hidden",)

    def __init__(self) -> None:
        self._hidden: dict[str, HiddenMemory] = {}

    def observe(
        self,
        reading: GpuReading,
        now: Residents,
        before: Residents,
        cycle: Cycle,
        *,
        owners: Mapping[ProcessOnDevice, WorkloadOnDevice],
        grant_ages_s: Mapping[WorkloadOnDevice, float],
    ) -> MemoryResult:
        """Divide the memory of a cycle among the residents ``now``; ``before`` are the residents of the cycle before.

        ``owners`` are the workloads of residents. ``grant_ages_s`` are workloads with a grant and no process.
        Nothing is inferred where the cycle does not allow it.
        """
        splits: dict[str, MemorySplit | None] = {}
        hidden: dict[str, HiddenSplit] = {}
        pools = _pools(reading)
        for pool in pools:
            members = [r for at, r in now.items() if reading.mig is None or at.device.mig_uuid in pool.mig_uuids]
            parts = split(pool.memory, [resident.memory_bytes for resident in members])
            if parts is not None and cycle.may_infer:
                departed = [r for at, r in before.items() if at.device.mig_uuid in pool.mig_uuids and at not in now]
                if pool.mig_uuids[0] not in self._hidden:
                    self._hidden[pool.mig_uuids[0]] = HiddenMemory()
                inferred = self._hidden[pool.mig_uuids[0]].observe(
                    unknown_bytes=parts.unattributed_bytes,
                    candidates=[
                        *_processes_without_figure(members, owners, cycle),
                        *_granted_workloads(pool, parts, grant_ages_s),
                    ],
                    visible_arrivals=sum(r.memory_bytes is not None for r in members if r.at not in before),
                    visible_departures=sum(r.memory_bytes is not None for r in departed),
                    now_s=cycle.now_s,
                )
                parts = _with_inferred(parts, parts.unattributed_bytes - inferred.unattributed_bytes)
                hidden |= dict.fromkeys(pool.mig_uuids, inferred)
            splits |= dict.fromkeys(pool.mig_uuids, parts)
        if reading.mig is not None:
            splits[""] = _whole(reading, now, [hidden[p.mig_uuids[0]] for p in pools if p.mig_uuids[0] in hidden])
        present = {pool.mig_uuids[0] for pool in pools}
        self._hidden = {uuid: memory for uuid, memory in self._hidden.items() if uuid in present}
        return MemoryResult(splits, hidden)

    # -- checkpoint -----------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Inferred memory, as plain data."""
        return {uuid: memory.to_state() for uuid, memory in sorted(self._hidden.items())}

    @classmethod
    def from_state(cls, data: Any) -> Self:
        """The counterpart of ``to_state``; ValueError for any other data."""
        restored = cls()
        with restoring("memory"):
            restored._hidden = {text(uuid): HiddenMemory.from_state(state) for uuid, state in data.items()}
        return restored


def _pools(reading: GpuReading) -> list[_Pool]:
    if reading.mig is None:
        return [_Pool(("",), reading.memory)]
    by_instance: dict[object, list[str]] = {}
    memory: dict[str, DeviceMemory | None] = {}
    for mig in reading.mig:
        by_instance.setdefault(mig.uuid if mig.gpu_instance_id is None else mig.gpu_instance_id, []).append(mig.uuid)
        memory[mig.uuid] = mig.memory
    return [_Pool(tuple(uuids), memory[uuids[0]]) for uuids in by_instance.values()]


def _processes_without_figure(
    members: Sequence[Resident], owners: Mapping[ProcessOnDevice, WorkloadOnDevice], cycle: Cycle
) -> list[Candidate]:
    return [
        Candidate(
            id=resident.at,
            evidence=Evidence.NO_FIGURE if resident.listed else Evidence.DEVICE_OPEN,
            mapping_bytes=resident.mapping_bytes,
            age_s=cycle.age_s(resident.start_time_s),
            workload=owners[resident.at],
        )
        for resident in members
        if resident.memory_bytes is None
    ]


def _granted_workloads(
    pool: _Pool, parts: MemorySplit, grant_ages_s: Mapping[WorkloadOnDevice, float]
) -> list[Candidate]:
    """Workloads that were granted the device and have no process there; only where memory is unexplained."""
    if parts.unattributed_bytes < UNEXPLAINED_BYTES:
        return []
    return [
        Candidate(workload, Evidence.GRANTED, age_s)
        for workload, age_s in sorted(grant_ages_s.items())
        if workload.device.mig_uuid in pool.mig_uuids
    ]


def _with_inferred(parts: MemorySplit, inferred_bytes: int) -> MemorySplit:
    """Count this much as inferred instead of unattributed."""
    return parts._replace(
        inferred_bytes=parts.inferred_bytes + inferred_bytes,
        unattributed_bytes=parts.unattributed_bytes - inferred_bytes,
    )


def _whole(reading: GpuReading, now: Residents, hidden: Sequence[HiddenSplit]) -> MemorySplit | None:
    """The split of a GPU that is divided into instances: the sum over them, nothing inferred twice."""
    whole = split(reading.memory, (resident.memory_bytes for resident in now.values()))
    if whole is None:
        return None
    inferred_bytes = sum(inferred.bytes for parts in hidden for inferred in parts.inferred.values())
    return _with_inferred(whole, min(inferred_bytes, whole.unattributed_bytes))


# ---------------------------------------------------------------------------- the driver's figures


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
