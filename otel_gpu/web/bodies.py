"""Bodies of responses: made once per cycle and format, shared by all clients, and limited in memory together.

A body counts from the moment it is made until nothing refers to it. So the body of an old cycle counts for as long as a
slow client receives it. One body is made at a time, and a part is added to it only if there is room.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Final
from weakref import WeakSet, WeakValueDictionary

from isal import isal_zlib

from otel_gpu.errors import Unavailable

MAX_BODIES_BYTES: Final = 96 << 20
"""All bodies of an agent together. Two cycles of a host at the limit of series fit, in plain text."""

UNCOUNTED_BYTES: Final = 4096
"""The largest body that does not count, as of errors and probes."""

_GZIP_LEVEL: Final = 1  # level 2 gives the same size in the same time, level 3 takes eight times as long (ADR 1)
_GZIP_FORMAT: Final = 16 + 15  # zlib's wbits: a gzip member, the largest window


class Postponed(Unavailable):
    """A response has to wait: for ``needed_bytes`` of memory or more, or until another body is made."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__("too many responses at a time; try again")
        self.needed_bytes = needed_bytes


class Body:
    """The bytes of a response, which any number of connections may send. ``cycle`` is the cycle that they show."""

    __slots__ = ("__weakref__", "cycle", "data")

    def __init__(self, data: bytes, cycle: object = None) -> None:
        self.data = data
        self.cycle = cycle


class Bodies:
    """The bodies of all listeners. Any thread may use it."""

    def __init__(self, max_bytes: int = MAX_BODIES_BYTES) -> None:
        self._max_bytes = max_bytes
        self._making = threading.Lock()
        self._lock = threading.Lock()  # of everything below
        self._live: WeakSet[Body] = WeakSet()
        self._unfinished_bytes = 0
        self._last_bytes: dict[Hashable, int] = {}
        # The newest cycle, and the one before it, for which late requests may still ask.
        self._cycle: object = None
        self._previous_cycle: object = None
        self._newest: WeakValueDictionary[Hashable, Body] = WeakValueDictionary()
        self._kept: list[Body] = []  # so that those in _newest persist while no client receives them

    @property
    def used_bytes(self) -> int:
        """The bytes of all bodies, including one that is being made."""
        with self._lock:
            return self._used_bytes()

    def has_room(self, needed_bytes: int) -> bool:
        """Whether a body of this size fits, after bodies that no client receives are dropped."""
        with self._lock:
            return self._make_room(needed_bytes)

    @property
    def is_busy(self) -> bool:
        """Whether a body is being made."""
        return self._making.locked()

    def is_newest(self, body: Body) -> bool:
        """Whether it shows the newest cycle."""
        return body.cycle == self._cycle

    def shared(self, key: Hashable, cycle: object, parts: Callable[[], Iterable[bytes]], *, wait: bool = False) -> Body:
        """The body of this key in a cycle, made of ``parts`` by the first that asks.

        Postponed if it does not fit now or, unless ``wait``, if another body is being made. A late request for the
        previous cycle gets the body of the newest, if there is one.
        """
        with self._lock:
            self._advance_to(cycle)
            body = self._newest.get(key)
        if body is not None:
            return body
        if not self._making.acquire(blocking=wait):
            raise Postponed(0)
        try:
            with self._lock:
                body = self._newest.get(key)  # made in the meantime
            if body is None:
                body = self._made(key, cycle, parts)
                with self._lock:
                    if cycle == self._cycle:
                        self._newest[key] = body
                        self._kept.append(body)
            return body
        finally:
            self._making.release()

    def adopted(self, data: bytes) -> Body:
        """A body that a route has made. A small one does not count, so that an error or a probe is always answered."""
        body = Body(data)
        if len(data) > UNCOUNTED_BYTES:
            with self._lock:
                if not self._make_room(len(data)):
                    raise Postponed(len(data))
                self._live.add(body)
        return body

    def _advance_to(self, cycle: object) -> None:
        if cycle not in (self._cycle, self._previous_cycle):
            self._previous_cycle, self._cycle = self._cycle, cycle
            self._newest.clear()
            self._kept.clear()

    def _made(self, key: Hashable, cycle: object, parts: Callable[[], Iterable[bytes]]) -> Body:
        """Make a body. What it needs is known from the last time, and otherwise as it grows."""
        expected_bytes = self._last_bytes.get(key, 0)
        self._reserve(expected_bytes)
        buffer, size = BytesIO(), 0
        try:
            for part in parts():
                size += len(part)
                if size > expected_bytes:
                    self._last_bytes[key] = size
                    self._reserve(size)
                buffer.write(part)
            body = Body(buffer.getvalue(), cycle)
            with self._lock:
                self._live.add(body)
        finally:
            with self._lock:
                self._unfinished_bytes = 0
        self._last_bytes[key] = size
        return body

    def _reserve(self, needed_bytes: int) -> None:
        """Count the body that is being made with this size."""
        with self._lock:
            self._unfinished_bytes = 0
            if not self._make_room(needed_bytes):
                raise Postponed(needed_bytes)
            self._unfinished_bytes = needed_bytes

    def _make_room(self, needed_bytes: int) -> bool:
        if self._used_bytes() + needed_bytes > self._max_bytes:
            self._kept.clear()
        return self._used_bytes() + needed_bytes <= self._max_bytes

    def _used_bytes(self) -> int:
        return self._unfinished_bytes + sum(len(body.data) for body in self._live)


@dataclass(frozen=True, slots=True)
class CycleBody:
    """The body of a response to be: ``parts`` make it, once for all clients that ask for ``key`` in ``cycle``."""

    bodies: Bodies
    key: Hashable
    cycle: object
    parts: Callable[[], Iterable[bytes]]

    def plain(self) -> Body:
        """The body as it is."""
        return self.bodies.shared((self.key, "plain"), self.cycle, self.parts)

    def compressed(self) -> Body:
        """The body in gzip. The plain one is not kept in memory for it."""
        return self.bodies.shared((self.key, "gzip"), self.cycle, lambda: gzipped(self.parts()))


def gzipped(parts: Iterable[bytes]) -> Iterator[bytes]:
    """One gzip member, in parts."""
    compressor = isal_zlib.compressobj(_GZIP_LEVEL, isal_zlib.DEFLATED, _GZIP_FORMAT)
    for part in parts:
        yield compressor.compress(part)
    yield compressor.flush()
