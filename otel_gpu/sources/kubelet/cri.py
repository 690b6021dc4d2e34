"""Names from the container runtime of a Kubernetes node (CRI): of every container, without asking the cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.errors import Unavailable, Unsupported
from otel_gpu.model import SourceState, WorkloadRef
from otel_gpu.sources.base import NameRead, PodContainer, WorkloadInfo
from otel_gpu.sources.beside import Board
from otel_gpu.sources.kubelet.containers import NO_CONTAINERS, Containers, parse_containers, parse_exited, parse_runtime
from otel_gpu.sources.kubelet.conversation import Conversation
from otel_gpu.sources.kubelet.proto.cri_pb2 import ListContainersResponse, VersionResponse
from otel_gpu.sources.unknown import Unknown, is_container

RELIST_S: Final = 120.0
"""How often it lists what is there, to learn who ended. A list of 500 containers takes 1.5 to 2 ms of CPU."""

EXPECTED_S: Final = 5.0
PATIENT_S: Final = 15.0
"""How soon it lists again while a container that was given a GPU does not run: at first, and after some times."""

ENDED_S: Final = 15.0
"""How often it asks who has ended, while somebody who was given a GPU runs. Of few that have, that takes 0.4 ms."""

LEAST_S: Final = 1.0
"""Between two lists, whoever asks."""

_VERSION: Final = "/runtime.v1.RuntimeService/Version"
_LIST: Final = "/runtime.v1.RuntimeService/ListContainers"
_EXITED_ONLY: Final = bytes((0x0A, 4, 0x12, 2, 0x08, 2))
"""ListContainersRequest with filter (1), in it state (2), in it state (1): CONTAINER_EXITED (2)."""


class CriSource:
    """Lists a runtime's containers: at first, when somebody unknown turns up, and now and then.

    ``expected`` are containers that the kubelet has given something, the same object while they are the same: until
    they run it looks more often, and then whether they have ended. A container that is restarted is another one, and
    what was given is that one's.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        clock: Clock,
        timeout_s: float = 5.0,
        labels: Collection[str] = (),
        expected: Callable[[], Collection[PodContainer]] = tuple,
        relist_s: float = RELIST_S,
        name: str = "cri",
    ) -> None:
        self.name = name
        self._clock = clock
        self._labels = frozenset(labels)
        self._expected = expected
        self._relist_s = relist_s
        self._board = Board()
        self._conversation = Conversation(name, endpoint, self._board, self._talk, timeout_s=timeout_s, clock=clock)
        self._runtime: str | None = None
        self._listed = NO_CONTAINERS
        self._there: Mapping[str, PodContainer] = {}
        self._missing: frozenset[PodContainer] = frozenset()
        self._missing_of: frozenset[PodContainer] = frozenset()
        self._expected_of: Collection[PodContainer] = ()
        self._there_of: Mapping[str, PodContainer] = self._there
        self._patience_s = EXPECTED_S
        self._unknown = Unknown(is_container)
        # Ids that were asked for, and those among them that the newest list does not have. Both are replaced as a
        # whole, by one thread each.
        self._asked: frozenset[str] = frozenset()
        self._unlisted: frozenset[str] = frozenset()

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        """What is known by now. An id that nobody knows is looked for once, and in every later list."""
        self._conversation.start()
        answer = self._board.read()
        self._asked = frozenset(ref.id for ref in self._unknown.among(workloads, answer.known))
        wanted = self._asked - self._unlisted
        if wanted or self._expected() is not self._expected_of:
            self._conversation.wake()
        if not wanted:
            return answer
        return answer if answer.state is SourceState.UNAVAILABLE else replace(answer, pending=wanted)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first list; false if that takes longer."""
        return self._board.wait(timeout_s)

    def close(self) -> None:
        """Ask no more."""
        self._conversation.close()

    # -- on its own thread --------------------------------------------------------------

    def _talk(self) -> None:
        self._meet()
        while self._conversation.goes_on:
            self._list()
            self._rest()

    def _meet(self) -> None:
        try:
            runtime = parse_runtime(self._conversation.ask(_VERSION, VersionResponse))
        except Unsupported as error:
            raise Unavailable(f"{error}; of containerd: take cri out of disabled_plugins in its config.toml") from None
        if runtime != self._runtime:
            self._runtime, self._listed = runtime, NO_CONTAINERS

    def _list(self) -> None:
        asked, before = self._asked, self._listed
        answer = self._conversation.ask(_LIST, ListContainersResponse)
        now = self._listed = parse_containers(answer, before, runtime=self._runtime, labels=self._labels)
        if now.known is not self._board.known:
            self._board.know(now.known)
            self._there = dict(_running(now.known))
        self._unlisted = asked - now.known.keys()
        missing = self._missing_now()
        again = bool(missing) and missing == self._missing
        self._patience_s = min(PATIENT_S, self._patience_s * 2) if again else EXPECTED_S
        self._missing = missing
        self._tell(now, new=len(now.troubles.keys() - before.troubles.keys()))

    def _tell(self, now: Containers, new: int) -> None:
        if not now.troubles:
            self._board.well()
            return
        first = min(now.troubles.values())
        more = f" (and {len(now.troubles) - 1} more)" if len(now.troubles) > 1 else ""
        self._board.degraded(f"{first}{more}", errors=new)

    def _rest(self) -> None:
        """Wait until it is time for the next list."""
        begun_ns = looked_ns = self._clock.monotonic_ns()
        while self._conversation.goes_on:
            now_ns = self._clock.monotonic_ns()
            left_s = self._pause_s() - (now_ns - begun_ns) / 1e9
            look_s = ENDED_S - (now_ns - looked_ns) / 1e9
            if left_s <= 0.0 or (look_s <= 0.0 and self._has_ended()):
                return
            if look_s <= 0.0:
                looked_ns, look_s = now_ns, ENDED_S
            # Or until somebody unknown turns up, or is expected.
            self._conversation.rest(min(left_s, look_s))

    def _has_ended(self) -> bool:
        """Whether somebody who was given a GPU has ended since the newest list."""
        expected = self._expected()
        if not expected:
            return False
        answer = self._conversation.ask(_LIST, ListContainersResponse, _EXITED_ONLY)
        return any(self._there.get(id_) in expected for id_ in parse_exited(answer))

    def _pause_s(self) -> float:
        wanted = self._asked - self._unlisted
        if wanted and wanted - self._listed.known.keys():
            return min(self._relist_s, LEAST_S)
        missing = self._missing_now()
        if not missing:
            return self._relist_s
        return min(self._relist_s, self._patience_s if missing == self._missing else EXPECTED_S)

    def _missing_now(self) -> frozenset[PodContainer]:
        expected = self._expected()
        if expected is not self._expected_of or self._there is not self._there_of:
            self._expected_of, self._there_of = expected, self._there
            self._missing_of = frozenset(expected).difference(self._there.values())
        return self._missing_of


def _running(known: Mapping[str, WorkloadInfo]) -> Iterator[tuple[str, PodContainer]]:
    """Those that run, by their ids: of one that ended, a next attempt is expected."""
    for id_, each in known.items():
        names = each.names
        if each.running and names.namespace and names.pod and names.container:
            yield id_, PodContainer(names.namespace, names.pod, names.container)
