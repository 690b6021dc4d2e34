"""Names of this node's containers and labels of its pods from the Kubernetes API: listed once, then watched.

Kubernetes API concepts, "Efficient detection of changes": a list has a version, a watch returns all changes after it,
and a version that is too old (410 Gone) takes a new list. Needs list and watch on pods; requests this node's only.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.errors import Gone, Unavailable
from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import KUBERNETES, NameRead, WorkloadInfo
from otel_gpu.sources.names.kubernetes.api import ApiClient, ApiServer, Busy, TooLargeAnswer
from otel_gpu.sources.names.kubernetes.pods import Failure, PodInfo, parse_event, parse_list
from otel_gpu.sources.names.poller import Poller, PublishedNames

SETTLE_S: Final = 6.0
"""How long the kubelet may take to report a new container to the API. It usually takes a second or two."""

_PODS: Final = "/api/v1/pods"
_PAGE_SIZE: Final = 500
_SMALL_PAGE_SIZE: Final = 50
"""Pods on a page where 500 are over the limit of an answer. A pod has at most 1.5 MiB, and usually 30 KiB."""
_MAX_PAGES: Final = 200
_LIST_ATTEMPTS: Final = 3

_WATCH_S: Final = 300
_WATCH_SPREAD_S: Final = 60
_WATCH_SLACK_S: Final = 15.0  # a watch that is open for longer than requested is dead
_MIN_WATCH_S: Final = 1.0  # a watch that ends sooner counts as a failure

# Runtimes of Kubernetes in cgroups. A container whose cgroup shows no pod is a pod's only with one of these.
_RUNTIMES: Final = (None, "containerd", "cri-o")


class KubernetesSource:
    """Knows the containers of this node's pods; ``labels`` are the keys of the pod labels to export."""

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
        self._api = ApiClient(server, clock, timeout_s)
        self._published = PublishedNames(KUBERNETES)
        self._poller = Poller(name, self._published, self._poll)
        self._first_seen_s: dict[str, float] = {}  # unknown containers
        # Used by the thread only:
        self._registry = PodRegistry()
        self._version: str | None = None
        self._missed: str | None = None  # why an event could not be read
        self._errors = 0

    @property
    def name(self) -> str:
        """Its name in ``sources`` and in ``otel_gpu.source``."""
        return self._name

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        """The latest answer. Sends no request: the watch is open."""
        self._poller.start()
        has_answered = self._published.has_answered
        read = self._published.read()
        unknown = {ref.id for ref in workloads if ref.id not in read.known and _may_be_in_pod(ref)}
        pending = self._pending(unknown, has_answered=has_answered, state=read.state)
        return replace(read, pending=pending) if pending else read

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first list; false if that takes longer than ``timeout_s``."""
        self._poller.start()
        return self._published.wait(timeout_s)

    def close(self) -> None:
        """End the watch and stop polling."""
        self._api.close()
        self._poller.stop()

    def _pending(self, unknown: set[str], *, has_answered: bool, state: SourceState) -> frozenset[str]:
        """Containers that the API may still report: all during the first list, then those seen a short time ago."""
        now_s = self._now_s()
        self._first_seen_s = {container_id: self._first_seen_s.get(container_id, now_s) for container_id in unknown}
        if not has_answered:
            return frozenset(unknown)
        if state is SourceState.UNAVAILABLE:
            return frozenset()
        return frozenset(
            container_id for container_id, seen_s in self._first_seen_s.items() if now_s - seen_s < SETTLE_S
        )

    # ------------------------------------------------------------------------ on the thread

    def _poll(self, poller: Poller) -> None:
        while not poller.stopping:
            try:
                version = self._version or self._list()
                start_s = self._now_s()
                self._watch(version)
            except Busy as busy:
                self._published.set_unavailable(str(busy))
                poller.sleep(busy.wait_s)
                continue
            if self._now_s() - start_s < _MIN_WATCH_S:
                return  # the poller calls again after a pause
            poller.reset_backoff()

    def _list(self) -> str:
        """Read all pods of the node; returns the version of the list."""
        # Version 0 is answered from the server's memory, where pods are indexed by node. Without a version the server
        # reads every pod of the cluster from etcd, for every node. The list may be old: the watch adds what is new. It
        # is not divided into pages, unless it is too large. A server that divides it may drop the rest (410).
        version: str | None = "0"
        page_size = _PAGE_SIZE
        for _ in range(_LIST_ATTEMPTS):
            try:
                pods, listed = self._pages(version, page_size)
            except Gone:
                version = None
                continue
            except TooLargeAnswer:
                if page_size == _SMALL_PAGE_SIZE:
                    raise
                version, page_size = None, _SMALL_PAGE_SIZE
                continue
            self._version, self._missed = listed, None
            self._registry.replace(pods, self._now_s())
            self._publish()
            return listed
        raise Unavailable("the list of pods expired before its end three times; the API server may be overloaded")

    def _pages(self, version: str | None, page_size: int) -> tuple[dict[str, PodInfo], str]:
        pods: dict[str, PodInfo] = {}
        query = self._query(limit=page_size)
        if version is not None:
            query["resourceVersion"] = version
        for _ in range(_MAX_PAGES):
            page = parse_list(self._api.get(_PODS, query), self._labels)
            if page is None:
                raise Unavailable("the answer is not a list of pods; is this the API server?")
            pods |= {pod.uid: pod for pod in page.pods}
            if page.continue_token is None:
                return pods, page.version
            query = self._query(limit=page_size, **{"continue": page.continue_token})  # allows no version beside it
        raise Unavailable(f"the list of pods does not end after {_MAX_PAGES} pages")

    def _watch(self, version: str) -> None:
        """Follow changes after this version until the server ends the watch, as it does every few minutes."""
        # Spread the watches of a cluster's nodes over time.
        watch_s = _WATCH_S + zlib.crc32(self._node_name.encode("utf-8", "replace")) % _WATCH_SPREAD_S
        query = self._query(watch=1, allowWatchBookmarks="true", resourceVersion=version, timeoutSeconds=watch_s)
        accepted = False
        try:
            with closing(self._api.stream(_PODS, query, watch_s + _WATCH_SLACK_S)) as batches:
                for lines in batches:
                    accepted = True
                    for line in lines:
                        self._apply_event(line)
                    self._publish()
        except Gone:
            self._version = None
        except Unavailable as error:
            if not accepted or isinstance(error, _Ended):
                raise
            # Nothing is lost: the next watch starts at the last version that was received.
            self._published.set_degraded(f"{error}; the watch continues on a new connection")
        if self._missed is not None:
            self._version = None

    def _apply_event(self, line: bytes | None) -> None:
        event = None if line is None else parse_event(line, self._labels)
        if event is None:
            # Its pod is unknown: a list at the end of this watch repairs that.
            self._errors += 1
            self._missed = "is too long" if line is None else "is not valid"
            return
        if isinstance(event, Failure):
            self._version = None
            raise Gone(event.text) if event.expired else _Ended(event.text)
        if event.pod is not None:
            (self._registry.remove if event.deleted else self._registry.put)(event.pod, self._now_s())
        self._version = event.version

    def _publish(self) -> None:
        self._registry.drop_expired(self._now_s())
        if (known := self._registry.known) is not self._published.known:
            self._published.publish(known)
        errors = self._errors + self._registry.problems
        self._errors = self._registry.problems = 0
        missed = None if self._missed is None else f"an event {self._missed}; pods are listed again within minutes"
        if (reason := missed or self._registry.problem) is not None:
            self._published.set_degraded(reason, errors=errors)
        else:
            self._published.set_ok()

    def _query(self, **options: str | int) -> dict[str, str | int]:
        return {"fieldSelector": f"spec.nodeName={self._node_name}", **options}

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9


class _Ended(Unavailable):
    """The server ended a watch with an error."""


def _may_be_in_pod(ref: WorkloadRef) -> bool:
    return ref.kind is WorkloadKind.CONTAINER and (ref.pod_uid is not None or ref.runtime in _RUNTIMES)


# ---------------------------------------------------------------------------- the pods of the node

ENDED_TTL_S: Final = 900.0
"""How long an ended container is kept: three times the default retention."""

MAX_ENDED: Final = 2_000
"""How many ended containers are kept at most: the limit of exported workloads."""


class PodRegistry:
    """Pods by their uids, and the containers they have or had. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._pods: dict[str, PodInfo] = {}
        self._ended: dict[str, tuple[float, WorkloadInfo]] = {}  # by when it ended
        self._with_problem: dict[str, None] = {}  # a set in the order of arrival
        self._known: dict[str, WorkloadInfo] | None = None
        self.problems = 0
        """How many pods with a problem were added."""

    def put(self, pod: PodInfo, now_s: float) -> None:
        """Add or update a pod."""
        before = self._pods.get(pod.uid)
        if before == pod:
            return
        self._pods[pod.uid] = pod
        self._note(pod, before)
        ids = {info.ref.id for info in pod.containers}
        for container_id in ids:
            self._ended.pop(container_id, None)
        containers_before = () if before is None else before.containers
        self._end((info for info in containers_before if info.ref.id not in ids), now_s)
        if pod.containers != containers_before:
            self._known = None

    def remove(self, pod: PodInfo, now_s: float) -> None:
        """Remove a deleted pod; ``pod`` is its last version."""
        self.put(pod, now_s)
        del self._pods[pod.uid]
        self._with_problem.pop(pod.uid, None)
        self._end(pod.containers, now_s)

    def replace(self, pods: Mapping[str, PodInfo], now_s: float) -> None:
        """Replace all pods."""
        for pod in [pod for uid, pod in self._pods.items() if uid not in pods]:
            self.remove(pod, now_s)
        for pod in pods.values():
            self.put(pod, now_s)

    def drop_expired(self, now_s: float) -> None:
        """Drop containers that ended long ago."""
        for container_id, (ended_s, _) in list(self._ended.items()):  # the oldest first
            if ended_s > now_s - ENDED_TTL_S and len(self._ended) <= MAX_ENDED:
                break
            del self._ended[container_id]
            self._known = None

    @property
    def known(self) -> Mapping[str, WorkloadInfo]:
        """Containers by their ids: the same mapping until something changes."""
        if self._known is None:
            self._known = {container_id: info for container_id, (_, info) in self._ended.items()}
            self._known |= {info.ref.id: info for pod in self._pods.values() for info in pod.containers}
        return self._known

    @property
    def problem(self) -> str | None:
        """The problem of one of the pods."""
        return next((self._pods[uid].problem for uid in self._with_problem), None)

    def _note(self, pod: PodInfo, before: PodInfo | None) -> None:
        if pod.problem is None:
            self._with_problem.pop(pod.uid, None)
        elif before is None or before.problem != pod.problem:
            self._with_problem[pod.uid] = None
            self.problems += 1

    def _end(self, containers: Iterable[WorkloadInfo], now_s: float) -> None:
        for info in containers:
            self._ended.pop(info.ref.id, None)  # to the end of the order
            self._ended[info.ref.id] = (now_s, info._replace(running=False))
            self._known = None
