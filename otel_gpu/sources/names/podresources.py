"""Grants of GPUs to containers of pods, from the kubelet's pod-resources API.

Resources can be renamed, so devices are recognised by their ids:

* NVIDIA's plugin: ``GPU-<uuid>``, ``MIG-<uuid>``, ``MIG-GPU-<uuid>/<gi>/<ci>`` with old drivers. With time-slicing or
  MPS each replica is a device, ``GPU-<uuid>::<n>`` (k8s-device-plugin, internal/rm/device_map.go).
* GKE's plugin: ``nvidia<minor>``, ``nvidia<minor>/gi<n>``, shared ``…/vgpu<n>`` (container-engine-accelerators,
  gpusharing.go).
* NVIDIA's DRA driver: ``gpu-<minor>``, for MIG ``gpu-<minor>-mig-<profile>-<id>-<start>`` (k8s-dra-driver-gpu,
  deviceinfo.go, mig.go), which does not identify the instance.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from otel_gpu.clock import Clock
from otel_gpu.errors import OtelGpuError, Unsupported
from otel_gpu.model import WorkloadRef
from otel_gpu.sources.base import KUBERNETES, NO_PODS, Claim, NameRead, PodContainer
from otel_gpu.sources.names.grpc_client import GrpcPoller
from otel_gpu.sources.names.poller import PublishedNames
from otel_gpu.sources.names.proto.podresources_pb2 import (
    AllocatableResourcesResponse,
    ClaimResource,
    ContainerDevices,
    ContainerResources,
    DynamicResource,
    ListPodResourcesResponse,
    PodResources,
)
from otel_gpu.sources.names.untrusted import MAX_NAME_BYTES, sanitize

POLL_S: Final = 15.0
"""Interval of lists; the kubelet has no events for this. A list of 250 pods takes 0.5 ms of CPU."""

MIN_PAUSE_S: Final = 1.0
"""Shortest interval between two lists. The kubelet refuses more than 100 requests a second from all its clients."""

ALLOCATABLE_S: Final = 300.0
ALLOCATABLE_SOON_S: Final = 60.0
"""Interval of queries for replicas; the second one while the number of replicas of a device is unknown."""

_NOT_ALLOCATABLE: Final = "the kubelet does not list it as allocatable"
_LIST: Final = "/v1.PodResourcesLister/List"
_ALLOCATABLE: Final = "/v1.PodResourcesLister/GetAllocatableResources"


class PodResourcesSource:
    """Knows the claims of pods' containers by name. It does not know container ids: the resolver joins the two."""

    def __init__(
        self,
        endpoint: str,
        *,
        clock: Clock,
        timeout_s: float = 5.0,
        poll_s: float = POLL_S,
        name: str = "pod-resources",
    ) -> None:
        self.name = name
        self._poll_s = poll_s
        self._published = PublishedNames(KUBERNETES)
        self._poller = GrpcPoller(name, endpoint, self._published, self._poll, timeout_s=timeout_s, clock=clock)
        self._replicas = _ReplicaCounts(self._poller, clock)
        self._grants = NO_GRANTS
        self._granted: frozenset[PodContainer] = frozenset()
        self._problems: frozenset[str] = frozenset()
        self._seen: frozenset[str] = frozenset()

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        """The latest answer. A new pod on a GPU was granted it just before, so it starts a new list."""
        self._poller.start()
        seen = frozenset(ref.id for ref in workloads if ref.pod_uid is not None)
        if not seen <= self._seen:
            self._poller.wake()
        self._seen = seen
        return self._published.read()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first list; false if that takes longer than ``timeout_s``."""
        return self._published.wait(timeout_s)

    def granted(self) -> frozenset[PodContainer]:
        """The containers that have a GPU in the latest list."""
        return self._granted

    def close(self) -> None:
        """Stop polling."""
        self._poller.close()

    # -- on the thread --------------------------------------------------------------------

    def _poll(self) -> None:
        self._replicas.reset()
        while not self._poller.stopping:
            answer = self._poller.call(_LIST, ListPodResourcesResponse)
            self._replicas.refresh(soon=bool(self._grants.with_unknown_replicas))
            grants = parse_pods(answer, self._replicas.by_device, self._grants)
            if grants.claims is not self._grants.claims:
                self._published.publish_pods(grants.claims)
                self._granted = frozenset(grants.claims)
            self._grants = grants
            self._publish_state(grants)
            if self._poller.sleep(self._poll_s):
                self._poller.sleep(MIN_PAUSE_S)

    def _publish_state(self, grants: PodGrants) -> None:
        """Publish the problems. Each counts as one error while it lasts."""
        problems = grants.problems
        if grants.with_unknown_replicas:
            device, others = grants.with_unknown_replicas[0], len(grants.with_unknown_replicas) - 1
            more = f" (and {others} more)" if others else ""
            problems = (*problems, f"the number of replicas of {device}{more} is unknown: {self._replicas.problem}")
        new = frozenset(problems) - self._problems
        self._problems = frozenset(problems)
        self._published.set_problems(problems, errors=len(new))


class _ReplicaCounts:
    """The number of replicas of each shared device. Old kubelets do not list it."""

    def __init__(self, poller: GrpcPoller, clock: Clock) -> None:
        self.by_device: Mapping[str, int] = {}
        self.problem = _NOT_ALLOCATABLE
        self._poller = poller
        self._clock = clock
        self._queried_ns: int | None = None
        self._is_unsupported = False

    def reset(self) -> None:
        """Query again: after a failure the kubelet may be another version."""
        self._queried_ns, self._is_unsupported = None, False

    def refresh(self, *, soon: bool) -> None:
        """Query the kubelet if it is time. A failure costs the counts, not the list."""
        now_ns = self._clock.monotonic_ns()
        pause_s = ALLOCATABLE_SOON_S if soon else ALLOCATABLE_S
        if self._is_unsupported or (self._queried_ns is not None and now_ns - self._queried_ns < pause_s * 1e9):
            return
        self._queried_ns = now_ns
        try:
            self.by_device = parse_replicas(self._poller.call(_ALLOCATABLE, AllocatableResourcesResponse))
            self.problem = _NOT_ALLOCATABLE
        except OtelGpuError as error:
            self._is_unsupported = isinstance(error, Unsupported)
            self.problem = str(error)


# ---------------------------------------------------------------------------- parsing; accepts any content

REPLICAS_UNKNOWN: Final = 0
"""``Claim.replicas`` of a shared device whose number of replicas is unknown."""

_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_DEVICE: Final = re.compile(
    rf"(?:GPU-{_UUID}|MIG-{_UUID}|MIG-GPU-{_UUID}/\d{{1,3}}/\d{{1,3}}|nvidia\d{{1,4}}(?:/gi\d{{1,3}})?)"
)
_REPLICA: Final = re.compile(r"(?P<device>.+)(?:::|/vgpu)\d{1,6}")
_NVIDIA_ID: Final = re.compile(r"GPU-|MIG-|nvidia\d")
_NVIDIA_RESOURCE: Final = re.compile(r"nvidia\.com/(?:gpu|mig-).*")

_DRA_DRIVER: Final = "gpu.nvidia.com"
_DRA_GPU: Final = re.compile(r"gpu-(?P<minor>\d{1,4})")
_DRA_VFIO: Final = re.compile(r"gpu-vfio-\d+")
_CDI_UUID: Final = re.compile(rf"nvidia\.com/[^=]+=(?P<device>(?:GPU|MIG)-{_UUID})")


class _Device(NamedTuple):
    name: str
    shared: bool = False


class _Pod(NamedTuple):
    """A pod: the devices of each of its containers, and the problems found."""

    devices: tuple[tuple[PodContainer, tuple[_Device, ...]], ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PodGrants:
    """The claims of containers of pods, and the problems found; ``pods`` and ``replicas`` are what they come from."""

    claims: Mapping[PodContainer, tuple[Claim, ...]] = field(default_factory=lambda: NO_PODS)
    problems: tuple[str, ...] = ()
    pods: Mapping[bytes, _Pod] = field(default_factory=dict, repr=False)
    replicas: Mapping[str, int] = field(default_factory=dict, repr=False)

    @property
    def with_unknown_replicas(self) -> tuple[str, ...]:
        """Shared devices whose number of replicas is unknown."""
        claims = (claim for claims in self.claims.values() for claim in claims)
        return tuple(sorted({claim.device for claim in claims if claim.replicas == REPLICAS_UNKNOWN}))


NO_GRANTS: Final = PodGrants()


def parse_replicas(answer: AllocatableResourcesResponse) -> Mapping[str, int]:
    """The number of replicas of each shared device."""
    ids = {id_ for devices in answer.devices for id_ in devices.device_ids}
    devices = (_parse_id(_text(id_)) for id_ in ids)
    return Counter(device.name for device in devices if device is not None and device.shared)


def parse_pods(
    answer: ListPodResourcesResponse, replicas: Mapping[str, int], before: PodGrants = NO_GRANTS
) -> PodGrants:
    """The grants in a list; ``before`` itself if nothing has changed. The kubelet lists in any order."""
    pods = {raw: before.pods.get(raw) or _parse_pod(raw) for raw in answer.pod_resources}
    if pods.keys() == before.pods.keys() and replicas == before.replicas:
        return before
    listed: dict[PodContainer, set[tuple[Claim, ...]]] = {}
    for container, devices in (each for pod in pods.values() for each in pod.devices):
        claims = (Claim(device.name, _replicas(device, replicas)) for device in devices)
        listed.setdefault(container, set()).add(tuple(sorted(claims, key=str)))
    problems = {problem for pod in pods.values() for problem in pod.problems}
    problems.update(_listed_twice(container) for container, each in listed.items() if len(each) > 1)
    granted = {container: merged for container, each in listed.items() if (merged := _merge(each))}
    return PodGrants(before.claims if granted == before.claims else granted, tuple(sorted(problems)), pods, replicas)


def _merge(listed: Set[tuple[Claim, ...]]) -> tuple[Claim, ...]:
    """The claims of a container. If it is listed twice with different ones, each of them is only possible.

    An ended pod and its successor, as in a StatefulSet, have the same name, and the kubelet lists both for a while.
    """
    if len(listed) == 1:
        return next(iter(listed))
    return tuple(sorted({claim._replace(possible=True) for claims in listed for claim in claims}, key=str))


def _listed_twice(container: PodContainer) -> str:
    name = "/".join(container)
    return f"{name[:200]!r} is listed twice with different devices; its current devices are unknown"


def _replicas(device: _Device, replicas: Mapping[str, int]) -> int | None:
    return replicas.get(device.name, REPLICAS_UNKNOWN) if device.shared else None


def _parse_pod(raw: bytes) -> _Pod:
    try:
        pod = PodResources.FromString(raw)
    except DecodeError:
        return _Pod((), (f"cannot decode a pod in the kubelet's list ({len(raw):,} bytes)",))
    devices: list[tuple[PodContainer, tuple[_Device, ...]]] = []
    problems: list[str] = []
    for container in pod.containers:
        key = PodContainer(
            *(sanitize(_text(name), MAX_NAME_BYTES) or "" for name in (pod.namespace, pod.name, container.name))
        )
        devices.append((key, tuple(_devices(container, problems))))
    return _Pod(tuple(devices), tuple(problems))


def _devices(container: ContainerResources, problems: list[str]) -> Iterator[_Device]:
    for devices in container.devices:
        yield from _plugin_devices(devices, problems)
    for dynamic in container.dynamic_resources:
        for resource in dynamic.claim_resources:
            yield from _dra_devices(dynamic, resource, problems)


def _plugin_devices(devices: ContainerDevices, problems: list[str]) -> Iterator[_Device]:
    """The GPUs that a device plugin granted. Other vendors' devices are skipped."""
    resource: str | None = None
    for raw in devices.device_ids:
        id_ = _text(raw)
        device = _parse_id(id_)
        if device is not None:
            yield device
            continue
        resource = _text(devices.resource_name) if resource is None else resource
        if _NVIDIA_ID.match(id_) or _NVIDIA_RESOURCE.fullmatch(resource):
            problems.append(f"device {id_[:80]!r} of {resource[:80]!r}: its id does not identify a GPU")


def _dra_devices(dynamic: DynamicResource, resource: ClaimResource, problems: list[str]) -> Iterator[_Device]:
    """The GPUs that a driver of dynamic resource allocation (DRA) granted."""
    by_uuid = [match["device"] for cdi in resource.cdi_devices if (match := _CDI_UUID.fullmatch(_text(cdi.name)))]
    if by_uuid:
        yield from (_Device(device) for device in by_uuid)
        return
    name = _text(resource.device_name)
    if _text(resource.driver_name) != _DRA_DRIVER or _DRA_VFIO.fullmatch(name):
        return  # another vendor's, or a GPU passed through to a virtual machine, which the driver does not see
    if (gpu := _DRA_GPU.fullmatch(name)) is not None:
        yield _Device(f"nvidia{gpu['minor']}")
        return
    claim = f"{_text(dynamic.claim_namespace)}/{_text(dynamic.claim_name)}"
    problems.append(f"device {name[:80]!r} of claim {claim[:200]!r}: its name does not identify a GPU")


def _parse_id(id_: str) -> _Device | None:
    """The device with an id; ``None`` if the id does not have one of NVIDIA's forms."""
    replica = _REPLICA.fullmatch(id_)
    device = id_ if replica is None else replica["device"]
    return _Device(device, shared=replica is not None) if _DEVICE.fullmatch(device) else None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
