"""Grants: resolve what runtimes and schedulers call a device to a GPU of this host. Pure functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from otel_gpu.model import GpuReading, Grant, MigReading, WorkloadRef
from otel_gpu.sources.base import Claim

SHORTEST_UUID: Final = len("GPU-") + 8
"""NVIDIA's runtime accepts the beginning of a UUID. A shorter beginning could match any GPU, and is rejected."""

_BY_NODE: Final = re.compile(r"nvidia(?P<minor>\d{1,4})(?:/gi(?P<instance>\d{1,3}))?")
_BY_INDEX: Final = re.compile(r"(?P<index>\d{1,4})(?::(?P<instance>\d{1,3}))?")
# MIG-GPU-<uuid>/<GPU instance>/<compute instance>: the name of an instance in drivers before 470
_BY_PATH: Final = re.compile(r"MIG-(?P<uuid>GPU-[0-9a-f-]{1,64})/(?P<instance>\d{1,3})/(?P<compute>\d{1,3})")


class WorkloadClaim(NamedTuple):
    """A claim of one workload to a device, since ``since_s`` (Unix time) if that is known."""

    workload: WorkloadRef
    claim: Claim
    since_s: float | None


class GrantResult(NamedTuple):
    """Claims resolved to grants, and claims to devices that this host does not have."""

    grants: tuple[Grant, ...]
    unknown: tuple[WorkloadClaim, ...]


class _Device(NamedTuple):
    """A GPU, or one MIG instance of it."""

    gpu: GpuReading
    mig: MigReading | None

    @property
    def key(self) -> tuple[str, str]:
        """UUIDs of the GPU and of the instance; the latter is empty for a GPU."""
        return self.gpu.identity.uuid, "" if self.mig is None else self.mig.uuid


def grants_of(claims: Collection[WorkloadClaim], gpus: Sequence[GpuReading]) -> GrantResult:
    """Resolve claims to grants on these GPUs.

    A workload that claims a device more than once has one grant, by its strongest claim; replicas add up. While a GPU
    does not answer, no claim is unknown: it may refer to that GPU's device node or instances.
    """
    all_answered = bool(gpus) and all(gpu.answered for gpu in gpus)
    granted: dict[tuple[WorkloadRef, tuple[str, str]], tuple[_Device, WorkloadClaim]] = {}
    replicas: Counter[tuple[WorkloadRef, tuple[str, str]]] = Counter()
    unknown: list[WorkloadClaim] = []
    matches = {device: _matches(device, gpus) for device in {each.claim.device for each in claims}}
    for each in claims:
        found = matches[each.claim.device]
        if not found and all_answered and each.claim.device != "all":
            unknown.append(each)
        for device in (device for devices in found for device in devices):
            key = each.workload, device.key
            replicas[key] += each.claim.replicas is not None
            before = granted.get(key)
            if before is None or _strength(each.claim) > _strength(before[1].claim):
                granted[key] = device, each
    sharers = Counter(device.key for device, each in granted.values() if _is_whole(each.claim))
    return GrantResult(
        tuple(
            Grant(
                workload=each.workload,
                gpu_uuid=device.key[0],
                mig_uuid=device.key[1],
                since_s=each.since_s,
                share=_share(device, each.claim, sharers[device.key], replicas[key]),
                possible=each.claim.possible,
            )
            for key, (device, each) in granted.items()
        ),
        tuple(unknown),
    )


def _strength(claim: Claim) -> tuple[bool, bool]:
    return not claim.possible, claim.replicas is not None


def _is_whole(claim: Claim) -> bool:
    return not claim.possible and claim.replicas is None


def _share(device: _Device, claim: Claim, sharers: int, replicas: int) -> float | None:
    """The granted part of the GPU, 0 to 1. Workloads granted the whole device have equal parts of it."""
    if claim.possible or claim.replicas == 0:
        return None
    size = 1.0
    if device.mig is not None:
        if not device.mig.sm_count or not device.gpu.sm_count:
            return None
        size = device.mig.sm_count / device.gpu.sm_count
    return size / sharers if claim.replicas is None else size * min(1.0, replicas / claim.replicas)


# ---------------------------------------------------------------------------- which GPU a claim refers to


def _matches(device: str, gpus: Sequence[GpuReading]) -> list[list[_Device]]:
    """The devices of each GPU that the text refers to: an empty list for a GPU in MIG mode without instances."""
    if device == "all":
        return [_devices(gpu) for gpu in gpus]
    for form, find in ((_BY_INDEX, _by_index), (_BY_NODE, _by_node), (_BY_PATH, _by_path)):
        if (match := form.fullmatch(device)) is not None:
            return [found for gpu in gpus if (found := find(gpu, match)) is not None]
    return _by_uuid(device, gpus)


def _by_index(gpu: GpuReading, match: re.Match[str]) -> list[_Device] | None:
    if gpu.identity.index != int(match["index"]):
        return None
    if match["instance"] is None:
        return _devices(gpu)
    return [_Device(gpu, mig) for mig in gpu.mig or () if mig.index == int(match["instance"])] or None


def _by_node(gpu: GpuReading, match: re.Match[str]) -> list[_Device] | None:
    if gpu.identity.minor != int(match["minor"]):
        return None
    return _devices(gpu) if match["instance"] is None else _instances(gpu, int(match["instance"]), None)


def _by_path(gpu: GpuReading, match: re.Match[str]) -> list[_Device] | None:
    if gpu.identity.uuid != match["uuid"]:
        return None
    return _instances(gpu, int(match["instance"]), int(match["compute"]))


def _by_uuid(uuid: str, gpus: Sequence[GpuReading]) -> list[list[_Device]]:
    if len(uuid) < SHORTEST_UUID:
        return []
    matches = [_devices(gpu) for gpu in gpus if gpu.identity.uuid.startswith(uuid)]
    matches += [[_Device(gpu, mig)] for gpu in gpus for mig in gpu.mig or () if mig.uuid.startswith(uuid)]
    return matches if len(matches) == 1 else []


def _devices(gpu: GpuReading) -> list[_Device]:
    """The GPU; in MIG mode all of its instances, since only those can be used."""
    return [_Device(gpu, None)] if gpu.mig is None else [_Device(gpu, mig) for mig in gpu.mig]


def _instances(gpu: GpuReading, instance: int, compute: int | None) -> list[_Device] | None:
    return [
        _Device(gpu, mig)
        for mig in gpu.mig or ()
        if mig.gpu_instance_id == instance and compute in (None, mig.compute_instance_id)
    ] or None
