"""Which containers there are, kept current by the list and by events. No I/O; bounded however many come and go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from otel_gpu.sources.base import NO_WORKLOADS, WorkloadInfo
from otel_gpu.sources.docker.containers import Container, Event, Listed

_STARTED: Final = frozenset({"start"})
# "kill" is any signal, also one that nobody dies of; "stop" comes after the end, maybe after the next start.
_ENDED: Final = frozenset({"die", "died"})
_RENAMED: Final = frozenset({"rename"})
REMOVED: Final = frozenset({"destroy", "remove"})  # the latter is Podman's, as "died" is
ACTIONS: Final = tuple(sorted(_STARTED | _ENDED | _RENAMED | REMOVED))
"""The events that change anything here."""

_LINGER_S: Final = 60.0
"""A container that was removed keeps its name that long: the cycle that saw its last process may ask only now."""
_MOST_ENDED: Final = 1000
"""Containers that do not run and are remembered; the one that ended first goes first."""
_SAME_START_S: Final = 0.5
"""By how much an uptime may fall short of the known start before it tells of another one: clocks are set."""


class _End(NamedTuple):
    at_s: float
    removed: bool


class Roster:
    """Containers by their ids. What it says that must be inspected, it waits for in ``described``."""

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
        """What could not be told as it was, of the containers that are here."""
        return [note for container in self._containers.values() for note in container.notes]

    def known(self, now_s: float) -> Mapping[str, WorkloadInfo]:
        """Workloads by their ids: the same object as long as nothing has changed."""
        self._forget(now_s)
        if self._changed:
            told = {key: one.known for key, one in self._containers.items() if one.known is not None}
            self._known = MappingProxyType(told)
            self._changed = False
        return self._known

    def list_anew(self, listed: Iterable[Listed], now_s: float, wall_s: float) -> list[str]:
        """Take a list of all that runs; returns the ids that must be inspected: who is new, or was started again.

        ``now_s`` is monotonic. ``wall_s`` is Unix time before the list was asked for.
        """
        due: list[str] = []
        running: set[str] = set()
        for one in listed:
            if one.running:
                running.add(one.id)
            if self._must_be_inspected(one, wall_s):
                due.append(one.id)
            else:
                self._rename(one.id, one.name)
        for container_id in self._containers.keys() - running - self._ended.keys():
            self._end(container_id, now_s)
        return due

    def happened(self, event: Event, now_s: float) -> bool:
        """Take an event; true if its container must be inspected."""
        if event.action in _STARTED:
            # Nobody starts who has not ended before: one that runs here was listed or inspected after this start.
            return event.id not in self._containers or event.id in self._ended
        if event.action in _RENAMED:
            self._rename(event.id, event.name)
        elif event.action in _ENDED:
            self._end(event.id, now_s)
        elif event.action in REMOVED:
            self._end(event.id, now_s, removed=True)
        return False

    def described(self, container_id: str, container: Container, now_s: float) -> None:
        """Take what an inspection said."""
        if self._containers.get(container_id) != container:
            self._containers[container_id] = container
            self._changed = True
        if container.known is not None and not container.known.running:
            self._ended.setdefault(container_id, _End(now_s, removed=False))
        else:
            self._ended.pop(container_id, None)

    def gone(self, container_id: str, now_s: float) -> None:
        """Take that nobody has this container any more."""
        self._end(container_id, now_s, removed=True)

    def _must_be_inspected(self, one: Listed, wall_s: float) -> bool:
        container = self._containers.get(one.id)
        if container is None:
            return True
        if not one.running:
            return False
        if one.id in self._ended:
            return True
        since_s = None if container.known is None else container.known.since_s
        if since_s is None or one.up_at_most_s is None:
            return False
        return wall_s - since_s > one.up_at_most_s + _SAME_START_S

    def _rename(self, container_id: str, name: str | None) -> None:
        container = self._containers.get(container_id)
        if container is None or container.known is None or name is None:
            return
        names = container.known.names
        if names.pod is not None or names.container == name:  # in a pod the name is the kubelet's, from a label
            return
        known = container.known._replace(names=names._replace(container=name))
        self._containers[container_id] = container._replace(known=known)
        self._changed = True

    def _end(self, container_id: str, now_s: float, *, removed: bool = False) -> None:
        container = self._containers.get(container_id)
        if container is None:
            return
        if container.known is not None and container.known.running:
            self._containers[container_id] = container._replace(known=container.known._replace(running=False))
            self._changed = True
        before = self._ended.get(container_id)
        if before is None or removed:
            self._ended[container_id] = _End(now_s, removed)

    def _forget(self, now_s: float) -> None:
        too_many = len(self._ended) - _MOST_ENDED
        over = [
            container_id
            for place, (container_id, end) in enumerate(self._ended.items())
            if place < too_many or (end.removed and now_s - end.at_s >= _LINGER_S)
        ]
        for container_id in over:
            del self._ended[container_id], self._containers[container_id]
            self._changed = True
