"""Parse CRI's list of containers. Pure; accepts any content."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import NO_WORKLOADS, WorkloadInfo
from otel_gpu.sources.names.cri.proto.cri_pb2 import Container, ImageSpec, ListContainersResponse, VersionResponse
from otel_gpu.sources.names.untrusted_text import MAX_CHARS, printable, sanitize

_RUNNING, _EXITED = 1, 2
_NS_PER_S: Final = 1e9

# Labels that the kubelet sets on each of its containers (kubernetes, pkg/kubelet/types/labels.go).
_CONTAINER: Final = "io.kubernetes.container.name"
_POD: Final = "io.kubernetes.pod.name"
_NAMESPACE: Final = "io.kubernetes.pod.namespace"
_POD_UID: Final = "io.kubernetes.pod.uid"

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
        **{f"label {key}": found[key] for key in sorted(labels) if key in found},
    }
    sanitized = {what: sanitize(text) for what, text in texts.items()}
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
        if what.startswith("label ") and text is not None:
            yield f"container.label.{what.removeprefix('label ')}", text


def _problem(id_: str, texts: Mapping[str, str | None], sanitized: Mapping[str, str | None]) -> str | None:
    subject = f"container {printable(id_, 12)}"
    for what, text in texts.items():
        if text and sanitized[what] != text:
            return f"{subject}: its {what} has {len(text):,} characters; only the first {MAX_CHARS:,} are exported"
        if text and "\ufffd" in text:
            return f"{subject}: its {what} is not valid UTF-8; invalid bytes are exported as \ufffd"
    return None


def _image(image: ImageSpec) -> str | None:
    """The image's name. A digest is none: another source may have the name."""
    name = _text(image.user_specified_image) or _text(image.image)
    return None if _DIGEST.fullmatch(name) else name


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
