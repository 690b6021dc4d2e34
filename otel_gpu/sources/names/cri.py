"""Names of containers from the container runtime of a Kubernetes node, over the Container Runtime Interface (CRI)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from otel_gpu.bounded_io import one_line
from otel_gpu.clock import Clock
from otel_gpu.errors import Unavailable, Unsupported
from otel_gpu.model import SourceState, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.backoff import Backoff
from otel_gpu.sources.base import KUBERNETES, NO_WORKLOADS, NameRead, PodContainer, WorkloadInfo
from otel_gpu.sources.names.grpc_client import GrpcPoller
from otel_gpu.sources.names.poller import PublishedNames
from otel_gpu.sources.names.proto.cri_pb2 import Container, ImageSpec, ListContainersResponse, VersionResponse
from otel_gpu.sources.names.untrusted import MAX_NAME_BYTES, MAX_TEXT_BYTES, change_of, sanitize

RELIST_S: Final = 120.0
"""Interval of complete lists, which show what has ended. A list of 500 containers takes 1.5 to 2 ms of CPU."""

EXPECTED_S: Final = 5.0
MAX_EXPECTED_S: Final = 15.0
"""Interval of lists while a container that was granted a GPU does not run: the first one, doubled up to the maximum."""

EXITED_S: Final = 15.0
"""Interval of lists of exited containers, while one with a GPU runs. There are few of them: 0.4 ms of CPU."""

MIN_PAUSE_S: Final = 1.0
"""Shortest interval between two lists."""

_VERSION: Final = "/runtime.v1.RuntimeService/Version"
_LIST: Final = "/runtime.v1.RuntimeService/ListContainers"
_EXITED_ONLY: Final = bytes((0x0A, 4, 0x12, 2, 0x08, 2))
"""ListContainersRequest with filter (1), in it state (2), in it state (1): CONTAINER_EXITED (2)."""


class CriSource:
    """Lists a runtime's containers: at the start, for each unknown container on a GPU, and at an interval.

    ``expected`` returns the containers to which the kubelet granted a GPU. Until they run, lists are more frequent.
    While they run, the source checks for their end: a restarted container has a new id, and the grant moves to it.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        clock: Clock,
        timeout_s: float = 5.0,
        labels: Collection[str] = (),
        expected: Callable[[], frozenset[PodContainer]] = frozenset,
        relist_s: float = RELIST_S,
        name: str = "cri",
    ) -> None:
        self.name = name
        self._clock = clock
        self._labels = frozenset(labels)
        self._expected = expected
        self._relist_s = relist_s
        self._published = PublishedNames(KUBERNETES)
        self._poller = GrpcPoller(name, endpoint, self._published, self._poll, timeout_s=timeout_s, clock=clock)
        self._runtime: str | None = None
        self._listed = NO_CONTAINERS
        self._running: Mapping[str, PodContainer] = {}
        self._missing: frozenset[PodContainer] = frozenset()
        self._expected_before: frozenset[PodContainer] = frozenset()
        self._expected_backoff = Backoff(MAX_EXPECTED_S, EXPECTED_S)
        self._expected_pause_s = EXPECTED_S
        # Ids to look up, and those among them that the latest list lacks. Each is replaced as a whole by one thread.
        self._requested: frozenset[str] = frozenset()
        self._not_found: frozenset[str] = frozenset()

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        """The latest answer. An unknown id starts one new list, and is looked up in all later ones."""
        self._poller.start()
        answer = self._published.read()
        self._requested = frozenset(
            ref.id for ref in workloads if ref.kind is WorkloadKind.CONTAINER and ref.id not in answer.known
        )
        pending = self._requested - self._not_found
        if pending or self._expected() != self._expected_before:
            self._poller.wake()
        if not pending:
            return answer
        return answer if answer.state is SourceState.UNAVAILABLE else replace(answer, pending=pending)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first list; false if that takes longer than ``timeout_s``."""
        return self._published.wait(timeout_s)

    def close(self) -> None:
        """Stop polling."""
        self._poller.close()

    # -- on the thread --------------------------------------------------------------------

    def _poll(self) -> None:
        self._read_runtime()
        while not self._poller.stopping:
            self._list()
            self._pause()

    def _read_runtime(self) -> None:
        try:
            runtime = parse_runtime(self._poller.call(_VERSION, VersionResponse))
        except Unsupported as error:
            raise Unavailable(f"{error}; for containerd: remove cri from disabled_plugins in config.toml") from None
        if runtime != self._runtime:
            self._runtime, self._listed = runtime, NO_CONTAINERS

    def _list(self) -> None:
        requested, before = self._requested, self._listed
        answer = self._poller.call(_LIST, ListContainersResponse)
        now = self._listed = parse_containers(answer, before, runtime=self._runtime, labels=self._labels)
        if now.known is not self._published.known:
            self._published.publish(now.known)
            self._running = dict(_running(now.known))
        self._not_found = requested - now.known.keys()
        missing = self._missing_now()
        if missing != self._missing:
            self._expected_backoff.worked()
        self._expected_pause_s = self._expected_backoff.failed() if missing else EXPECTED_S
        self._missing = missing
        new = len(now.problems.keys() - before.problems.keys())
        self._published.set_problems(sorted(now.problems.values()), errors=new)

    def _pause(self) -> None:
        """Wait until it is time for the next list."""
        listed_ns = checked_ns = self._clock.monotonic_ns()
        while not self._poller.stopping:
            now_ns = self._clock.monotonic_ns()
            left_s = self._pause_s() - (now_ns - listed_ns) / 1e9
            check_s = EXITED_S - (now_ns - checked_ns) / 1e9
            if left_s <= 0.0 or (check_s <= 0.0 and self._has_exited()):
                return
            if check_s <= 0.0:
                checked_ns, check_s = now_ns, EXITED_S
            # An unknown container or a new grant ends the sleep.
            self._poller.sleep(min(left_s, check_s))

    def _has_exited(self) -> bool:
        """Whether a container with a GPU has exited since the latest list."""
        expected = self._expected()
        if not expected:
            return False
        answer = self._poller.call(_LIST, ListContainersResponse, _EXITED_ONLY)
        return any(self._running.get(id_) in expected for id_ in parse_exited(answer))

    def _pause_s(self) -> float:
        pending = self._requested - self._not_found
        if pending and pending - self._listed.known.keys():
            return min(self._relist_s, MIN_PAUSE_S)
        missing = self._missing_now()
        if not missing:
            return self._relist_s
        return min(self._relist_s, self._expected_pause_s if missing == self._missing else EXPECTED_S)

    def _missing_now(self) -> frozenset[PodContainer]:
        """The expected containers that do not run."""
        self._expected_before = self._expected()
        return self._expected_before.difference(self._running.values())


def _running(known: Mapping[str, WorkloadInfo]) -> Iterator[tuple[str, PodContainer]]:
    """The running containers of pods by their ids."""
    for id_, info in known.items():
        names = info.names
        if info.running and names.namespace and names.pod and names.container:
            yield id_, PodContainer(names.namespace, names.pod, names.container)


# ---------------------------------------------------------------------------- parsing; accepts any content

_RUNNING, _EXITED = 1, 2
_NS_PER_S: Final = 1e9

# Labels that the kubelet sets on each of its containers (kubernetes, pkg/kubelet/types/labels.go).
_CONTAINER: Final = "io.kubernetes.container.name"
_POD: Final = "io.kubernetes.pod.name"
_NAMESPACE: Final = "io.kubernetes.pod.namespace"
_POD_UID: Final = "io.kubernetes.pod.uid"

_LABEL: Final = "label "
"""What a label is called in a problem, before its key."""

_DIGEST: Final = re.compile(r"(?:sha256:)?[0-9a-f]{64}")
"""A digest, which the kubelet uses for an image that it has pulled. It is not a name."""


@dataclass(frozen=True, slots=True)
class Containers:
    """A runtime's containers by their ids; ``problems`` are texts that are exported only in part."""

    known: Mapping[str, WorkloadInfo] = field(default_factory=lambda: NO_WORKLOADS)
    problems: Mapping[str, str] = field(default_factory=dict)


NO_CONTAINERS: Final = Containers()


def parse_runtime(answer: VersionResponse) -> str | None:
    """The runtime's name: ``containerd``, ``cri-o``."""
    return sanitize(_text(answer.runtime_name))


def parse_containers(
    answer: ListContainersResponse,
    before: Containers = NO_CONTAINERS,
    *,
    runtime: str | None = None,
    labels: Collection[str] = (),
) -> Containers:
    """The containers in a list; ``before`` itself if nothing has changed.

    Of a container only the state changes, never name, labels or image. Those in ``before`` are not parsed again.
    """
    known: dict[str, WorkloadInfo] = {}
    problems: dict[str, str] = {}
    changed = False
    for container in answer.containers:
        id_ = _text(container.id)
        old = before.known.get(id_)
        if old is not None and old.running == (container.state == _RUNNING):
            known[id_] = old
            if id_ in before.problems:
                problems[id_] = before.problems[id_]
        elif id_:
            changed = True
            known[id_], problem = _parse_container(id_, container, runtime, labels)
            if problem is not None:
                problems[id_] = problem
    return Containers(known, problems) if changed or len(known) != len(before.known) else before


def parse_exited(answer: ListContainersResponse) -> Iterator[str]:
    """The ids of the containers in a list that have ended."""
    return (_text(container.id) for container in answer.containers if container.state == _EXITED)


def _parse_container(
    id_: str, container: Container, runtime: str | None, labels: Collection[str]
) -> tuple[WorkloadInfo, str | None]:
    found = {_text(label.key): _text(label.value) for label in container.labels}
    texts = {
        "name": found.get(_CONTAINER) or _text(container.metadata.name),
        "image": _image(container.image),
        "pod": found.get(_POD),
        "namespace": found.get(_NAMESPACE),
        "pod uid": found.get(_POD_UID),
        **{f"{_LABEL}{key}": found[key] for key in sorted(labels) if key in found},
    }
    sanitized = {
        what: sanitize(text, MAX_TEXT_BYTES if what.startswith(_LABEL) else MAX_NAME_BYTES)
        for what, text in texts.items()
    }
    names = WorkloadNames(
        container=sanitized["name"],
        image=sanitized["image"],
        pod=sanitized["pod"],
        namespace=sanitized["namespace"],
        pod_uid=sanitized["pod uid"],
        runtime=runtime,
        extra=tuple(_labels(sanitized)),
    )
    info = WorkloadInfo(
        ref=WorkloadRef(WorkloadKind.CONTAINER, id_, runtime=runtime, pod_uid=names.pod_uid),
        names=names,
        running=container.state == _RUNNING,
        since_s=container.created_at / _NS_PER_S if container.created_at > 0 else None,
    )
    return info, _problem(id_, texts, sanitized)


def _labels(sanitized: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    for what, text in sanitized.items():
        if what.startswith(_LABEL) and text is not None:
            yield f"container.label.{what.removeprefix(_LABEL)}", text


def _problem(id_: str, texts: Mapping[str, str | None], sanitized: Mapping[str, str | None]) -> str | None:
    subject = f"container {one_line(id_, 12)}"
    for what, text in texts.items():
        if text and (change := change_of(text, sanitized[what] or "")) is not None:
            return f"{subject}: its {what} {change}"
        if text and "\ufffd" in text:
            return f"{subject}: its {what} is not valid UTF-8; invalid bytes are exported as \ufffd"
    return None


def _image(image: ImageSpec) -> str | None:
    """The image's name. A digest is none: another source may have the name."""
    name = _text(image.user_specified_image) or _text(image.image)
    return None if _DIGEST.fullmatch(name) else name


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
