"""Parse an engine's JSON: inspect documents, entries of the list, events. Pure; accepts any JSON.

The fields are those of the Docker Engine API. Podman's compatible service has the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

from otel_gpu.bounded_io import parse_json
from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import WorkloadInfo
from otel_gpu.sources.names.docker.claims import parse_claims
from otel_gpu.sources.names.json_fields import mapping, section, strings, text
from otel_gpu.sources.names.untrusted_text import MAX_CHARS, sanitize

_ID: Final = re.compile(r"[0-9a-f]{64}")

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

    def parse_container(self, container_id: str, document: object) -> Container:
        """The container that an inspect document describes."""
        config = section(document, "Config")
        labels = section(config, "Labels")
        if labels.get(_TYPE) == "podsandbox" or labels.get(_CONTAINER) == "POD":
            return Container(None)  # it only holds the pod's namespaces
        notes = _Notes(f"container {container_id[:12]}")
        if not isinstance(document, Mapping):
            notes.add("its inspect document is not a JSON object")
        state = section(document, "State")
        pod_uid = notes.sanitize(labels, _POD_UID)
        names = WorkloadNames(
            container=notes.sanitize(labels, _CONTAINER) or parse_name(notes.sanitize(mapping(document), "Name")),
            image=notes.sanitize(config, "Image"),
            pod=notes.sanitize(labels, _POD),
            namespace=notes.sanitize(labels, _NAMESPACE),
            pod_uid=pod_uid,
            runtime=self.runtime,
            extra=tuple(
                (f"container.label.{key}", value)
                for key in sorted(set(self.labels))
                if (value := notes.sanitize(labels, key, "label ")) is not None
            ),
        )
        info = WorkloadInfo(
            WorkloadRef(WorkloadKind.CONTAINER, container_id, runtime=self.runtime, pod_uid=pod_uid),
            names,
            running=state.get("Running") is True and state.get("Restarting") is not True,
            since_s=parse_time(state.get("StartedAt")),
            claims=parse_claims(mapping(document)),
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

    def sanitize(self, document: Mapping[str, object], key: str, prefix: str = "") -> str | None:
        value = document.get(key)
        sanitized = sanitize(value)
        if isinstance(value, str):
            if len(value) > MAX_CHARS:
                self.add(f"{prefix}{key} has {len(value):,} characters; only the first {MAX_CHARS:,} are exported")
            elif value and sanitized != value:
                self.add(f"{prefix}{key} is not valid Unicode; invalid characters are exported as question marks")
        elif value is not None:
            self.add(f"{prefix}{key} is not text")
        return sanitized


def parse_name(name: object) -> str | None:
    """A container's name without the slash that the API puts before it, sanitized."""
    return sanitize(name.removeprefix("/")) if isinstance(name, str) else None


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
