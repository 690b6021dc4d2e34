"""The containers of an engine, kept current by lists and events. No I/O; bounded in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Final, NamedTuple

from otel_gpu.sources.base import NO_WORKLOADS, WorkloadInfo
from otel_gpu.sources.names.docker.containers import Container, Event, Listed

_STARTED: Final = frozenset({"start"})
# "kill" is any signal, including one that ends nothing; "stop" comes after the end, maybe after the next start.
_ENDED: Final = frozenset({"die", "died"})
_RENAMED: Final = frozenset({"rename"})
REMOVED: Final = frozenset({"destroy", "remove"})  # the latter is Podman's, like "died"
ACTIONS: Final = tuple(sorted(_STARTED | _ENDED | _RENAMED | REMOVED))
"""The events that change the registry."""

_LINGER_S: Final = 60.0
"""How long a removed container keeps its name: the cycle that saw its last process may read only now."""
MAX_CONTAINERS: Final = 4096
"""Containers of one engine that are known at a time. A host has a few hundred."""
_MAX_ENDED: Final = 1000
"""Ended containers to remember. Beyond that, the one that ended first is dropped."""
_START_TOLERANCE_S: Final = 0.5
"""How much less than the time since the known start an uptime may be before it means a restart: clocks are adjusted."""


class _End(NamedTuple):
    at_s: float
    removed: bool


class ContainerRegistry:
    """Containers by their ids. Ids that it asks to be inspected are answered with ``add``."""

    def __init__(self) -> None:
        self._containers: dict[str, Container] = {}
        self._ended: dict[str, _End] = {}  # in the order in which they ended
        self._known: Mapping[str, WorkloadInfo] = NO_WORKLOADS
        self._changed = False

    def __contains__(self, container_id: str) -> bool:
        return container_id in self._containers

    def __len__(self) -> int:
        return len(self._containers)

    @property
    def notes(self) -> list[str]:
        """The notes of all containers."""
        notes = [note for container in self._containers.values() for note in container.notes]
        if len(self._containers) >= MAX_CONTAINERS:
            notes.insert(0, f"the engine has over {MAX_CONTAINERS:,} containers; the others have no names")
        return notes

    def known(self, now_s: float) -> Mapping[str, WorkloadInfo]:
        """Workloads by their ids: the same object until something changes."""
        self._drop_expired(now_s)
        if self._changed:
            known = {key: container.info for key, container in self._containers.items() if container.info is not None}
            self._known = MappingProxyType(known)
            self._changed = False
        return self._known

    def apply_list(self, listed: Iterable[Listed], now_s: float, wall_s: float) -> list[str]:
        """Apply a list of running containers. Returns the ids to inspect: containers that are new or were restarted.

        ``now_s`` is monotonic. ``wall_s`` is Unix time before the list was requested.
        """
        due: list[str] = []
        running: set[str] = set()
        for entry in islice(listed, MAX_CONTAINERS):
            if entry.running:
                running.add(entry.id)
            if self._must_be_inspected(entry, wall_s):
                due.append(entry.id)
            else:
                self._rename(entry.id, entry.name)
        for container_id in self._containers.keys() - running - self._ended.keys():
            self._end(container_id, now_s)
        return due

    def apply_event(self, event: Event, now_s: float) -> bool:
        """Apply an event; true if its container must be inspected."""
        if event.action in _STARTED:
            # A container starts only after it ended. A known running one was listed or inspected after this start.
            return event.id not in self._containers or event.id in self._ended
        if event.action in _RENAMED:
            self._rename(event.id, event.name)
        elif event.action in _ENDED:
            self._end(event.id, now_s)
        elif event.action in REMOVED:
            self._end(event.id, now_s, removed=True)
        return False

    def add(self, container_id: str, container: Container, now_s: float) -> None:
        """Add or update a container that was inspected."""
        if container_id not in self._containers and len(self._containers) >= MAX_CONTAINERS:
            return
        if self._containers.get(container_id) != container:
            self._containers[container_id] = container
            self._changed = True
        if container.info is not None and not container.info.running:
            self._ended.setdefault(container_id, _End(now_s, removed=False))
        else:
            self._ended.pop(container_id, None)

    def remove(self, container_id: str, now_s: float) -> None:
        """The engine has no such container."""
        self._end(container_id, now_s, removed=True)

    def _must_be_inspected(self, entry: Listed, wall_s: float) -> bool:
        container = self._containers.get(entry.id)
        if container is None:
            return True
        if not entry.running:
            return False
        if entry.id in self._ended:
            return True
        since_s = None if container.info is None else container.info.since_s
        if since_s is None or entry.max_uptime_s is None:
            return False
        return wall_s - since_s > entry.max_uptime_s + _START_TOLERANCE_S

    def _rename(self, container_id: str, name: str | None) -> None:
        container = self._containers.get(container_id)
        if container is None or container.info is None or name is None:
            return
        names = container.info.names
        if names.container == name:
            return
        info = container.info._replace(names=names._replace(container=name))
        self._containers[container_id] = container._replace(info=info)
        self._changed = True

    def _end(self, container_id: str, now_s: float, *, removed: bool = False) -> None:
        container = self._containers.get(container_id)
        if container is None:
            return
        if container.info is not None and container.info.running:
            self._containers[container_id] = container._replace(info=container.info._replace(running=False))
            self._changed = True
        before = self._ended.get(container_id)
        if before is None or removed:
            self._ended[container_id] = _End(now_s, removed)

    def _drop_expired(self, now_s: float) -> None:
        too_many = len(self._ended) - _MAX_ENDED
        expired = [
            container_id
            for place, (container_id, end) in enumerate(self._ended.items())
            if place < too_many or (end.removed and now_s - end.at_s >= _LINGER_S)
        ]
        for container_id in expired:
            del self._ended[container_id], self._containers[container_id]
            self._changed = True
