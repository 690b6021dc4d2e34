"""The pods of this node and their containers. Ended containers keep their names while they are still reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from otel_gpu.sources.base import WorkloadInfo
from otel_gpu.sources.names.kubernetes.pods import Pod

ENDED_TTL_S: Final = 900.0
"""How long an ended container is kept: three times the default retention."""

MAX_ENDED: Final = 2_000
"""How many ended containers are kept at most: the limit of exported workloads."""


class PodRegistry:
    """Pods by their uids, and the containers they have or had. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._ended: dict[str, tuple[float, WorkloadInfo]] = {}  # by when it ended
        self._with_problem: dict[str, None] = {}  # a set in the order of arrival
        self._known: dict[str, WorkloadInfo] | None = None
        self.problems = 0
        """How many pods with a problem were added."""

    def put(self, pod: Pod, now_s: float) -> None:
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

    def remove(self, pod: Pod, now_s: float) -> None:
        """Remove a deleted pod; ``pod`` is its last version."""
        self.put(pod, now_s)
        del self._pods[pod.uid]
        self._with_problem.pop(pod.uid, None)
        self._end(pod.containers, now_s)

    def replace(self, pods: Mapping[str, Pod], now_s: float) -> None:
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

    def _note(self, pod: Pod, before: Pod | None) -> None:
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
