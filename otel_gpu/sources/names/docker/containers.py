"""Parse an engine's JSON: inspect documents with the GPUs granted, entries of the list, events. Pure; accepts any JSON.

The Docker Engine API defines the fields. Podman's compatible service has the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Final, NamedTuple

from otel_gpu.bounded_io import parse_json
from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import Claim, WorkloadInfo
from otel_gpu.sources.names.untrusted import (
    MAX_NAME_BYTES,
    MAX_TEXT_BYTES,
    array,
    change_of,
    entries,
    mapping,
    sanitize,
    section,
    strings,
    text,
)

_ID: Final = re.compile(r"[0-9a-f]{64}")
_MAX_PID: Final = 1 << 22
"""PID_MAX_LIMIT (include/linux/threads.h)."""

# Labels that the kubelet sets through cri-dockerd (kubelet/pkg/types/labels.go).
_POD: Final = "io.kubernetes.pod.name"
_NAMESPACE: Final = "io.kubernetes.pod.namespace"
_POD_UID: Final = "io.kubernetes.pod.uid"
_CONTAINER: Final = "io.kubernetes.container.name"
_TYPE: Final = "io.kubernetes.docker.type"


class Container(NamedTuple):
    """A container. ``info`` is ``None`` for a pod's sandbox. ``notes`` say which texts are exported only in part."""

    info: WorkloadInfo | None
    notes: tuple[str, ...] = ()


class Listed(NamedTuple):
    """An entry of the list of running containers. ``max_uptime_s`` is the longest time it can have been up."""

    id: str
    name: str | None
    running: bool
    max_uptime_s: float | None


class Event(NamedTuple):
    """An event of a container, and its name after the event."""

    action: str
    id: str
    name: str | None


def is_container_id(value: object) -> bool:
    """Whether this is an id of an engine: 64 hexadecimal digits."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


# ---------------------------------------------------------------------------- inspect


@dataclass(frozen=True, slots=True)
class ContainerParser:
    """Parses inspect documents of one runtime; ``labels`` are the keys of the labels to export."""

    runtime: str
    labels: Collection[str] = ()

    def parse_container(self, container_id: str, document: object, place: WorkloadRef | None = None) -> Container:
        """The container that an inspect document describes. ``place`` is what the cgroup of its process shows."""
        config = section(document, "Config")
        labels = section(config, "Labels")
        is_sandbox = labels.get(_TYPE) == "podsandbox" or labels.get(_CONTAINER) == "POD"
        if is_sandbox and (place is None or place.pod_uid is not None):
            return Container(None)  # it only holds the pod's namespaces
        notes = _Notes(f"container {container_id[:12]}")
        if not isinstance(document, Mapping):
            notes.add("its inspect document is not a JSON object")
        state = section(document, "State")
        name = mapping(document).get("Name")
        names = WorkloadNames(
            container=notes.sanitize("Name", name.removeprefix("/") if isinstance(name, str) else name, MAX_NAME_BYTES),
            image=notes.sanitize("Image", config.get("Image"), MAX_NAME_BYTES),
            runtime=self.runtime,
            extra=tuple(
                (f"container.label.{key}", value)
                for key in sorted(set(self.labels))
                if (value := notes.sanitize(f"label {key}", labels.get(key))) is not None
            ),
        )
        in_pod = WorkloadNames(
            container=notes.sanitize(_CONTAINER, labels.get(_CONTAINER), MAX_NAME_BYTES),
            pod=notes.sanitize(_POD, labels.get(_POD), MAX_NAME_BYTES),
            namespace=notes.sanitize(_NAMESPACE, labels.get(_NAMESPACE), MAX_NAME_BYTES),
            pod_uid=notes.sanitize(_POD_UID, labels.get(_POD_UID), MAX_NAME_BYTES),
        )
        info = WorkloadInfo(
            WorkloadRef(WorkloadKind.CONTAINER, container_id, runtime=self.runtime),
            names,
            running=state.get("Running") is True and state.get("Restarting") is not True,
            since_s=parse_time(state.get("StartedAt")),
            claims=parse_claims(mapping(document)),
            labelled=in_pod if in_pod.pod or in_pod.namespace or in_pod.pod_uid else None,
            place=place,
        )
        return Container(info, notes.all)


class _Notes:
    """Sanitizes texts of one container and notes which ones changed."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._all: list[str] = []

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(self._all)

    def add(self, note: str) -> None:
        self._all.append(f"{self._subject}: {note}")

    def sanitize(self, what: str, value: object, max_bytes: int = MAX_TEXT_BYTES) -> str | None:
        sanitized = sanitize(value, max_bytes)
        if isinstance(value, str):
            if sanitized is not None and (change := change_of(value, sanitized)) is not None:
                self.add(f"{what} {change}")
        elif value is not None:
            self.add(f"{what} is not text")
        return sanitized


def parse_name(name: object) -> str | None:
    """A container's name without the slash that the API puts before it, sanitized."""
    return sanitize(name.removeprefix("/"), MAX_NAME_BYTES) if isinstance(name, str) else None


def parse_pid(document: object) -> int | None:
    """The pid of a container's first process, in the engine's pid namespace; ``None`` while it does not run."""
    pid = section(document, "State").get("Pid")
    return pid if isinstance(pid, int) and not isinstance(pid, bool) and 0 < pid < _MAX_PID else None


def parse_time(value: object) -> float | None:
    """RFC 3339, with or without nanoseconds, as Unix time; ``None`` for Go's zero time, which means never."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        if moment is None or moment.year <= 1:
            return None
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


# ---------------------------------------------------------------------------- the list


def parse_listed(item: object) -> Listed | None:
    """An entry of the list of running containers; ``None`` if it has no valid id."""
    entry = mapping(item)
    container_id = entry.get("Id")
    if not isinstance(container_id, str) or not is_container_id(container_id):
        return None
    # A container that others link to has further names, "/other/alias". Its own has one slash.
    own = [name for name in strings(entry.get("Names")) if "/" not in name[1:]]
    return Listed(
        container_id,
        parse_name(own[0]) if own else None,
        # The list of running containers includes those that wait for a restart.
        running=entry.get("State", "running") in ("running", "paused"),
        max_uptime_s=parse_max_uptime_s(entry.get("Status")),
    )


_UP: Final = re.compile(
    r"Up (?:(?P<one>Less than a second|About a minute|About an hour)"
    r"|(?P<count>[0-9]{1,6}) (?P<unit>second|minute|hour|day|week|month|year)s?)\b"
)
_ONE_S: Final = {"Less than a second": 1.0, "About a minute": 120.0, "About an hour": 7200.0}
_UNIT_S: Final = {
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86_400.0,
    "week": 7 * 86_400.0,
    "month": 30 * 86_400.0,
    "year": 365 * 86_400.0,
}


def parse_max_uptime_s(status: object) -> float | None:
    """The longest time in seconds that "Up 5 minutes (healthy)" can mean (go-units, HumanDuration)."""
    up = _UP.match(status) if isinstance(status, str) else None
    if up is None:
        return None
    return _ONE_S[up["one"]] if up["one"] is not None else (int(up["count"]) + 1) * _UNIT_S[up["unit"]]


# ---------------------------------------------------------------------------- events


def parse_event(line: bytes) -> Event | None:
    """A line of the event stream; ``None`` if it is not a valid event."""
    try:
        event = mapping(parse_json(line))
    except ValueError:
        return None
    actor = section(event, "Actor")
    container_id = text(actor.get("ID")) or text(event.get("id"))
    action = text(event.get("Action")) or text(event.get("status"))
    if action is None or container_id is None or not is_container_id(container_id):
        return None
    return Event(action, container_id, parse_name(section(actor, "Attributes").get("name")))


# ---------------------------------------------------------------------------- GPUs granted to a container
#
# There are five ways to grant a container a GPU, which may be combined:
# * ``docker run --gpus``: ``HostConfig.DeviceRequests`` for NVIDIA's hook;
# * CDI: the same field with the driver ``cdi``, or a CDI name instead of a device;
# * NVIDIA's runtime, which obeys ``NVIDIA_VISIBLE_DEVICES``;
# * ``--device``: device nodes;
# * ``--privileged``: every device of the host. That is access, not a grant.

_ALL: Final = Claim("all")
_POSSIBLE: Final = Claim("all", possible=True)

# Devices in NVIDIA_VISIBLE_DEVICES and similar: an index, a MIG instance by indices, a UUID or its beginning,
# MIG-GPU-<uuid>/<gi>/<ci> of drivers before 470.
_DEVICE: Final = re.compile(r"[0-9]{1,4}(?::[0-9]{1,4})?|(?:GPU|MIG)-[0-9A-Za-z/-]{1,100}")
# nvidia.com/gpu=0, =0:1, =all, =GPU-…; gpu0 and mig0:1 with --device-name-strategy=type-index.
# NVIDIA's tools also use management.nvidia.com, runtime.nvidia.com, k8s.device-plugin.nvidia.com.
_CDI: Final = re.compile(r"(?:[0-9a-z-]+\.)*nvidia\.com/(?:gpu|mig)=(?:gpu(?=[0-9])|mig(?=[0-9]))?(?P<device>.+)")
_NODE: Final = re.compile(r"nvidia[0-9]{1,4}")
_NO_DEVICES: Final = frozenset({"", "none", "void"})
_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES="
# moby's drivers for NVIDIA and their capabilities (daemon/nvidia_linux.go). The last two drivers came with version 29.
_DRIVERS: Final = frozenset({"nvidia", "nvidia.cdi", "nvidia.runtime-hook"})
_CAPABILITIES: Final = frozenset({"gpu", "nvidia", "compute", "compat32", "graphics", "utility", "video", "display"})
_MAX_GPUS: Final = 64
"""No host has more. A larger count is ignored."""
_MAX_CLAIMS: Final = 4 * _MAX_GPUS
"""Claims of one container that are read: a GPU has at most seven MIG instances, and few hosts have more than eight."""


def parse_claims(document: Mapping[str, object]) -> tuple[Claim, ...]:
    """The claims of the container, each once, in the order of the list above."""
    claims = dict.fromkeys(islice(_claims(document), _MAX_CLAIMS))
    if _ALL in claims:
        return tuple(claim for claim in claims if claim in (_ALL, _POSSIBLE))
    return tuple(claims)


def _claims(document: Mapping[str, object]) -> Iterator[Claim]:
    host = section(document, "HostConfig")
    requests = [request for request in entries(host, "DeviceRequests") if _is_for_nvidia(request)]
    for request in requests:
        yield from _claims_of_request(request)
    # A request overrides the variable in this document: moby sets it again after that (setNvidiaGPUs in
    # daemon/nvidia_linux.go), CDI files of NVIDIA set it to "void" (NVIDIA/nvidia-container-toolkit#395), and so does
    # moby for --gpus 0 (moby/moby#48482; late 27 and 28; other versions set nothing). NVIDIA's hook obeys the last one.
    if not requests and (_is_nvidia(host.get("Runtime")) or _is_nvidia(document.get("OCIRuntime"))):  # Podman's
        yield from _claims_by_name(_visible_devices(section(document, "Config")))
    for device in entries(host, "Devices"):
        yield from _claims_of_node(device)
    if host.get("Privileged") is True:
        yield _POSSIBLE


def _is_for_nvidia(request: Mapping[str, object]) -> bool:
    """Whether moby grants NVIDIA's GPUs for this request (``handleDevice`` in daemon/devices.go)."""
    driver = request.get("Driver") or ""
    if driver == "cdi":
        return any(_CDI.fullmatch(name) for name in strings(request.get("DeviceIDs")))
    # With a named driver, capabilities do not matter; before version 29 they did, and without them nothing started.
    return text(driver) in _DRIVERS or (driver == "" and _wants_gpu(request.get("Capabilities")))


def _claims_of_request(request: Mapping[str, object]) -> Iterator[Claim]:
    ids, count = strings(request.get("DeviceIDs")), request.get("Count")
    if ids:
        yield from _claims_by_name(ids)
    elif isinstance(count, int) and count < 0:
        yield _ALL
    elif isinstance(count, int) and count <= _MAX_GPUS:
        yield from (Claim(str(index)) for index in range(count))


def _wants_gpu(capabilities: object) -> bool:
    """Capabilities are alternatives, each a list of which all must match (daemon/internal/capabilities)."""
    return any(
        isinstance(required, list) and all(text(name) in _CAPABILITIES for name in required)
        for required in array(capabilities)
    )


def _is_nvidia(runtime: object) -> bool:
    """``nvidia``, and ``nvidia-cdi``, ``nvidia-legacy``, ``nvidia-container-runtime``, as names or paths."""
    name = (text(runtime) or "").rpartition("/")[2]
    return name == "nvidia" or name.startswith("nvidia-")


def _visible_devices(config: Mapping[str, object]) -> Sequence[str]:
    """The devices in ``NVIDIA_VISIBLE_DEVICES``; the last one in the environment counts, as it does in the process."""
    variables = strings(config.get("Env"))
    values = [variable.removeprefix(_VISIBLE) for variable in variables if variable.startswith(_VISIBLE)]
    return values[-1].split(",") if values else ()


def _claims_by_name(devices: Sequence[str]) -> Iterator[Claim]:
    for device in devices:
        name = device.strip()
        if (cdi := _CDI.fullmatch(name)) is not None:
            name = cdi["device"]
        if name.lower() == "all":
            yield _ALL
        elif name.lower() not in _NO_DEVICES and _DEVICE.fullmatch(name):
            yield Claim(name)


def _claims_of_node(device: Mapping[str, object]) -> Iterator[Claim]:
    on_host, inside = text(device.get("PathOnHost")) or "", text(device.get("PathInContainer")) or ""
    if _CDI.fullmatch(on_host):  # podman run --device nvidia.com/gpu=0
        yield from _claims_by_name([on_host])
        return
    # As the path on the host Podman gives any path with the same device numbers. The path inside counts too.
    for path in (on_host, inside):
        name = path.rpartition("/")[2]
        if _NODE.fullmatch(name):
            yield Claim(name)
            return
