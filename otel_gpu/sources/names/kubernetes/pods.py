"""Parse pods of the API into workloads. Pure; accepts any JSON.

core/v1 Pod in the API reference defines the fields.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from otel_gpu.bounded_io import one_line, parse_json
from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import WorkloadInfo
from otel_gpu.sources.names.untrusted import (
    MAX_NAME_BYTES,
    MAX_TEXT_BYTES,
    array,
    change_of,
    mapping,
    sanitize,
)

# containerd://<64>   docker://<64>   cri-o://<64>
_CONTAINER_ID: Final = re.compile(r"([a-z][a-z0-9.-]{0,31})://([0-9a-f]{64})")
# metav1.Time is in UTC and whole seconds; metav1.MicroTime has six more digits.
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{6})?Z")
_STATUSES: Final = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
_SPECS: Final = ("containers", "initContainers", "ephemeralContainers")

# pkg/kubelet/types/pod_update.go. The uid of a static pod, in cgroups and in CRI, is this hash of its manifest. The API
# has a mirror pod with another uid, and marks it as one.
_CONFIG_HASH: Final = "kubernetes.io/config.hash"
_CONFIG_MIRROR: Final = "kubernetes.io/config.mirror"

_GONE: Final = 410
_CHANGES: Final = ("ADDED", "MODIFIED", "DELETED")
_LABEL: Final = "k8s.pod.label."


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A pod: its uid in the API, its containers that have an id, and a text that is exported only in part."""

    uid: str
    containers: tuple[WorkloadInfo, ...] = ()
    problem: str | None = None


class PodPage(NamedTuple):
    """A page of a list of pods, its resource version, and the token for the rest if there is one."""

    pods: tuple[PodInfo, ...]
    version: str
    continue_token: str | None


class Change(NamedTuple):
    """An event of a watch: the version after it, and a pod that changed or was ``deleted``."""

    version: str
    pod: PodInfo | None = None
    deleted: bool = False


class Failure(NamedTuple):
    """An event that ends a watch: an error of the server, or a version that has ``expired``."""

    text: str
    expired: bool


def parse_list(value: object, labels: Collection[str] = ()) -> PodPage | None:
    """A page of a PodList; ``None`` if it is not one."""
    page = mapping(value)
    items, version = page.get("items"), _version(page)
    if version is None or not isinstance(items, list | None):  # Go writes null for a nil slice
        return None
    token = mapping(page.get("metadata")).get("continue")
    pods = (parse_pod(item, labels) for item in items or ())
    return PodPage(tuple(pod for pod in pods if pod), version, token if isinstance(token, str) and token else None)


def parse_event(line: bytes, labels: Collection[str] = ()) -> Change | Failure | None:
    """A line of a watch (meta/v1 WatchEvent); ``None`` if it is not valid."""
    try:
        event = mapping(parse_json(line))
    except ValueError:
        return None
    kind, value = event.get("type"), mapping(event.get("object"))
    if kind == "ERROR":
        code, message = value.get("code"), value.get("message")
        reason = one_line(message, 240) if isinstance(message, str) else "no reason given"
        return Failure(f"the server ended the watch: {reason}", expired=code == _GONE)
    if (version := _version(value)) is None:
        return None
    if kind == "BOOKMARK":
        return Change(version)
    pod = parse_pod(value, labels) if kind in _CHANGES else None
    return None if pod is None else Change(version, pod, deleted=kind == "DELETED")


def parse_pod(value: object, labels: Collection[str] = ()) -> PodInfo | None:
    """A pod and its containers; ``labels`` are the keys of the pod labels to export. ``None`` if it is not a pod."""
    metadata = mapping(mapping(value).get("metadata"))
    uid = sanitize(metadata.get("uid"), MAX_NAME_BYTES)
    if uid is None:
        return None
    texts = _Texts(metadata)
    annotations = mapping(metadata.get("annotations"))
    in_cgroups = sanitize(annotations.get(_CONFIG_HASH), MAX_NAME_BYTES) if _CONFIG_MIRROR in annotations else None
    names = WorkloadNames(
        pod=texts.sanitize("name", metadata.get("name")),
        namespace=texts.sanitize("namespace", metadata.get("namespace")),
        pod_uid=in_cgroups or uid,
        extra=tuple(_labels(mapping(metadata.get("labels")), labels, texts)),
    )
    containers: dict[str, WorkloadInfo] = {}
    for info in _containers(mapping(value), names, texts):
        containers.setdefault(info.ref.id, info)
    return PodInfo(uid, tuple(containers.values()), texts.problem)


class _Texts:
    """Sanitizes texts of one pod and notes the first one that changed."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata
        self.problem: str | None = None

    def sanitize(self, what: str, value: object, max_bytes: int = MAX_NAME_BYTES) -> str | None:
        text = sanitize(value, max_bytes)
        change = change_of(value, text) if isinstance(value, str) and text is not None else None
        if change is not None and self.problem is None:
            parts = (self._metadata.get(part) for part in ("namespace", "name"))
            pod = "/".join(one_line(part) for part in parts if isinstance(part, str))
            self.problem = f"pod {pod}: its {what} {change}"
        return text


def _labels(there: Mapping[str, object], wanted: Collection[str], texts: _Texts) -> Iterator[tuple[str, str]]:
    for key in sorted(set(wanted)):
        if (value := texts.sanitize(f"label {one_line(key)}", there.get(key), MAX_TEXT_BYTES)) is not None:
            yield f"{_LABEL}{key}", value


def _containers(pod: Mapping[str, object], of_pod: WorkloadNames, texts: _Texts) -> Iterator[WorkloadInfo]:
    status = mapping(pod.get("status"))
    for statuses, specs in zip(_STATUSES, _SPECS, strict=True):
        for container in map(mapping, array(status.get(statuses))):
            last = mapping(container.get("lastState"))
            ids = (
                (container.get("containerID"), mapping(container.get("state"))),
                (mapping(last.get("terminated")).get("containerID"), last),
            )
            for container_id, state in ids:
                found = _CONTAINER_ID.fullmatch(container_id) if isinstance(container_id, str) else None
                if found is None:  # not started yet, or only once
                    continue
                runtime, hex_id = found.groups()
                running = state.get("running")
                names = WorkloadNames(
                    container=texts.sanitize("container's name", container.get("name")),
                    image=texts.sanitize("image", _image(container, pod, specs)),
                    runtime=runtime,
                )
                yield WorkloadInfo(
                    ref=WorkloadRef(WorkloadKind.CONTAINER, hex_id, runtime=runtime, pod_uid=of_pod.pod_uid),
                    names=names.over(of_pod),
                    running=isinstance(running, dict),
                    since_s=_unix_s(mapping(running or state.get("terminated")).get("startedAt")),
                )


def _image(container: Mapping[str, object], pod: Mapping[str, object], specs: str) -> object:
    """The image's name in the runtime; if that is only a digest, its name in the pod's spec."""
    image = container.get("image")
    if isinstance(image, str) and image and not image.startswith("sha256:"):
        return image
    for spec in map(mapping, array(mapping(pod.get("spec")).get(specs))):
        if spec.get("name") == container.get("name"):
            return spec.get("image")
    return image


def _unix_s(value: object) -> float | None:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        return None
    try:
        return datetime.fromisoformat(value).timestamp()
    except ValueError:  # the 30th of February
        return None


def _version(of: Mapping[str, object]) -> str | None:
    """The ``resourceVersion`` of a pod or list: an opaque string."""
    version = mapping(of.get("metadata")).get("resourceVersion")
    return version if isinstance(version, str) and version else None
