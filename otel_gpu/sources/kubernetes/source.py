"""Names of this node's containers and labels of its pods from the Kubernetes API: listed once, then watched.

Kubernetes API concepts, "Efficient detection of changes": a list says which version it is of, a watch tells all that
changed since, and when a version is too old to go on from (410 Gone) there is a new list. Needs list and watch
on pods, nothing else, and asks for this node's only.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.errors import Gone, Unavailable
from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import NameRead
from otel_gpu.sources.beside import Beside, Board
from otel_gpu.sources.kubernetes.api import Api, ApiServer, Busy
from otel_gpu.sources.kubernetes.pods import Failure, Pod, parse_event, parse_list
from otel_gpu.sources.kubernetes.roster import Roster
from otel_gpu.sources.unknown import Unknown

SETTLE_S: Final = 6.0
"""How long a container can run before the kubelet has told the API its id. It usually takes a second or two."""

_PODS: Final = "/api/v1/pods"
_PAGE: Final = 500
_MOST_PAGES: Final = 200

_WATCH_S: Final = 300
_WATCH_SPREAD_S: Final = 60
_WATCH_SLACK_S: Final = 15.0  # beyond what was asked for, a connection that says nothing is dead
_SHORT_S: Final = 1.0  # a watch that ends sooner is a failure, and the next waits as after one

# Runtimes of Kubernetes, as cgroups tell them. Where those do not show the pod, any other runtime rules it out.
_RUNTIMES: Final = (None, "containerd", "cri-o")


class KubernetesSource:
    """Knows the containers of this node's pods, and these labels of the pods, by what the API server says."""

    def __init__(
        self,
        server: ApiServer,
        *,
        node_name: str,
        labels: Collection[str] = (),
        clock: Clock,
        timeout_s: float = 5.0,
        name: str = "kubernetes",
    ) -> None:
        self._name = name
        self._node_name = node_name
        self._labels = tuple(sorted(set(labels)))
        self._clock = clock
        self._api = Api(server, clock, timeout_s)
        self._board = Board()
        self._beside = Beside(name, self._board, self._follow)
        self._unknown = Unknown(_may_be_a_pods)
        self._asked_s: dict[str, float] = {}  # unknown containers: when they were asked for first
        # What follows is the thread's own.
        self._roster = Roster()
        self._version: str | None = None
        self._missed: str | None = None
        self._troubles = 0

    @property
    def name(self) -> str:
        """Its name in ``sources`` and in ``otel_gpu.source``."""
        return self._name

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        """What the API said by now. Asks nothing: the watch is open."""
        self._beside.start()
        answered = self._board.told
        read = self._board.read()
        unknown = {ref.id for ref in self._unknown.among(workloads, read.known)}
        pending = self._pending(unknown, answered=answered, away=read.state is SourceState.UNAVAILABLE)
        return replace(read, pending=pending) if pending else read

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first list; false if that takes longer."""
        self._beside.start()
        return self._board.wait(timeout_s)

    def close(self) -> None:
        """End the watch."""
        self._api.close()
        self._beside.stop()

    def _pending(self, unknown: set[str], *, answered: bool, away: bool) -> frozenset[str]:
        """Whom the API may still tell: all during the first list, then those that are asked for only just now."""
        now_s = self._now_s()
        self._asked_s = {container_id: self._asked_s.get(container_id, now_s) for container_id in unknown}
        if not answered:
            return frozenset(unknown)
        if away:
            return frozenset()
        return frozenset(unknown_id for unknown_id, asked_s in self._asked_s.items() if now_s - asked_s < SETTLE_S)

    # ------------------------------------------------------------------------ the thread

    def _follow(self, beside: Beside) -> None:
        while not beside.stopping:
            try:
                version = self._version or self._list()
                began_s = self._now_s()
                self._watch(version)
            except Busy as busy:
                self._board.unavailable(str(busy))
                beside.sleep(busy.wait_s)
                continue
            if self._now_s() - began_s < _SHORT_S:
                return  # to come again after a while
            beside.well()

    def _list(self) -> str:
        """Take in all pods of the node; the version that they are of."""
        # Version 0 is whatever the server has in memory, where pods are indexed by node; without one, it would read
        # every pod of the cluster from etcd, for every node. It may be old: the watch brings what came since. Such a
        # list comes whole whatever the limit. A server that divides it all the same may forget the rest (410).
        for version in ("0", None, None):
            try:
                pods, listed = self._pages(version)
            except Gone:
                continue
            self._version, self._missed = listed, None
            self._roster.replace(pods, self._now_s())
            self._tell()
            return listed
        raise Unavailable("the list of pods expired before its end, three times; is the API server overloaded?")

    def _pages(self, version: str | None) -> tuple[dict[str, Pod], str]:
        pods: dict[str, Pod] = {}
        query = self._query(limit=_PAGE) if version is None else self._query(limit=_PAGE, resourceVersion=version)
        for _ in range(_MOST_PAGES):
            page = parse_list(self._api.get(_PODS, query), self._labels)
            if page is None:
                raise Unavailable("the answer is no list of pods; is that the API server?")
            pods |= {pod.uid: pod for pod in page.pods}
            if page.rest is None:
                return pods, page.version
            query = self._query(limit=_PAGE, **{"continue": page.rest})  # with it, no version is allowed
        raise Unavailable(f"the list of pods does not end after {_MOST_PAGES} pages")

    def _watch(self, version: str) -> None:
        """What changes after this version, until the server ends it, as it does every few minutes."""
        # Not all nodes of a cluster at the same time.
        watch_s = _WATCH_S + zlib.crc32(self._node_name.encode("utf-8", "replace")) % _WATCH_SPREAD_S
        query = self._query(watch=1, allowWatchBookmarks="true", resourceVersion=version, timeoutSeconds=watch_s)
        agreed = False
        try:
            with closing(self._api.stream(_PODS, query, watch_s + _WATCH_SLACK_S)) as batches:
                for lines in batches:
                    agreed = True
                    for line in lines:
                        self._heard(line)
                    self._tell()
        except Gone:
            self._version = None
        except Unavailable as error:
            if not agreed or isinstance(error, _Ended):
                raise
            # Nothing is lost: what was cut off comes again after the last version that was heard of.
            self._board.degraded(f"{error}; the watch goes on over a new one")
        if self._missed is not None:
            self._version = None

    def _heard(self, line: bytes | None) -> None:
        """One event of a watch."""
        event = None if line is None else parse_event(line, self._labels)
        if event is None:
            # Whom it was about is not known: a list when this watch is over makes up for it.
            self._troubles += 1
            self._missed = "was too long" if line is None else "made no sense"
            return
        if isinstance(event, Failure):
            self._version = None
            raise Gone(event.text) if event.expired else _Ended(event.text)
        if event.pod is not None:
            (self._roster.remove if event.deleted else self._roster.put)(event.pod, self._now_s())
        self._version = event.version

    def _tell(self) -> None:
        """Leave on the board what is known, and how things are."""
        self._roster.forget(self._now_s())
        if (known := self._roster.known) is not self._board.known:
            self._board.know(known)
        errors = self._troubles + self._roster.troubles
        self._troubles = self._roster.troubles = 0
        missed = None if self._missed is None else f"an event {self._missed}; all is listed again in minutes"
        if (reason := missed or self._roster.trouble) is not None:
            self._board.degraded(reason, errors=errors)
        else:
            self._board.well()

    def _query(self, **options: str | int) -> dict[str, str | int]:
        return {"fieldSelector": f"spec.nodeName={self._node_name}", **options}

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9


class _Ended(Unavailable):
    """The server ended a watch with an error of its own."""


def _may_be_a_pods(ref: WorkloadRef) -> bool:
    return ref.kind is WorkloadKind.CONTAINER and (ref.pod_uid is not None or ref.runtime in _RUNTIMES)
