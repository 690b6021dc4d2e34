"""From the kubelet's names of devices to claims on GPUs. Pure, total.

Device plugins name their devices as they like and people rename the resources, so that ids tell whose they are:

* NVIDIA's plugin: ``GPU-<uuid>``, ``MIG-<uuid>``, ``MIG-GPU-<uuid>/<gi>/<ci>`` of old drivers; shared by time-slicing
  or MPS, each replica is one, ``GPU-<uuid>::<n>`` (k8s-device-plugin, internal/rm/device_map.go).
* GKE's: ``nvidia<minor>``, ``nvidia<minor>/gi<n>``, shared ``…/vgpu<n>`` (container-engine-accelerators,
  gpusharing.go).
* NVIDIA's DRA driver: ``gpu-<minor>``, of MIG ``gpu-<minor>-mig-<profile>-<id>-<start>`` (k8s-dra-driver-gpu,
  deviceinfo.go, mig.go). Which instance that has become is not in its name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from otel_gpu.sources.base import NO_PODS, Claim, PodContainer
from otel_gpu.sources.kubelet.proto.podresources_pb2 import (
    AllocatableResourcesResponse,
    ClaimResource,
    ContainerDevices,
    ContainerResources,
    DynamicResource,
    ListPodResourcesResponse,
    PodResources,
)
from otel_gpu.sources.outside import told

REPLICAS_UNKNOWN: Final = 0
"""``Claim.replicas`` of a device that is shared among nobody knows how many."""

_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_DEVICE: Final = re.compile(
    rf"(?:GPU-{_UUID}|MIG-{_UUID}|MIG-GPU-{_UUID}/\d{{1,3}}/\d{{1,3}}|nvidia\d{{1,4}}(?:/gi\d{{1,3}})?)"
)
_REPLICA: Final = re.compile(r"(?P<device>.+)(?:::|/vgpu)\d{1,6}")
_OF_NVIDIA: Final = re.compile(r"GPU-|MIG-|nvidia\d")
_RESOURCE_OF_NVIDIA: Final = re.compile(r"nvidia\.com/(?:gpu|mig-).*")

_DRA_DRIVER: Final = "gpu.nvidia.com"
_DRA_GPU: Final = re.compile(r"gpu-(?P<minor>\d{1,4})")
_DRA_VFIO: Final = re.compile(r"gpu-vfio-\d+")
_CDI_UUID: Final = re.compile(rf"nvidia\.com/[^=]+=(?P<device>(?:GPU|MIG)-{_UUID})")


class _Device(NamedTuple):
    name: str
    shared: bool = False


class _Pod(NamedTuple):
    """One pod of a list: what each of its containers was given, and what of it was not understood."""

    given: tuple[tuple[PodContainer, tuple[_Device, ...]], ...]
    troubles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pods:
    """What was given to which container, and what of it was not understood; beside it, what that was read from."""

    given: Mapping[PodContainer, tuple[Claim, ...]] = field(default_factory=lambda: NO_PODS)
    troubles: tuple[str, ...] = ()
    pods: Mapping[bytes, _Pod] = field(default_factory=dict, repr=False)
    replicas: Mapping[str, int] = field(default_factory=dict, repr=False)

    @property
    def shared_unknown(self) -> tuple[str, ...]:
        """Devices that are shared among nobody knows how many."""
        claims = (claim for claims in self.given.values() for claim in claims)
        return tuple(sorted({claim.device for claim in claims if claim.replicas == REPLICAS_UNKNOWN}))


NO_GRANTS: Final = Pods()


def parse_replicas(answer: AllocatableResourcesResponse) -> Mapping[str, int]:
    """Among how many each shared device is divided."""
    ids = {id_ for devices in answer.devices for id_ in devices.device_ids}
    meant = (_meant(_text(id_)) for id_ in ids)
    return Counter(device.name for device in meant if device is not None and device.shared)


def parse_pods(answer: ListPodResourcesResponse, replicas: Mapping[str, int], before: Pods = NO_GRANTS) -> Pods:
    """What a list says; ``before`` itself, if it says the same. The kubelet lists in any order."""
    pods = {raw: before.pods.get(raw) or _pod(raw) for raw in answer.pod_resources}
    if pods.keys() == before.pods.keys() and replicas == before.replicas:
        return before
    listed: dict[PodContainer, set[tuple[Claim, ...]]] = {}
    for where, devices in (each for pod in pods.values() for each in pod.given):
        claims = (Claim(device.name, _replicas(device, replicas)) for device in devices)
        listed.setdefault(where, set()).add(tuple(sorted(claims, key=str)))
    troubles = {trouble for pod in pods.values() for trouble in pod.troubles}
    troubles.update(_listed_twice(where) for where, each in listed.items() if len(each) > 1)
    given = {where: certain for where, each in listed.items() if (certain := _certain(each))}
    return Pods(before.given if given == before.given else given, tuple(sorted(troubles)), pods, replicas)


def _certain(listed: Set[tuple[Claim, ...]]) -> tuple[Claim, ...]:
    """What a container was given; if it is listed as several have it, what it may have been given.

    A pod that has ended and its successor, as those of a StatefulSet, have the same names, and for a while the kubelet
    lists both. Nothing in its list tells them apart.
    """
    if len(listed) == 1:
        return next(iter(listed))
    return tuple(sorted({claim._replace(possible=True) for claims in listed for claim in claims}, key=str))


def _listed_twice(where: PodContainer) -> str:
    name = "/".join(where)
    return f"{name[:200]!r} is listed twice with different devices: which are those of the one that runs is not known"


def _replicas(device: _Device, replicas: Mapping[str, int]) -> int | None:
    return replicas.get(device.name, REPLICAS_UNKNOWN) if device.shared else None


def _pod(raw: bytes) -> _Pod:
    try:
        pod = PodResources.FromString(raw)
    except DecodeError:
        return _Pod((), (f"a pod in the kubelet's list cannot be read ({len(raw):,} bytes)",))
    given: list[tuple[PodContainer, tuple[_Device, ...]]] = []
    troubles: list[str] = []
    for container in pod.containers:
        where = PodContainer(*(told(_text(name)) or "" for name in (pod.namespace, pod.name, container.name)))
        given.append((where, tuple(_devices(container, troubles))))
    return _Pod(tuple(given), tuple(troubles))


def _devices(container: ContainerResources, troubles: list[str]) -> Iterator[_Device]:
    for devices in container.devices:
        yield from _plugged(devices, troubles)
    for dynamic in container.dynamic_resources:
        for resource in dynamic.claim_resources:
            yield from _claimed(dynamic, resource, troubles)


def _plugged(devices: ContainerDevices, troubles: list[str]) -> Iterator[_Device]:
    """What a device plugin gave. Other vendors' devices are nobody's business here."""
    resource: str | None = None
    for raw in devices.device_ids:
        id_ = _text(raw)
        meant = _meant(id_)
        if meant is not None:
            yield meant
            continue
        resource = _text(devices.resource_name) if resource is None else resource
        if _OF_NVIDIA.match(id_) or _RESOURCE_OF_NVIDIA.fullmatch(resource):
            troubles.append(f"device {id_[:80]!r} of {resource[:80]!r}: which GPU that is cannot be told from its id")


def _claimed(dynamic: DynamicResource, resource: ClaimResource, troubles: list[str]) -> Iterator[_Device]:
    """What a driver of dynamic resource allocation gave."""
    by_uuid = [match["device"] for cdi in resource.cdi_devices if (match := _CDI_UUID.fullmatch(_text(cdi.name)))]
    if by_uuid:
        yield from (_Device(device) for device in by_uuid)
        return
    name = _text(resource.device_name)
    if _text(resource.driver_name) != _DRA_DRIVER or _DRA_VFIO.fullmatch(name):
        return  # another vendor's, or a GPU that was handed to a virtual machine and is out of the driver's sight
    if (gpu := _DRA_GPU.fullmatch(name)) is not None:
        yield _Device(f"nvidia{gpu['minor']}")
        return
    claim = f"{_text(dynamic.claim_namespace)}/{_text(dynamic.claim_name)}"
    troubles.append(f"device {name[:80]!r} of claim {claim[:200]!r}: which GPU that is cannot be told from its name")


def _meant(id_: str) -> _Device | None:
    """The device that an id stands for; ``None`` if it is not one of NVIDIA's forms."""
    replica = _REPLICA.fullmatch(id_)
    device = id_ if replica is None else replica["device"]
    return _Device(device, shared=replica is not None) if _DEVICE.fullmatch(device) else None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
