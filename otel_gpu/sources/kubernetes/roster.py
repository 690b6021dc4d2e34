"""Who is on this node by what the API said so far. What ended is remembered for a while: it is still being told of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from otel_gpu.sources.base import WorkloadInfo
from otel_gpu.sources.kubernetes.pods import Pod

REMEMBERED_S: Final = 900.0
"""How long a container is known that no pod has any more: three times the default retention."""

MOST_REMEMBERED: Final = 2_000
"""How many of those, whatever their time: as many as workloads are told of."""


class Roster:
    """The pods of a node and the containers they had. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._ended: dict[str, tuple[float, WorkloadInfo]] = {}  # by when it ended
        self._troubled: dict[str, None] = {}  # a set in the order of arrival
        self._known: dict[str, WorkloadInfo] | None = None
        self.troubles = 0
        """How many pods came that could not be told as they are."""

    def put(self, pod: Pod, now_s: float) -> None:
        """A pod is there, or has changed."""
        before = self._pods.get(pod.uid)
        if before == pod:
            return
        self._pods[pod.uid] = pod
        self._note(pod, before)
        ids = {known.ref.id for known in pod.containers}
        for container_id in ids:
            self._ended.pop(container_id, None)
        containers_before = () if before is None else before.containers
        self._end((known for known in containers_before if known.ref.id not in ids), now_s)
        if pod.containers != containers_before:
            self._known = None

    def remove(self, pod: Pod, now_s: float) -> None:
        """A pod was deleted; this is the last that was said of it."""
        self.put(pod, now_s)
        del self._pods[pod.uid]
        self._troubled.pop(pod.uid, None)
        self._end(pod.containers, now_s)

    def replace(self, pods: Mapping[str, Pod], now_s: float) -> None:
        """These are all the pods there are."""
        for pod in [pod for uid, pod in self._pods.items() if uid not in pods]:
            self.remove(pod, now_s)
        for pod in pods.values():
            self.put(pod, now_s)

    def forget(self, now_s: float) -> None:
        """Let go of what ended long ago."""
        for container_id, (ended_s, _) in list(self._ended.items()):  # the oldest first
            if ended_s > now_s - REMEMBERED_S and len(self._ended) <= MOST_REMEMBERED:
                break
            del self._ended[container_id]
            self._known = None

    @property
    def known(self) -> Mapping[str, WorkloadInfo]:
        """Containers by their ids: the same mapping while nothing has changed."""
        if self._known is None:
            self._known = {container_id: known for container_id, (_, known) in self._ended.items()}
            self._known |= {known.ref.id: known for pod in self._pods.values() for known in pod.containers}
        return self._known

    @property
    def trouble(self) -> str | None:
        """What cannot be told as it is, of a pod that is there."""
        return next((self._pods[uid].trouble for uid in self._troubled), None)

    def _note(self, pod: Pod, before: Pod | None) -> None:
        if pod.trouble is None:
            self._troubled.pop(pod.uid, None)
        elif before is None or before.trouble != pod.trouble:
            self._troubled[pod.uid] = None
            self.troubles += 1

    def _end(self, containers: Iterable[WorkloadInfo], now_s: float) -> None:
        for known in containers:
            self._ended.pop(known.ref.id, None)  # to the end of the order
            self._ended[known.ref.id] = (now_s, known._replace(running=False))
            self._known = None
