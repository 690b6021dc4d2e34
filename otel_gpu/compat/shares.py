"""Shares of a GPU: what each workload on it has, and what nobody has, such that they sum to the GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from otel_gpu.attribution.apportion import apportion
from otel_gpu.compat.fields import used_bytes
from otel_gpu.compat.form import Scene
from otel_gpu.compat.subjects import held_bytes, newest
from otel_gpu.metrics.rows import GpuRow, UseRow
from otel_gpu.model import MemorySplit, WorkloadGpu

N = TypeVar("N", int, float)


class Extent(Enum):
    """How much of a GPU's gauges somebody has. Counters are everybody's own, whatever this says.

    ``WHOLE``: nobody else is on it, so that all of it is his, as dcgm-exporter has it. ``PART``: others are, and this
    is his part; nobody's is what is left. ``NOTHING``: he has left; or he is nobody, and somebody has the whole.
    """

    WHOLE = "whole"
    PART = "part"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Claims:
    """What somebody did with a GPU in the last window; what is not known is ``None``."""

    sm_ratio: float | None
    bandwidth_ratio: float | None
    energy_mj: int | None

    @classmethod
    def of(cls, use: WorkloadGpu) -> Claims:
        """Of a workload's part."""
        return cls(use.sm_ratio, use.bandwidth_ratio, use.energy.total_mj)

    @classmethod
    def sum(cls, claims: Sequence[Claims]) -> Claims:
        """What all of them did together, each as far as it is known."""
        return cls(
            _sum(each.sm_ratio for each in claims),
            _sum(each.bandwidth_ratio for each in claims),
            _sum(each.energy_mj for each in claims),
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that somebody has in use, and bytes of those free that are counted as his."""

    used_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """A workload's share of a GPU; without ``row`` and ``own`` it is nobody's. ``all`` is what all did together."""

    scene: Scene
    device: GpuRow
    extent: Extent
    all: Claims
    memory: Memory = Memory()
    row: UseRow[WorkloadGpu] | None = None
    own: Claims | None = None


def shares(scene: Scene) -> Iterator[Share]:
    """Every workload's share of every GPU that answers, those that have left too, and what nobody has of it."""
    rows: dict[str, list[UseRow[WorkloadGpu]]] = {}
    for row in newest(scene.rows.workloads):
        if not row.use.possible:
            rows.setdefault(row.use.gpu_uuid, []).append(row)
    for device in scene.rows.gpus:
        yield from _of_device(scene, device, rows.get(device.gpu.identity.uuid, ()))


def _of_device(scene: Scene, device: GpuRow, rows: Sequence[UseRow[WorkloadGpu]]) -> Iterator[Share]:
    present = [row for row in rows if row.use.active]
    everybody_is_told = not _others_unseen(scene, device)
    alone = everybody_is_told and len(present) == 1 and present[0].use.mig_uuid is None
    together = Claims.sum([Claims.of(row.use) for row in present])
    memories, nobodys = _memories(device, present, everybody_is_told=everybody_is_told)
    for row in rows:
        if row.use.active:
            extent = Extent.WHOLE if alone else Extent.PART
            yield Share(scene, device, extent, together, memories.pop(0), row, Claims.of(row.use))
        else:
            yield Share(scene, device, Extent.NOTHING, together, row=row)
    extent = Extent.NOTHING if alone else Extent.PART if present else Extent.WHOLE
    yield Share(scene, device, extent, together, nobodys)


def _others_unseen(scene: Scene, device: GpuRow) -> bool:
    """Whether somebody may be on the GPU who is not told of: an agent of one pod, names that are still looked up."""
    attribution = scene.rows.report
    return attribution.pod is not None or any(
        part.gpu_uuid == device.gpu.identity.uuid and part.active and not part.possible
        for workload in attribution.workloads
        if workload.awaiting_names
        for part in workload.gpus
    )


# ---------------------------------------------------------------------------- memory

_REST: Final = -1
"""The place of nobody among those who share memory."""


def _memories(
    device: GpuRow, rows: Sequence[UseRow[WorkloadGpu]], *, everybody_is_told: bool
) -> tuple[list[Memory], Memory]:
    """The memory of everybody who is on a GPU, in this order, and nobody's. Of a MIG instance its own is divided."""
    pools: dict[str | None, MemorySplit | None] = {None: device.gpu.memory}
    pools |= {mig.uuid: mig.memory for mig in device.gpu.mig or ()}
    by_pool: dict[str | None, dict[int, int | None]] = {}
    for number, row in enumerate(rows):
        by_pool.setdefault(row.use.mig_uuid, {})[number] = held_bytes(row.use)
    found: dict[int, Memory] = {}
    for mig_uuid, held in by_pool.items():
        alone = everybody_is_told and len(held) == 1 and (mig_uuid is not None or len(rows) == 1)
        found |= _of_pool(pools.get(mig_uuid), held, alone=alone)
    parts = [found[number] for number in range(len(rows))]
    return parts, _rest(device.gpu.memory, parts)


def _of_pool(pool: MemorySplit | None, held: Mapping[int, int | None], *, alone: bool) -> dict[int, Memory]:
    """Used is what each holds; lists that claim more than is used are cut to it.

    What is free has no owner. It is divided as what is used, so that used / (used + free) is the GPU's on every
    series. Who holds nothing has no part of it: 0 / 0 would be no number.
    """
    if pool is None:
        return {number: Memory(bytes_) for number, bytes_ in held.items()}
    whole = used_bytes(pool)
    if alone:
        return dict.fromkeys(held, Memory(whole, pool.free_bytes))
    used = {number: bytes_ for number, bytes_ in held.items() if bytes_ is not None}
    if sum(used.values()) > whole:
        used, _ = apportion(whole, used)
    weights = {**used, _REST: whole - sum(used.values())}
    free, _ = apportion(pool.free_bytes, {number: bytes_ for number, bytes_ in weights.items() if bytes_ > 0} or used)
    return {number: Memory(used.get(number), free.get(number)) for number in held}


def _rest(whole: MemorySplit | None, parts: Sequence[Memory]) -> Memory:
    """What is left of a GPU's memory; nothing left has no series, unless there would be none at all."""
    if whole is None:
        return Memory()
    used, free = _sum(part.used_bytes for part in parts), _sum(part.free_bytes for part in parts)
    return Memory(_left(used_bytes(whole), used), _left(whole.free_bytes, free))


def _left(whole: int, given: int | None) -> int | None:
    return whole if given is None else max(0, whole - given) or None


def _sum(values: Iterable[N | None]) -> N | None:
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None
