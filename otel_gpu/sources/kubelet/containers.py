"""From CRI's list of containers to what is known of each. Pure, total."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import NO_WORKLOADS, WorkloadInfo
from otel_gpu.sources.kubelet.proto.cri_pb2 import Container, ImageSpec, ListContainersResponse, VersionResponse
from otel_gpu.sources.outside import printable, told

_RUNNING, _EXITED = 1, 2
_NS_PER_S: Final = 1e9

# Written by the kubelet on each of its containers (kubernetes, pkg/kubelet/types/labels.go).
_CONTAINER: Final = "io.kubernetes.container.name"
_POD: Final = "io.kubernetes.pod.name"
_NAMESPACE: Final = "io.kubernetes.pod.namespace"
_POD_UID: Final = "io.kubernetes.pod.uid"

_DIGEST: Final = re.compile(r"(?:sha256:)?[0-9a-f]{64}")
"""An image by its contents: what the kubelet asks for once it has pulled it. Nobody's name for it."""


@dataclass(frozen=True, slots=True)
class Containers:
    """A runtime's containers by their ids, and what could not be told of which. Equal lists are the same object."""

    known: Mapping[str, WorkloadInfo] = field(default_factory=lambda: NO_WORKLOADS)
    troubles: Mapping[str, str] = field(default_factory=dict)


NO_CONTAINERS: Final = Containers()


def parse_runtime(answer: VersionResponse) -> str | None:
    """The runtime's name for itself: ``containerd``, ``cri-o``."""
    return told(_text(answer.runtime_name))


def parse_containers(
    answer: ListContainersResponse,
    before: Containers = NO_CONTAINERS,
    *,
    runtime: str | None = None,
    labels: Collection[str] = (),
) -> Containers:
    """What a list says; ``before`` itself, if it says the same.

    Runtimes list in any order, and labels too, so that bytes tell nothing. But names, labels and image of a container
    never change; only its state does. So whoever was there before is not looked at any closer.
    """
    known: dict[str, WorkloadInfo] = {}
    troubles: dict[str, str] = {}
    changed = False
    for container in answer.containers:
        id_ = _text(container.id)
        old = before.known.get(id_)
        if old is not None and old.running == (container.state == _RUNNING):
            known[id_] = old
            if id_ in before.troubles:
                troubles[id_] = before.troubles[id_]
        elif id_:
            changed = True
            known[id_], trouble = _known(id_, container, runtime, labels)
            if trouble is not None:
                troubles[id_] = trouble
    return Containers(known, troubles) if changed or len(known) != len(before.known) else before


def parse_exited(answer: ListContainersResponse) -> Iterator[str]:
    """The ids of those in a list that have ended."""
    return (_text(container.id) for container in answer.containers if container.state == _EXITED)


def _known(
    id_: str, container: Container, runtime: str | None, labels: Collection[str]
) -> tuple[WorkloadInfo, str | None]:
    said = {_text(label.key): _text(label.value) for label in container.labels}
    texts = {
        "name": said.get(_CONTAINER) or _text(container.metadata.name),
        "image": _image(container.image),
        "pod": said.get(_POD),
        "namespace": said.get(_NAMESPACE),
        "pod uid": said.get(_POD_UID),
        **{f"label {key}": said[key] for key in sorted(labels) if key in said},
    }
    fit = {what: told(text) for what, text in texts.items()}
    names = WorkloadNames(
        container=fit["name"],
        image=fit["image"],
        pod=fit["pod"],
        namespace=fit["namespace"],
        pod_uid=fit["pod uid"],
        runtime=runtime,
        extra=tuple(_extra(fit)),
    )
    known = WorkloadInfo(
        ref=WorkloadRef(WorkloadKind.CONTAINER, id_, runtime=runtime, pod_uid=names.pod_uid),
        names=names,
        running=container.state == _RUNNING,
        since_s=container.created_at / _NS_PER_S if container.created_at > 0 else None,
    )
    return known, _trouble(id_, texts, fit)


def _extra(fit: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    for what, text in fit.items():
        if what.startswith("label ") and text is not None:
            yield f"container.label.{what.removeprefix('label ')}", text


def _trouble(id_: str, texts: Mapping[str, str | None], fit: Mapping[str, str | None]) -> str | None:
    whose = f"container {printable(id_, 12)}"  # a hex number, if the runtime is well
    for what, text in texts.items():
        if text and fit[what] != text:
            return f"{whose}: its {what} has {len(text):,} characters; the first 1,024 are told"
        if text and "\ufffd" in text:
            return f"{whose}: its {what} is no valid UTF-8; what is broken is told as \ufffd"
    return None


def _image(image: ImageSpec) -> str | None:
    """What people call it. Silence beside a bare digest: others may know its name."""
    name = _text(image.user_specified_image) or _text(image.image)
    return None if _DIGEST.fullmatch(name) else name


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
