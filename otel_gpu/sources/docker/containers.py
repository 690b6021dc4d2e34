"""From an engine's JSON to what is known of containers: descriptions, lines of the list, events. Pure, total.

The fields are those of the Docker Engine API; Podman's compatible service gives the same ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import WorkloadInfo
from otel_gpu.sources.docker.documents import mapping, section, text
from otel_gpu.sources.docker.grants import parse_claims
from otel_gpu.sources.outside import LONGEST, told

_ID: Final = re.compile(r"[0-9a-f]{64}")

# What the kubelet writes onto containers through cri-dockerd (kubelet/pkg/types/labels.go).
_POD: Final = "io.kubernetes.pod.name"
_NAMESPACE: Final = "io.kubernetes.pod.namespace"
_POD_UID: Final = "io.kubernetes.pod.uid"
_CONTAINER: Final = "io.kubernetes.container.name"
_TYPE: Final = "io.kubernetes.docker.type"


class Container(NamedTuple):
    """A container as described; ``known`` is ``None`` for one that is nobody's workload. Notes: what was not told."""

    known: WorkloadInfo | None
    notes: tuple[str, ...] = ()


class Listed(NamedTuple):
    """A container's line in the list of those that run. ``up_at_most_s`` is how long it can have been up."""

    id: str
    name: str | None
    running: bool
    up_at_most_s: float | None


class Event(NamedTuple):
    """Something that happened to a container, and its name after that."""

    action: str
    id: str
    name: str | None


def is_container_id(value: object) -> bool:
    """Whether it is an id as engines write them: 64 hexadecimal digits."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


# ---------------------------------------------------------------------------- inspect


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads descriptions of containers: for which runtime, and with which labels."""

    runtime: str
    labels: Collection[str] = ()

    def parse_container(self, container_id: str, document: object) -> Container:
        """What the inspect document of this container says."""
        config = section(document, "Config")
        labels = section(config, "Labels")
        if labels.get(_TYPE) == "podsandbox" or labels.get(_CONTAINER) == "POD":
            return Container(None)  # it holds a pod's namespaces, and runs nothing of anybody's
        notes = _Notes(f"container {container_id[:12]}")
        if not isinstance(document, Mapping):
            notes.say("its description is no JSON object")
        state = section(document, "State")
        pod_uid = notes.told(labels, _POD_UID)
        names = WorkloadNames(
            container=notes.told(labels, _CONTAINER) or name_of(notes.told(mapping(document), "Name")),
            image=notes.told(config, "Image"),
            pod=notes.told(labels, _POD),
            namespace=notes.told(labels, _NAMESPACE),
            pod_uid=pod_uid,
            runtime=self.runtime,
            extra=tuple(
                (f"container.label.{key}", value)
                for key in sorted(set(self.labels))
                if (value := notes.told(labels, key, "label ")) is not None
            ),
        )
        known = WorkloadInfo(
            WorkloadRef(WorkloadKind.CONTAINER, container_id, runtime=self.runtime, pod_uid=pod_uid),
            names,
            running=state.get("Running") is True and state.get("Restarting") is not True,
            since_s=parse_time(state.get("StartedAt")),
            claims=parse_claims(mapping(document)),
        )
        return Container(known, notes.all)


class _Notes:
    """Collects what could not be told as it was."""

    def __init__(self, whose: str) -> None:
        self._whose = whose
        self._all: list[str] = []

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(self._all)

    def say(self, what: str) -> None:
        self._all.append(f"{self._whose}: {what}")

    def told(self, document: Mapping[str, object], key: str, what: str = "") -> str | None:
        value = document.get(key)
        told_as = told(value)
        if isinstance(value, str):
            if len(value) > LONGEST:
                self.say(f"{what}{key} has {len(value):,} characters; the first {LONGEST:,} are told")
            elif value and told_as != value:
                self.say(f"{what}{key} is no valid Unicode; what is broken in it is told as a question mark")
        elif value is not None:
            self.say(f"{what}{key} is no text")
        return told_as


def name_of(name: object) -> str | None:
    """A container's name without the slash that the API puts before it, fit to be told."""
    return told(name.removeprefix("/")) if isinstance(name, str) else None


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
    """A line of the list of running containers; ``None`` if it names none."""
    line = mapping(item)
    container_id = line.get("Id")
    if not isinstance(container_id, str) or not is_container_id(container_id):
        return None
    names = line.get("Names")
    # Of a container that others link to there are further names, "/other/alias": its own has the one slash.
    own = [one for one in names if isinstance(one, str) and "/" not in one[1:]] if isinstance(names, list) else []
    return Listed(
        container_id,
        name_of(own[0]) if own else None,
        # Asked for those that run, an engine lists also those that wait to be restarted.
        running=line.get("State", "running") in ("running", "paused"),
        up_at_most_s=parse_up_at_most_s(line.get("Status")),
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


def parse_up_at_most_s(status: object) -> float | None:
    """The longest time in seconds that "Up 5 minutes (healthy)" can mean (go-units, HumanDuration)."""
    up = _UP.match(status) if isinstance(status, str) else None
    if up is None:
        return None
    return _ONE_S[up["one"]] if up["one"] is not None else (int(up["count"]) + 1) * _UNIT_S[up["unit"]]


# ---------------------------------------------------------------------------- events


def parse_event(line: bytes) -> Event | None:
    """A line of the stream of events; ``None`` if it is none that can be understood."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict):
        return None
    actor = section(event, "Actor")
    container_id = text(actor.get("ID")) or text(event.get("id"))
    action = text(event.get("Action")) or text(event.get("status"))
    if action is None or container_id is None or not is_container_id(container_id):
        return None
    return Event(action, container_id, name_of(section(actor, "Attributes").get("name")))
