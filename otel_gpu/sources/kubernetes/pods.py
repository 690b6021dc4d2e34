"""From what the API tells of pods to what is known of their containers. Pure and total: any JSON gives an answer.

Fields are those of the API reference, core/v1 Pod. Nothing of the JSON is kept but what is told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import WorkloadInfo
from otel_gpu.sources.outside import LONGEST, printable, told

# containerd://<64>   docker://<64>   cri-o://<64>
_CONTAINER_ID: Final = re.compile(r"([a-z][a-z0-9.-]{0,31})://([0-9a-f]{64})")
# metav1.Time is written in UTC and in whole seconds; metav1.MicroTime would have six more digits.
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{6})?Z")
_STATUSES: Final = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
_SPECS: Final = ("containers", "initContainers", "ephemeralContainers")

# pkg/kubelet/types/pod_update.go. A static pod's uid, in cgroups and in CRI, is this hash of its manifest; the API has
# a mirror of it with a uid of its own, and marks it as such.
_CONFIG_HASH: Final = "kubernetes.io/config.hash"
_CONFIG_MIRROR: Final = "kubernetes.io/config.mirror"

_GONE: Final = 410
_CHANGES: Final = ("ADDED", "MODIFIED", "DELETED")
_LABEL: Final = "k8s.pod.label."


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod: its uid in the API, its containers that have an id by now, and what could not be told as it was."""

    uid: str
    containers: tuple[WorkloadInfo, ...] = ()
    trouble: str | None = None


class Page(NamedTuple):
    """A part of a list of pods: the version that it is of, and how to ask for the rest, if there is any."""

    pods: tuple[Pod, ...]
    version: str
    rest: str | None


class Change(NamedTuple):
    """What an event of a watch brings: the version after it, and a pod that is there or that was ``deleted``."""

    version: str
    pod: Pod | None = None
    deleted: bool = False


class Failure(NamedTuple):
    """An event that ends a watch: the server's own trouble, or a version that has ``expired``."""

    text: str
    expired: bool


def parse_list(value: object, labels: Collection[str] = ()) -> Page | None:
    """A page of a PodList; ``None`` for what is none."""
    page = _object(value)
    items, version = page.get("items"), _version(page)
    if version is None or not isinstance(items, list | None):  # Go writes null for a list that was never made
        return None
    rest = _object(page.get("metadata")).get("continue")
    pods = (parse_pod(item, labels) for item in items or ())
    return Page(tuple(pod for pod in pods if pod), version, rest if isinstance(rest, str) and rest else None)


def parse_event(line: bytes, labels: Collection[str] = ()) -> Change | Failure | None:
    """A line of a watch (meta/v1 WatchEvent); ``None`` for what is none."""
    try:
        event = _object(json.loads(line))
    except (ValueError, RecursionError):
        return None
    kind, value = event.get("type"), _object(event.get("object"))
    if kind == "ERROR":
        code, message = value.get("code"), value.get("message")
        said = printable(message, 240) if isinstance(message, str) else "it gives no reason"
        return Failure(f"the server ended the watch: {said}", expired=code == _GONE)
    if (version := _version(value)) is None:
        return None
    if kind == "BOOKMARK":
        return Change(version)
    pod = parse_pod(value, labels) if kind in _CHANGES else None
    return None if pod is None else Change(version, pod, deleted=kind == "DELETED")


def parse_pod(value: object, labels: Collection[str] = ()) -> Pod | None:
    """A pod and its containers, with these labels of its; ``None`` for what is no pod."""
    metadata = _object(_object(value).get("metadata"))
    uid = told(metadata.get("uid"))
    if uid is None:
        return None
    words = _Words(metadata)
    annotations = _object(metadata.get("annotations"))
    in_cgroups = told(annotations.get(_CONFIG_HASH)) if _CONFIG_MIRROR in annotations else None
    names = WorkloadNames(
        pod=words.told("name", metadata.get("name")),
        namespace=words.told("namespace", metadata.get("namespace")),
        pod_uid=in_cgroups or uid,
        extra=tuple(_labels(_object(metadata.get("labels")), labels, words)),
    )
    containers: dict[str, WorkloadInfo] = {}
    for known in _containers(_object(value), names, words):
        containers.setdefault(known.ref.id, known)
    return Pod(uid, tuple(containers.values()), words.trouble)


class _Words:
    """Tells texts of one pod, and remembers the first that had to be changed for it."""

    def __init__(self, metadata: dict[str, object]) -> None:
        self._metadata = metadata
        self.trouble: str | None = None

    def told(self, what: str, value: object) -> str | None:
        """A text made fit to be an attribute."""
        text = told(value)
        if isinstance(value, str) and text is not None and text != value and self.trouble is None:
            parts = (self._metadata.get(part) for part in ("namespace", "name"))
            pod = "/".join(printable(part) for part in parts if isinstance(part, str))
            changed = (
                f"has {len(value):,} characters; the first {LONGEST - 1:,} are told"
                if len(value) > LONGEST
                else "is broken Unicode; what is broken is told as ?"
            )
            self.trouble = f"pod {pod}: its {what} {changed}"
        return text


def _labels(there: dict[str, object], wanted: Collection[str], words: _Words) -> Iterator[tuple[str, str]]:
    for key in sorted(set(wanted)):
        if (value := words.told(f"label {printable(key)}", there.get(key))) is not None:
            yield f"{_LABEL}{key}", value


def _containers(pod: dict[str, object], of_pod: WorkloadNames, words: _Words) -> Iterator[WorkloadInfo]:
    status = _object(pod.get("status"))
    for statuses, specs in zip(_STATUSES, _SPECS, strict=True):
        for container in map(_object, _array(status.get(statuses))):
            last = _object(container.get("lastState"))
            ids = (
                (container.get("containerID"), _object(container.get("state"))),
                (_object(last.get("terminated")).get("containerID"), last),
            )
            for container_id, state in ids:
                found = _CONTAINER_ID.fullmatch(container_id) if isinstance(container_id, str) else None
                if found is None:  # it has not been started yet, or not twice
                    continue
                runtime, hex_id = found.groups()
                running = state.get("running")
                names = WorkloadNames(
                    container=words.told("container's name", container.get("name")),
                    image=words.told("image", _image(container, pod, specs)),
                    runtime=runtime,
                )
                yield WorkloadInfo(
                    ref=WorkloadRef(WorkloadKind.CONTAINER, hex_id, runtime=runtime, pod_uid=of_pod.pod_uid),
                    names=names.over(of_pod),
                    running=isinstance(running, dict),
                    since_s=_unix_s(_object(running or state.get("terminated")).get("startedAt")),
                )


def _image(container: dict[str, object], pod: dict[str, object], specs: str) -> object:
    """The image as the runtime calls it, or as it was asked for where that is but a digest."""
    image = container.get("image")
    if isinstance(image, str) and image and not image.startswith("sha256:"):
        return image
    for spec in map(_object, _array(_object(pod.get("spec")).get(specs))):
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


def _version(of: dict[str, object]) -> str | None:
    """The ``resourceVersion`` of a pod or of a list of them: opaque, to be handed back as it is."""
    version = _object(of.get("metadata")).get("resourceVersion")
    return version if isinstance(version, str) and version else None


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _array(value: object) -> list[object]:
    return value if isinstance(value, list) else []
