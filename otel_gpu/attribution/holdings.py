"""Who holds a GPU's memory: by the lists, and by inference where the lists do not tell. MIG instances apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

from otel_gpu.attribution.cycle import Cycle
from otel_gpu.attribution.hidden import Candidate, Evidence, HiddenMemory, HiddenSplit
from otel_gpu.attribution.memory import split
from otel_gpu.attribution.places import ProcessAt, WorkloadAt
from otel_gpu.attribution.plain import text
from otel_gpu.attribution.presence import UNEXPLAINED_BYTES, Resident, same_processes
from otel_gpu.model import DeviceMemory, GpuReading, MemorySplit

_Residents = Mapping[ProcessAt, Resident]


class _Pool(NamedTuple):
    """Memory that is one: a GPU's, or a GPU instance's, which all its compute instances share and each report whole."""

    mig_uuids: tuple[str, ...]
    memory: DeviceMemory | None


class Holdings:
    """The memory of one GPU from cycle to cycle."""

    __slots__ = ("_hidden",)

    def __init__(self) -> None:
        self._hidden: dict[str, HiddenMemory] = {}

    def observe(
        self,
        reading: GpuReading,
        now: _Residents,
        before: _Residents,
        owners: Mapping[ProcessAt, WorkloadAt],
        cycle: Cycle,
        *,
        granted: Mapping[WorkloadAt, float],
    ) -> tuple[Mapping[str, MemorySplit | None], Mapping[str, HiddenSplit]]:
        """How the memory divides and who probably holds what, by MIG instance, "" for the GPU itself.

        ``granted`` are workloads that were given a place and have nobody in sight there, with their age in seconds.
        In a cycle that infers nothing, nobody probably holds anything.
        """
        memory: dict[str, MemorySplit | None] = {}
        hidden: dict[str, HiddenSplit] = {}
        pools = _pools(reading)
        for pool in pools:
            members = list(now.values())
            if reading.mig is not None:
                members = [resident for resident in members if resident.at.place.mig_uuid in pool.mig_uuids]
            parts = split(pool.memory, [resident.memory_bytes for resident in members])
            if parts is not None and cycle.infers:
                come, gone = [], []
                if not same_processes(before, now):
                    come = [r for r in members if r.at not in before]
                    gone = [r for at, r in before.items() if at.place.mig_uuid in pool.mig_uuids and at not in now]
                candidates = [_candidate(r, owners[r.at], cycle) for r in members if r.memory_bytes is None]
                if parts.unattributed_bytes >= UNEXPLAINED_BYTES:
                    candidates += [
                        Candidate(at, Evidence.GRANTED, age_s)
                        for at, age_s in sorted(granted.items())
                        if at.place.mig_uuid in pool.mig_uuids
                    ]
                books = self._hidden.get(pool.mig_uuids[0])
                if books is None:
                    books = self._hidden[pool.mig_uuids[0]] = HiddenMemory()
                inferred = books.observe(
                    unknown_bytes=parts.unattributed_bytes,
                    candidates=candidates,
                    visible_arrivals=_visible(come),
                    visible_departures=_visible(gone),
                    now_s=cycle.now_s,
                )
                if inferred.unattributed_bytes != parts.unattributed_bytes:
                    parts = _with_inferred(parts, parts.unattributed_bytes - inferred.unattributed_bytes)
                hidden |= dict.fromkeys(pool.mig_uuids, inferred)
            memory |= dict.fromkeys(pool.mig_uuids, parts)
        if reading.mig is not None:
            memory[""] = self._whole(reading, now, [hidden[p.mig_uuids[0]] for p in pools if p.mig_uuids[0] in hidden])
        kept = {pool.mig_uuids[0] for pool in pools}
        if not self._hidden.keys() <= kept:
            self._hidden = {place: state for place, state in self._hidden.items() if place in kept}
        return memory, hidden

    def _whole(self, reading: GpuReading, now: _Residents, hidden: Sequence[HiddenSplit]) -> MemorySplit | None:
        """A GPU divided into instances: its own split speaks of all of them, and nothing is inferred twice."""
        whole = split(reading.memory, (resident.memory_bytes for resident in now.values()))
        if whole is None:
            return None
        inferred_bytes = sum(held.bytes for parts in hidden for held in parts.inferred.values())
        return _with_inferred(whole, min(inferred_bytes, whole.unattributed_bytes))

    # -- state ----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """What is remembered of hidden memory, as plain data."""
        return {place: state.to_state() for place, state in sorted(self._hidden.items())}

    @classmethod
    def from_state(cls, data: Any) -> Self:
        """The counterpart of ``to_state``; ValueError if it is not what that gave."""
        restored = cls()
        try:
            restored._hidden = {text(place): HiddenMemory.from_state(state) for place, state in data.items()}
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError("not a state of memory") from error
        return restored


def unexplained_bytes(memory: Mapping[str, MemorySplit | None]) -> int:
    """Memory in use that nothing explains: the GPU's own figure, or its instances' where it gives none."""
    whole = memory.get("")
    if whole is not None:
        return whole.unattributed_bytes
    return sum(parts.unattributed_bytes for parts in memory.values() if parts is not None)


def _pools(reading: GpuReading) -> list[_Pool]:
    if reading.mig is None:
        return [_Pool(("",), reading.memory)]
    by_instance: dict[object, list[str]] = {}
    memory: dict[str, DeviceMemory | None] = {}
    for mig in reading.mig:
        by_instance.setdefault(mig.uuid if mig.gpu_instance_id is None else mig.gpu_instance_id, []).append(mig.uuid)
        memory[mig.uuid] = mig.memory
    return [_Pool(tuple(uuids), memory[uuids[0]]) for uuids in by_instance.values()]


def _visible(residents: Sequence[Resident]) -> int:
    return sum(1 for resident in residents if resident.memory_bytes is not None)


def _candidate(resident: Resident, owner: WorkloadAt, cycle: Cycle) -> Candidate:
    return Candidate(
        id=resident.at,
        evidence=Evidence.NO_FIGURE if resident.listed else Evidence.DEVICE_OPEN,
        mapping_bytes=resident.mapping_bytes,
        age_s=cycle.age_s(resident.start_time_s),
        workload=owner,
    )


def _with_inferred(parts: MemorySplit, inferred_bytes: int) -> MemorySplit:
    """Count this much as inferred instead of unattributed."""
    return replace(
        parts,
        inferred_bytes=parts.inferred_bytes + inferred_bytes,
        unattributed_bytes=parts.unattributed_bytes - inferred_bytes,
    )
