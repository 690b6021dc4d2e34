"""Memory of a GPU by state and MIG instance, such that the parts of a GPU sum to its limit, to the byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from otel_gpu.metrics.layout import DeviceTags
from otel_gpu.metrics.points_reading import Device
from otel_gpu.metrics.tags import Tags
from otel_gpu.model import MemorySplit, MigReport

_STATES: Final = ("reserved", "measured", "inferred", "unattributed", "free")


def instances_first(device: DeviceTags) -> tuple[Tags, ...]:
    """The attributes of the MIG instances, and then those of what belongs to none."""
    whole, *instances = device.places.values()
    return *instances, whole


def by_memory_state(device: DeviceTags) -> tuple[Tags, ...]:
    """The same for each state."""
    return tuple(place.adding({"gpu.memory.state": state}) for place in instances_first(device) for state in _STATES)


def memory_states(device: Device) -> Iterable[float | None]:
    """Bytes by state: of each MIG instance, and of what belongs to none (all of it without MIG)."""
    whole = device.gpu.memory
    if whole is None:
        return (None,) * (len(device.places) * len(_STATES))
    if not device.gpu.mig:
        return [*map(_rest(_states(whole), ()).get, _STATES)]
    instances = {mig.uuid: _states(split) for mig, split in _instances(device, whole)}
    return [held_bytes for states in _parts(device, whole, instances) for held_bytes in map(states.get, _STATES)]


def memory_overcount(device: Device) -> Iterable[float | None]:
    """Bytes claimed beyond what is used, by the same places."""
    whole = device.gpu.memory
    if whole is None:
        return (None,) * len(device.places)
    if not device.gpu.mig:
        return (max(0, whole.overcount_bytes),)
    claimed = {mig.uuid: split.overcount_bytes for mig, split in _instances(device, whole)}
    rest_bytes = max(0, whole.overcount_bytes - sum(claimed.values()))
    return *[claimed.get(uuid) for uuid in device.places if uuid], rest_bytes


def _parts(
    device: Device, whole: MemorySplit, instances: Mapping[str, Mapping[str, int]]
) -> Iterator[Mapping[str, int]]:
    """By place; an instance that has no memory of its own has no states."""
    for uuid in device.places:
        if uuid:
            yield instances.get(uuid, {})
    yield _rest(_states(whole), tuple(instances.values()))


def _instances(device: Device, whole: MemorySplit) -> list[tuple[MigReport, MemorySplit]]:
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
