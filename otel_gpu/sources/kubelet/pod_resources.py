"""Which containers of pods were given which GPUs, from the kubelet's own list (pod-resources)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.errors import OtelGpuError, Unsupported
from otel_gpu.model import WorkloadRef
from otel_gpu.sources.base import NameRead, PodContainer
from otel_gpu.sources.beside import Board
from otel_gpu.sources.kubelet.conversation import Conversation
from otel_gpu.sources.kubelet.devices import NO_GRANTS, Pods, parse_pods, parse_replicas
from otel_gpu.sources.kubelet.proto.podresources_pb2 import AllocatableResourcesResponse, ListPodResourcesResponse

POLL_S: Final = 15.0
"""How often it lists; the kubelet has no events for this. A list of 250 pods takes 0.5 ms of CPU."""

LEAST_S: Final = 1.0
"""Between two lists, whoever turns up. The kubelet refuses more than 100 requests a second, of all its clients."""

ALLOCATABLE_S: Final = 300.0
ALLOCATABLE_SOON_S: Final = 60.0
"""How often it asks among how many devices are shared; the second while there is a device of which that is unknown."""

_NOT_ALLOCATABLE: Final = "the kubelet does not list it as allocatable"
_LIST: Final = "/v1.PodResourcesLister/List"
_ALLOCATABLE: Final = "/v1.PodResourcesLister/GetAllocatableResources"


class PodResourcesSource:
    """Lists what the kubelet gave. It knows names of pods, and no ids: whoever knows both joins them."""

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
        self._board = Board()
        self._conversation = Conversation(name, endpoint, self._board, self._talk, timeout_s=timeout_s, clock=clock)
        self._sharing = _Sharing(self._conversation, clock)
        self._pods = NO_GRANTS
        self._given: Collection[PodContainer] = NO_GRANTS.given.keys()
        self._troubles: frozenset[str] = frozenset()
        self._workloads: Collection[WorkloadRef] = ()
        self._seen: frozenset[str] = frozenset()

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        """What was given by now. A pod that is new on a GPU was given it just before: that is looked up at once."""
        self._conversation.start()
        if workloads is not self._workloads:
            seen = frozenset(ref.id for ref in workloads if ref.pod_uid is not None)
            if not seen <= self._seen:
                self._conversation.wake()
            self._workloads, self._seen = workloads, seen
        return self._board.read()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first list; false if that takes longer."""
        return self._board.wait(timeout_s)

    def given(self) -> Collection[PodContainer]:
        """The containers that were given a GPU, as of the newest list; the same object while they are the same."""
        return self._given

    def close(self) -> None:
        """Ask no more."""
        self._conversation.close()

    # -- on its own thread --------------------------------------------------------------

    def _talk(self) -> None:
        self._sharing.begin()
        while self._conversation.goes_on:
            answer = self._conversation.ask(_LIST, ListPodResourcesResponse)
            self._sharing.refresh(soon=bool(self._pods.shared_unknown))
            pods = parse_pods(answer, self._sharing.replicas, self._pods)
            if pods.given is not self._pods.given:
                self._board.know_pods(pods.given)
                self._given = pods.given.keys()
            self._pods = pods
            self._tell(pods)
            if self._conversation.rest(self._poll_s):
                self._conversation.rest(LEAST_S)

    def _tell(self, pods: Pods) -> None:
        """Say what was not understood. Each is an error once, for as long as it lasts."""
        troubles = pods.troubles
        if pods.shared_unknown:
            device, others = pods.shared_unknown[0], len(pods.shared_unknown) - 1
            more = f" (and {others} more)" if others else ""
            troubles = (*troubles, f"among how many {device}{more} is shared is not known: {self._sharing.trouble}")
        new = frozenset(troubles) - self._troubles
        self._troubles = frozenset(troubles)
        if troubles:
            more = f" (and {len(troubles) - 1} more)" if len(troubles) > 1 else ""
            self._board.degraded(f"{troubles[0]}{more}", errors=len(new))
        else:
            self._board.well()


class _Sharing:
    """Among how many a kubelet's devices are shared, as far as it tells: old ones do not."""

    def __init__(self, conversation: Conversation, clock: Clock) -> None:
        self.replicas: Mapping[str, int] = {}
        self.trouble = _NOT_ALLOCATABLE
        self._conversation = conversation
        self._clock = clock
        self._asked_ns: int | None = None
        self._never = False

    def begin(self) -> None:
        """The kubelet may be another one: ask it."""
        self._asked_ns, self._never = None, False

    def refresh(self, *, soon: bool) -> None:
        """Ask, if it is time. That it fails costs the figure, not the list."""
        now_ns = self._clock.monotonic_ns()
        pause_s = ALLOCATABLE_SOON_S if soon else ALLOCATABLE_S
        if self._never or (self._asked_ns is not None and now_ns - self._asked_ns < pause_s * 1e9):
            return
        self._asked_ns = now_ns
        try:
            self.replicas = parse_replicas(self._conversation.ask(_ALLOCATABLE, AllocatableResourcesResponse))
            self.trouble = _NOT_ALLOCATABLE
        except OtelGpuError as error:
            self._never = isinstance(error, Unsupported)
            self.trouble = str(error)
