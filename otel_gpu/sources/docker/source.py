"""Names from a Docker or Podman engine: listed once, kept current by its events, each container inspected once."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Final

from otel_gpu.clock import Clock
from otel_gpu.errors import Gone, Unavailable
from otel_gpu.model import SourceState, WorkloadRef
from otel_gpu.sources.base import NameRead
from otel_gpu.sources.beside import Beside, Board
from otel_gpu.sources.docker.client import DockerTls, Engine
from otel_gpu.sources.docker.containers import Reader, is_container_id, parse_event, parse_listed
from otel_gpu.sources.docker.listener import Listener
from otel_gpu.sources.docker.roster import ACTIONS, REMOVED, Roster
from otel_gpu.sources.unknown import Unknown, is_container

_ANEW_S: Final = 300.0
"""After that long everything is asked anew, the events too: a connection can die, and an event be lost, unnoticed."""
_WITHOUT_EVENTS_S: Final = 15.0
"""How often the list is asked for where events are forbidden, not answered, or end too soon."""
_STEADY_S: Final = 10.0
"""A stream that ends after that long was cut by a proxy or a restart, and is opened again at once."""
_TOO_SOON: Final = (
    f"GET /events ends within {_STEADY_S:g} s; containers are listed every {_WITHOUT_EVENTS_S:g} s instead"
)
_UNIX_RETRY_S: Final = 2.0
"""At most between attempts at a socket of this host: they cost next to nothing, and an engine that was restarted starts
containers at once."""
_PUBLISH_S: Final = 0.5
"""In a first list of hundreds, who is already described is told that often."""
_MOST_FAILURES: Final = 5
"""Containers that an engine may fail to describe, one after the other, before it counts as failed itself."""
_MOST_UNKNOWN: Final = 4096
"""Ids that were asked for and nobody had; the oldest is forgotten first, and would be asked for again."""
_OTHER_RUNTIMES: Final = {"docker": ("ecs",)}
"""Whose cgroups name them otherwise, and whose containers are still this engine's: ECS agents use Docker."""


class DockerSource:
    """A source of names. ``name`` tells engines apart where there are several: ``podman``, ``podman-1000``."""

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        labels: Collection[str] = (),
        tls: DockerTls | None = None,
        timeout_s: float = 5.0,
        runtime: str = "docker",
        clock: Clock,
    ) -> None:
        self.name: Final = name
        self._base_url = base_url
        self._tls = tls
        self._timeout_s = timeout_s
        self._clock = clock
        self._reader = Reader(runtime, frozenset(labels))
        self._runtimes = frozenset({None, runtime, *_OTHER_RUNTIMES.get(runtime, ())})
        self._board = Board()
        longest_retry_s = _UNIX_RETRY_S if base_url.startswith("unix://") else None
        self._beside = Beside(name, self._board, self._follow, longest_retry_s=longest_retry_s)
        # The thread's own
        self._roster = Roster()
        self._troubles: dict[str, str] = {}  # by what they are about, until everything is asked anew
        self._new_errors = 0
        self._listener: Listener | None = None
        # The cycles' own
        self._missing = Unknown(is_container)
        # Shared with the cycles
        self._lock = threading.Lock()
        self._asked: set[str] = set()
        self._unknown: dict[str, None] = {}
        self._due: frozenset[str] = frozenset()

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        """What is known by now. A container that is not is looked up before the next cycle."""
        self._beside.start()
        read = self._board.read()
        missing = self._missing.among(workloads, read.known)
        if not missing or read.state is SourceState.UNAVAILABLE:
            return read
        pending = self._look_up(missing)
        return replace(read, pending=pending) if pending else read

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first list, or for the reason why there is none."""
        self._beside.start()
        return self._board.wait(timeout_s)

    def close(self) -> None:
        """Ask no more; returns within about a second, whatever the engine does."""
        self._beside.stop()

    def _look_up(self, missing: Iterable[WorkloadRef]) -> frozenset[str]:
        """Have those looked up that this engine may know; returns them."""
        with self._lock:
            due = self._due
            # A pod's containers are mostly not Docker's; those that are, it has listed.
            wanted = {
                ref.id
                for ref in missing
                if ref.id in due
                or (ref.pod_uid is None and ref.runtime in self._runtimes and ref.id not in self._unknown)
            }
            asked = {container_id for container_id in wanted if is_container_id(container_id)}
            self._asked |= asked
        if asked:
            self._beside.wake()
        return frozenset(asked)

    # ------------------------------------------------------------------------ on the thread

    def _follow(self, beside: Beside) -> None:
        # After a stream that ended too soon one round goes without, and the next is on trial.
        resting = on_trial = False
        while not beside.stopping:
            began_s = self._now_s()
            self._troubles.clear()
            with closing(Engine(self._base_url, tls=self._tls, timeout_s=self._timeout_s)) as engine:
                # Events come first: what changes while the list is made is then told by them.
                listener = None if resting else self._listening(engine)
                if resting or on_trial:
                    self._troubles.setdefault("events", _TOO_SOON)
                try:
                    self._list(engine, beside)
                    often = listener is None or on_trial
                    lost = self._attend(engine, listener, beside, began_s + (_WITHOUT_EVENTS_S if often else _ANEW_S))
                finally:
                    if listener is not None:
                        listener.close()
                    if steady := self._now_s() - began_s >= _STEADY_S:
                        beside.well()
            resting, on_trial = lost and not steady, resting or (on_trial and listener is None)
            self._new_errors += resting

    def _listening(self, engine: Engine) -> Listener | None:
        """Somebody who listens to events; ``None`` if the engine, or a proxy before it, does not let us."""
        reason = "GET /events is still not answered"
        if self._listener is None or not self._listener.alive:
            self._listener = Listener(engine, ACTIONS, quiet_s=_ANEW_S + self._timeout_s, wake=self._beside.wake)
            try:
                self._listener.start(self._timeout_s)
            except Unavailable as error:
                self._listener.close(timeout_s=0.0)
                reason = str(error)
            else:
                return self._listener
        self._trouble("events", f"{reason}; containers are listed every {_WITHOUT_EVENTS_S:g} s instead")
        return None

    def _list(self, engine: Engine, beside: Beside) -> None:
        listed = []
        wall_s = self._clock.wall_ns() / 1e9
        for item in engine.containers():
            if (line := parse_listed(item)) is not None:
                listed.append(line)
            else:
                self._trouble("list", "an entry of the list of containers has no id")
        due = self._roster.list_anew(listed, self._now_s(), wall_s)
        with self._lock:
            self._due = frozenset(due)
            asked = self._asked.intersection(due)
        # Who is waited for comes first.
        self._inspect(engine, sorted(due, key=lambda one: one not in asked), beside)
        with self._lock:
            self._due = frozenset()
        self._publish()

    def _attend(self, engine: Engine, listener: Listener | None, beside: Beside, until_s: float) -> bool:
        """Keep current until everything is due anew; true if the events ended before that."""
        while not beside.stopping:
            lost = listener is not None and listener.ended  # looked up first, so that what came last is taken too
            lines = [] if listener is None else listener.take()
            due = dict.fromkeys(self._asked_for())
            for line in lines:
                self._hear(line, due)
            self._inspect(engine, due, beside)
            if lines or due:
                self._publish()
            left_s = until_s - self._now_s()
            if lost or left_s <= 0:
                return lost
            beside.sleep(left_s)
        return False

    def _hear(self, line: bytes, due: dict[str, None]) -> None:
        event = parse_event(line)
        if event is None:
            self._trouble("event", "an event was not understood")
        elif self._roster.happened(event, self._now_s()):
            due[event.id] = None
        elif event.action in REMOVED:
            due.pop(event.id, None)

    def _asked_for(self) -> list[str]:
        with self._lock:
            # Asked for again while it was looked up, it has its answer by now.
            asked = [one for one in self._asked if one not in self._roster and one not in self._unknown]
            self._asked.clear()
            return asked

    def _inspect(self, engine: Engine, due: Iterable[str], beside: Beside) -> None:
        failed = 0
        told_s = self._now_s()
        for container_id in due:
            if beside.stopping:
                return
            try:
                self._describe(container_id, engine.inspect(container_id))
            except Gone:
                self._roster.gone(container_id, self._now_s())
                self._nobody_knows(container_id)
            except Unavailable as error:
                # An engine can be stuck with one container and answer for all others: is it the engine?
                failed += 1
                if failed > _MOST_FAILURES:
                    raise
                engine.check()
                self._trouble(container_id, str(error))
                self._nobody_knows(container_id)
            finally:
                if failed or self._now_s() - told_s >= _PUBLISH_S:
                    told_s = self._now_s()
                    self._board.know(self._roster.known(told_s))

    def _describe(self, container_id: str, document: object) -> None:
        container = self._reader.parse_container(container_id, document)
        self._new_errors += len(container.notes)
        self._roster.described(container_id, container, self._now_s())
        if container.known is None:
            self._nobody_knows(container_id)

    def _nobody_knows(self, container_id: str) -> None:
        with self._lock:
            self._unknown[container_id] = None
            while len(self._unknown) > _MOST_UNKNOWN:
                del self._unknown[next(iter(self._unknown))]

    def _trouble(self, about: str, reason: str) -> None:
        self._new_errors += 1
        if len(self._troubles) < _MOST_UNKNOWN:
            self._troubles[about] = reason

    def _publish(self) -> None:
        self._board.know(self._roster.known(self._now_s()))
        errors, self._new_errors = self._new_errors, 0
        reasons = [*self._troubles.values(), *self._roster.notes]
        if not reasons:
            self._board.well()
        else:
            more = f"; and {len(reasons) - 1} more" if len(reasons) > 1 else ""
            self._board.degraded(f"{reasons[0]}{more}", errors=errors)

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9
