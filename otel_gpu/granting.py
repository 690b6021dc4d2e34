"""From what runtimes and schedulers call a GPU to the GPU: who was given what. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from otel_gpu.model import GpuReading, Grant, MigReading, WorkloadRef
from otel_gpu.sources.base import Claim

SHORTEST_UUID: Final = len("GPU-") + 8
"""NVIDIA's runtime takes the beginning of a UUID for it; so short a one could be anybody's, and is not."""

_BY_NODE: Final = re.compile(r"nvidia(?P<minor>\d{1,4})(?:/gi(?P<instance>\d{1,3}))?")
_BY_INDEX: Final = re.compile(r"(?P<index>\d{1,4})(?::(?P<instance>\d{1,3}))?")
# MIG-GPU-<uuid>/<GPU instance>/<compute instance>: how drivers before 470 called an instance
_BY_PATH: Final = re.compile(r"MIG-(?P<uuid>GPU-[0-9a-f-]{1,64})/(?P<instance>\d{1,3})/(?P<compute>\d{1,3})")


class Given(NamedTuple):
    """What a workload was given, in the words of whoever gave it, since ``since_s`` (Unix time)."""

    workload: WorkloadRef
    claim: Claim
    since_s: float | None


class Granted(NamedTuple):
    """Who was given what, and what was given that is not on this host."""

    grants: tuple[Grant, ...]
    unknown: tuple[Given, ...]


class _Place(NamedTuple):
    gpu: GpuReading
    mig: MigReading | None

    @property
    def key(self) -> tuple[str, str]:
        return self.gpu.identity.uuid, "" if self.mig is None else self.mig.uuid


def grants_of(given: Iterable[Given], gpus: Sequence[GpuReading]) -> Granted:
    """The grants on these GPUs. Who was given a place twice has it once, on the stronger ground; replicas add up.

    While one of them does not answer, nothing is unknown: its instances, or its place in the system, may be meant.
    """
    all_known = bool(gpus) and all(gpu.answered for gpu in gpus)
    found: dict[tuple[WorkloadRef, tuple[str, str]], tuple[_Place, Given]] = {}
    replicas: Counter[tuple[WorkloadRef, tuple[str, str]]] = Counter()
    unknown: list[Given] = []
    for each in given:
        meant = _meant(each.claim.device, gpus)
        places = [place for found_places in meant for place in found_places]
        if not meant and all_known and each.claim.device != "all":
            unknown.append(each)
        for place in places:
            replicas[each.workload, place.key] += each.claim.replicas is not None
            before = found.get((each.workload, place.key))
            if before is None or _strength(each.claim) > _strength(before[1].claim):
                found[each.workload, place.key] = place, each
    together = Counter(place.key for place, each in found.values() if _is_whole(each.claim))
    return Granted(
        tuple(
            Grant(
                workload=each.workload,
                gpu_uuid=place.key[0],
                mig_uuid=place.key[1],
                since_s=each.since_s,
                share=_share(place, each.claim, together[place.key], replicas[each.workload, place.key]),
                possible=each.claim.possible,
            )
            for place, each in found.values()
        ),
        tuple(unknown),
    )


def _strength(claim: Claim) -> tuple[bool, bool]:
    return not claim.possible, claim.replicas is not None


def _is_whole(claim: Claim) -> bool:
    return not claim.possible and claim.replicas is None


def _share(place: _Place, claim: Claim, together: int, replicas: int) -> float | None:
    """The part of a GPU: what several were given whole they have in equal parts, so that parts sum to GPUs."""
    if claim.possible or claim.replicas == 0:
        return None
    size = 1.0
    if place.mig is not None:
        if not place.mig.sm_count or not place.gpu.sm_count:
            return None
        size = place.mig.sm_count / place.gpu.sm_count
    return size / together if claim.replicas is None else size * min(1.0, replicas / claim.replicas)


# ---------------------------------------------------------------------------- which GPU is meant


def _meant(device: str, gpus: Sequence[GpuReading]) -> list[list[_Place]]:
    """What each GPU that is meant has to give: nothing, where it is to be divided (MIG) and has no instance yet."""
    if device == "all":
        return [_whole(gpu) for gpu in gpus]
    for form, find in ((_BY_INDEX, _by_index), (_BY_NODE, _by_node), (_BY_PATH, _by_path)):
        if (match := form.fullmatch(device)) is not None:
            return [found for gpu in gpus if (found := find(gpu, match)) is not None]
    return _by_uuid(device, gpus)


def _by_index(gpu: GpuReading, match: re.Match[str]) -> list[_Place] | None:
    if gpu.identity.index != int(match["index"]):
        return None
    if match["instance"] is None:
        return _whole(gpu)
    return [_Place(gpu, mig) for mig in gpu.mig or () if mig.index == int(match["instance"])] or None


def _by_node(gpu: GpuReading, match: re.Match[str]) -> list[_Place] | None:
    if gpu.identity.minor != int(match["minor"]):
        return None
    return _whole(gpu) if match["instance"] is None else _instances(gpu, int(match["instance"]), None)


def _by_path(gpu: GpuReading, match: re.Match[str]) -> list[_Place] | None:
    if gpu.identity.uuid != match["uuid"]:
        return None
    return _instances(gpu, int(match["instance"]), int(match["compute"]))


def _by_uuid(uuid: str, gpus: Sequence[GpuReading]) -> list[list[_Place]]:
    if len(uuid) < SHORTEST_UUID:
        return []
    meant = [_whole(gpu) for gpu in gpus if gpu.identity.uuid.startswith(uuid)]
    meant += [[_Place(gpu, mig)] for gpu in gpus for mig in gpu.mig or () if mig.uuid.startswith(uuid)]
    return meant if len(meant) == 1 else []


def _whole(gpu: GpuReading) -> list[_Place]:
    """A GPU; where it is divided into instances (MIG), all of them, for nothing else can be used there."""
    return [_Place(gpu, None)] if gpu.mig is None else [_Place(gpu, mig) for mig in gpu.mig]


def _instances(gpu: GpuReading, instance: int, compute: int | None) -> list[_Place] | None:
    return [
        _Place(gpu, mig)
        for mig in gpu.mig or ()
        if mig.gpu_instance_id == instance and compute in (None, mig.compute_instance_id)
    ] or None
