"""Grants of GPUs to containers of pods, from the kubelet's pod-resources API."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.errors import OtelGpuError, Unsupported
from otel_gpu.model import WorkloadRef
from otel_gpu.sources.base import NameRead, PodContainer
from otel_gpu.sources.names.grpc_poller import GrpcPoller
from otel_gpu.sources.names.podresources.devices import NO_GRANTS, PodGrants, parse_pods, parse_replicas
from otel_gpu.sources.names.podresources.proto.podresources_pb2 import (
    AllocatableResourcesResponse,
    ListPodResourcesResponse,
)
from otel_gpu.sources.names.poller import PublishedNames

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
        self._published = PublishedNames()
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
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            self._published.set_degraded(f"{problems[0]}{more}", errors=len(new))
        else:
            self._published.set_ok()


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
