"""Memory of a GPU by state and MIG instance: the parts of a GPU sum to its limit, to the byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from otel_gpu.metrics.labels import NO_ATTRIBUTES, Attributes
from otel_gpu.metrics.rows import GpuRow, GpuValues
from otel_gpu.model import MemorySplit, MigReport

_STATES: Final = ("reserved", "measured", "inferred", "unattributed", "free")


def memory_states(row: GpuRow) -> GpuValues:
    """Bytes by state: of each MIG instance, then of the rest of the GPU (all of it without MIG)."""
    whole = row.gpu.memory
    if whole is None:
        return
    instances = {mig.uuid: _states(split) for mig, split in _instances(row, whole)}
    for uuid, states in instances.items():
        yield from _labelled(states, row.instances[uuid])
    rest = _rest(_states(whole), instances.values()) if instances else _states(whole)
    yield from _labelled(rest, NO_ATTRIBUTES)


def memory_overcount(row: GpuRow) -> GpuValues:
    """Bytes that process lists claim beyond what is used: of each MIG instance, then of the rest of the GPU."""
    whole = row.gpu.memory
    if whole is None:
        return
    rest_bytes = whole.overcount_bytes
    for mig, split in _instances(row, whole):
        rest_bytes -= split.overcount_bytes
        yield split.overcount_bytes, row.instances[mig.uuid]
    yield max(0, rest_bytes), NO_ATTRIBUTES


def _labelled(states: Mapping[str, int], device: Attributes) -> Iterator[tuple[int, Attributes]]:
    for state in _STATES:
        if state in states:
            yield states[state], {**device, "gpu.memory.state": state}


def _instances(row: GpuRow, whole: MemorySplit) -> list[tuple[MigReport, MemorySplit]]:
    """The instances that have memory of their own.

    Compute instances of one GPU instance share its memory, and each reports all of it: that memory is counted with the
    rest of the GPU. So is all memory where the instances claim more than the GPU has.
    """
    if not row.gpu.mig:
        return []
    read = row.gpu.reading.mig or ()
    sharing = Counter(mig.gpu_instance_id for mig in read if mig.gpu_instance_id is not None)
    shared = {mig.uuid for mig in read if mig.gpu_instance_id is not None and sharing[mig.gpu_instance_id] > 1}
    own = [(mig, mig.memory) for mig in row.gpu.mig if mig.memory is not None and mig.uuid not in shared]
    return own if sum(split.limit_bytes for _, split in own) <= whole.limit_bytes else []


def _states(split: MemorySplit) -> dict[str, int]:
    """The states that sum to the limit. Measured is net of overcount."""
    reserved = {} if split.reserved_bytes is None else {"reserved": split.reserved_bytes}
    return {
        **reserved,
        "measured": split.measured_bytes - split.overcount_bytes,
        "inferred": split.inferred_bytes,
        "unattributed": split.unattributed_bytes,
        "free": split.free_bytes,
    }


def _rest(whole: Mapping[str, int], instances: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    """The memory of no instance. Where instances have more of a state than the GPU, its other states make up for it."""
    rest = Counter(whole)
    for states in instances:
        rest.subtract(states)
    missing = -sum(held_bytes for held_bytes in rest.values() if held_bytes < 0)
    for state, held_bytes in rest.most_common():
        taken = min(missing, max(0, held_bytes))
        rest[state] = max(0, held_bytes) - taken
        missing -= taken
    return {state: rest[state] for state in rest if state in whole}
