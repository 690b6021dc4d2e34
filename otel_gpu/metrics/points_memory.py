"""Memory of a GPU by state and MIG instance, such that the parts of a GPU sum to its limit, to the byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from otel_gpu.metrics.points_reading import Device, Reading
from otel_gpu.metrics.series import Point
from otel_gpu.metrics.tags import Tags
from otel_gpu.model import MemorySplit, MigAttribution


def memory_states(reading: Reading) -> Iterator[Point]:
    """Bytes by state: of each MIG instance, and of what belongs to none (all of it without MIG)."""
    for device in reading.devices:
        for place, parts in _parts(device):
            for state, held_bytes in parts.items():
                yield Point(held_bytes, place.adding({"gpu.memory.state": state}))


def memory_overcount(reading: Reading) -> Iterator[Point]:
    """Bytes claimed beyond what is used, by the same places."""
    for device in reading.devices:
        whole = device.gpu.memory
        if whole is None:
            continue
        instances = _instances(device, whole)
        for mig, split in instances:
            yield Point(split.overcount_bytes, device.place(mig.uuid))
        claimed = sum(split.overcount_bytes for _, split in instances)
        yield Point(max(0, whole.overcount_bytes - claimed), device.place(None))


def _parts(device: Device) -> Iterator[tuple[Tags, Mapping[str, int]]]:
    whole = device.gpu.memory
    if whole is None:
        return
    instances = _instances(device, whole)
    for mig, split in instances:
        yield device.place(mig.uuid), _states(split)
    yield device.place(None), _rest(_states(whole), [_states(split) for _, split in instances])


def _instances(device: Device, whole: MemorySplit) -> list[tuple[MigAttribution, MemorySplit]]:
    """The instances that have memory of their own.

    Compute instances of one GPU instance share its memory, and each reports all of it: that is told of with the rest
    of the GPU. So is everything where the instances claim more than there is.
    """
    if not device.gpu.mig:
        return []
    read = device.gpu.reading.mig or ()
    sharing = Counter(mig.gpu_instance_id for mig in read if mig.gpu_instance_id is not None)
    shared = {mig.uuid for mig in read if mig.gpu_instance_id is not None and sharing[mig.gpu_instance_id] > 1}
    own = [(mig, mig.memory) for mig in device.gpu.mig if mig.memory is not None and mig.uuid not in shared]
    return own if sum(split.limit_bytes for _, split in own) <= whole.limit_bytes else []


def _states(split: MemorySplit) -> dict[str, int]:
    """The states that sum to the limit: what was counted twice counts once."""
    reserved = {} if split.reserved_bytes is None else {"reserved": split.reserved_bytes}
    return {
        **reserved,
        "measured": split.measured_bytes - split.overcount_bytes,
        "inferred": split.inferred_bytes,
        "unattributed": split.unattributed_bytes,
        "free": split.free_bytes,
    }


def _rest(whole: Mapping[str, int], instances: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    """What no instance has. Where they have more of a state than the GPU tells, its other states make up for it."""
    if not instances and min(whole.values()) >= 0:
        return whole
    rest = Counter(whole)
    for states in instances:
        rest.subtract(states)
    missing = -sum(held_bytes for held_bytes in rest.values() if held_bytes < 0)
    for state, held_bytes in rest.most_common():
        taken = min(missing, max(0, held_bytes))
        rest[state] = max(0, held_bytes) - taken
        missing -= taken
    return {state: rest[state] for state in rest if state in whole}
