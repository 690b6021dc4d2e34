"""Names from a Docker or Podman engine: listed once, kept current by its events, each container inspected once."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.errors import Gone, Unavailable
from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import NO_WORKLOADS, NameRead, Speaker, SpeakerKind
from otel_gpu.sources.names.docker.client import DockerTls, EngineClient, EventListener
from otel_gpu.sources.names.docker.containers import (
    ContainerParser,
    is_container_id,
    parse_event,
    parse_listed,
    parse_pid,
)
from otel_gpu.sources.names.docker.registry import ACTIONS, REMOVED, ContainerRegistry
from otel_gpu.sources.names.poller import MAX_RETRY_S, Poller, PublishedNames
from otel_gpu.sources.proc.cgroup import parse_cgroup
from otel_gpu.sources.proc.files import read_file

_RESYNC_S: Final = 300.0
"""Interval of a complete list and a new event stream: a connection can die, and an event be lost, unnoticed."""
_RELIST_S: Final = 15.0
"""Interval of lists where events are forbidden, not answered, or end early."""
_STABLE_S: Final = 10.0
"""A stream that ends after this time was cut by a proxy or a restart, and is opened again at once."""
_UNSTABLE: Final = f"GET /events ends within {_STABLE_S:g} s; containers are listed every {_RELIST_S:g} s instead"
_UNIX_RETRY_S: Final = 2.0
"""Longest pause between attempts at a unix socket: they are cheap, and a restarted engine starts containers at once."""
_PUBLISH_S: Final = 0.5
"""Interval at which containers are published during a first list of hundreds."""
_MAX_FAILURES: Final = 5
"""Containers that the engine may fail to describe before it counts as failed itself."""
_MAX_NOT_FOUND: Final = 4096
"""Ids that the engine does not have. The oldest is dropped first, and would be looked up again."""
_OTHER_RUNTIMES: Final = {"docker": ("ecs",)}
"""Runtimes in cgroups whose containers belong to this engine: ECS agents use Docker."""


class DockerSource:
    """Knows the containers of one engine. ``name`` tells several engines apart: ``podman``, ``podman-1000``.

    ``uid`` is the user who owns the socket's directory. Without it, the process that listens on the socket decides: an
    engine of another user than root is that user's own.
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        labels: Collection[str] = (),
        tls: DockerTls | None = None,
        timeout_s: float = 5.0,
        runtime: str = "docker",
        uid: int | None = None,
        proc_root: Path = Path("/proc"),
        clock: Clock,
    ) -> None:
        self.name: Final = name
        self._base_url = base_url
        self._tls = tls
        self._timeout_s = timeout_s
        self._clock = clock
        self._parser = ContainerParser(runtime, frozenset(labels))
        self._uid = uid
        self._proc_root = proc_root
        self._speaker = Speaker(SpeakerKind.ENGINE, frozenset({runtime, *_OTHER_RUNTIMES.get(runtime, ())}), uid)
        self._published = PublishedNames(self._speaker)
        max_retry_s = _UNIX_RETRY_S if base_url.startswith("unix://") else MAX_RETRY_S
        self._poller = Poller(name, self._published, self._poll, max_retry_s=max_retry_s)
        # Used by the thread only:
        self._registry = ContainerRegistry()
        self._problems: dict[str, str] = {}  # by subject, until the next complete list
        self._new_errors = 0
        self._listener: EventListener | None = None
        # Shared by the thread and the cycles:
        self._lock = threading.Lock()
        self._requested: set[str] = set()
        self._not_found: dict[str, None] = {}
        self._due: frozenset[str] = frozenset()

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        """The latest answer. Containers that are not known are looked up before the next cycle."""
        self._poller.start()
        read = self._published.read()
        unknown = [ref for ref in workloads if ref.kind is WorkloadKind.CONTAINER and ref.id not in read.known]
        if not unknown or read.state is SourceState.UNAVAILABLE:
            return read
        pending = self._request(unknown)
        return replace(read, pending=pending) if pending else read

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first list, or for the reason why there is none."""
        self._poller.start()
        return self._published.wait(timeout_s)

    def close(self) -> None:
        """Stop polling; returns within about a second even if the engine does not answer."""
        self._poller.stop()

    def _request(self, unknown: Iterable[WorkloadRef]) -> frozenset[str]:
        """Request a look-up of the containers that this engine may have; returns their ids."""
        with self._lock:
            due = self._due
            # Few pods are Docker's, and those that are have been listed.
            wanted = {
                ref.id
                for ref in unknown
                if ref.id in due or (ref.pod_uid is None and self._may_be_mine(ref) and ref.id not in self._not_found)
            }
            requested = {container_id for container_id in wanted if is_container_id(container_id)}
            self._requested |= requested
        if requested:
            self._poller.wake()
        return frozenset(requested)

    def _may_be_mine(self, ref: WorkloadRef) -> bool:
        speaker = self._speaker
        return ref.runtime in (None, *speaker.runtimes) and speaker.uid in (None, ref.user_uid)

    # ------------------------------------------------------------------------ on the thread

    def _poll(self, poller: Poller) -> None:
        # After a stream that ended early, one round does without events, and the next one tries them again.
        without_events = trying_again = False
        while not poller.stopping:
            start_s = self._now_s()
            self._problems.clear()
            with closing(EngineClient(self._base_url, tls=self._tls, timeout_s=self._timeout_s)) as engine:
                self._identify(engine)
                # Events come first: they show what changes while the list is made.
                listener = None if without_events else self._listen(engine)
                if without_events or trying_again:
                    self._problems.setdefault("events", _UNSTABLE)
                try:
                    self._list(engine, poller)
                    relist_s = _RELIST_S if listener is None or trying_again else _RESYNC_S
                    lost = self._follow(engine, listener, poller, start_s + relist_s)
                finally:
                    if listener is not None:
                        listener.close()
                    if is_stable := self._now_s() - start_s >= _STABLE_S:
                        poller.reset_backoff()
            ended_early = lost and not is_stable
            trying_again = without_events or (trying_again and listener is None)
            without_events = ended_early
            self._new_errors += ended_early

    def _identify(self, engine: EngineClient) -> None:
        """Find out whose engine this is. Another one's containers are forgotten: they count by who states them."""
        speaker = replace(self._speaker, uid=self._uid if self._uid is not None else engine.peer_uid or None)
        if speaker != self._speaker:
            self._registry = ContainerRegistry()
            self._published.publish(NO_WORKLOADS, speaker)
            self._speaker = speaker

    def _listen(self, engine: EngineClient) -> EventListener | None:
        """A listener to events; ``None`` if the engine, or a proxy before it, does not allow that."""
        reason = "no answer to GET /events yet"
        if self._listener is None or not self._listener.alive:
            self._listener = EventListener(engine, ACTIONS, quiet_s=_RESYNC_S + self._timeout_s, wake=self._poller.wake)
            try:
                self._listener.start(self._timeout_s)
            except Unavailable as error:
                self._listener.close(timeout_s=0.0)
                reason = str(error)
            else:
                return self._listener
        self._add_problem("events", f"{reason}; containers are listed every {_RELIST_S:g} s instead")
        return None

    def _list(self, engine: EngineClient, poller: Poller) -> None:
        listed = []
        wall_s = self._clock.wall_ns() / 1e9
        for item in engine.containers():
            if (entry := parse_listed(item)) is not None:
                listed.append(entry)
            else:
                self._add_problem("list", "an entry of the list of containers has no id")
        due = self._registry.apply_list(listed, self._now_s(), wall_s)
        with self._lock:
            self._due = frozenset(due)
            requested = self._requested.intersection(due)
        # Containers that a cycle waits for come first.
        self._inspect(engine, sorted(due, key=lambda container_id: container_id not in requested), poller)
        with self._lock:
            self._due = frozenset()
        self._publish()

    def _follow(self, engine: EngineClient, listener: EventListener | None, poller: Poller, until_s: float) -> bool:
        """Apply events and look-ups until the next complete list; true if the events ended before that."""
        while not poller.stopping:
            lost = listener is not None and listener.ended  # read first, so that the last events are taken too
            lines = [] if listener is None else listener.take()
            due = dict.fromkeys(self._take_requested())
            for line in lines:
                self._apply_event(line, due)
            self._inspect(engine, due, poller)
            if lines or due:
                self._publish()
            left_s = until_s - self._now_s()
            if lost or left_s <= 0:
                return lost
            poller.sleep(left_s)
        return False

    def _apply_event(self, line: bytes | None, due: dict[str, None]) -> None:
        event = None if line is None else parse_event(line)
        if event is None:
            self._add_problem("event", "an event is not valid")
        elif self._registry.apply_event(event, self._now_s()):
            due[event.id] = None
        elif event.action in REMOVED:
            due.pop(event.id, None)

    def _take_requested(self) -> list[str]:
        with self._lock:
            # One that was requested again while it was looked up has its answer.
            requested = [
                container_id
                for container_id in self._requested
                if container_id not in self._registry and container_id not in self._not_found
            ]
            self._requested.clear()
            return requested

    def _inspect(self, engine: EngineClient, due: Iterable[str], poller: Poller) -> None:
        failures = 0
        published_s = self._now_s()
        for container_id in due:
            if poller.stopping:
                return
            try:
                self._add(container_id, engine.inspect(container_id))
            except Gone:
                self._registry.remove(container_id, self._now_s())
                self._add_not_found(container_id)
            except Unavailable as error:
                # An engine may hang on one container and answer for all others.
                failures += 1
                if failures > _MAX_FAILURES:
                    raise
                engine.check()
                self._add_problem(container_id, str(error))
                self._add_not_found(container_id)
            finally:
                if failures or self._now_s() - published_s >= _PUBLISH_S:
                    published_s = self._now_s()
                    self._published.publish(self._registry.known(published_s))

    def _add(self, container_id: str, document: object) -> None:
        pid = parse_pid(document)
        place = None if pid is None else read_place(self._proc_root, pid, container_id)
        container = self._parser.parse_container(container_id, document, place)
        self._new_errors += len(container.notes)
        self._registry.add(container_id, container, self._now_s())
        if container.info is None:
            self._add_not_found(container_id)

    def _add_not_found(self, container_id: str) -> None:
        with self._lock:
            self._not_found[container_id] = None
            while len(self._not_found) > _MAX_NOT_FOUND:
                del self._not_found[next(iter(self._not_found))]

    def _add_problem(self, subject: str, reason: str) -> None:
        self._new_errors += 1
        if len(self._problems) < _MAX_NOT_FOUND:
            self._problems[subject] = reason

    def _publish(self) -> None:
        self._published.publish(self._registry.known(self._now_s()))
        errors, self._new_errors = self._new_errors, 0
        self._published.set_problems([*self._problems.values(), *self._registry.notes], errors=errors)

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9


def read_place(proc_root: Path, pid: int, container_id: str) -> WorkloadRef | None:
    """The container as the cgroup of this process shows it; ``None`` if the process is not in this container.

    An engine states the pid, so it proves nothing by itself. It may also be one of another pid namespace.
    """
    try:
        cgroup = read_file(str(proc_root / str(pid) / "cgroup"))
    except OSError:
        return None
    place = parse_cgroup(cgroup.decode("utf-8", "replace"))
    is_it = place is not None and (place.kind, place.id) == (WorkloadKind.CONTAINER, container_id)
    return place if is_it else None
