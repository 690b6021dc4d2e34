"""What goes on after an answer: frames, of which only the newest counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


class Feed:
    """The newest frame, and who is told that there is another. Any thread may publish.

    A frame is one object for everybody who follows: whether somebody has had it is told by its identity.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: dict[object, Callable[[], None]] = {}
        self.newest: bytes | None = None

    @property
    def followed(self) -> bool:
        """Whether anybody follows; a frame that nobody would have need not be made."""
        return bool(self._followers)

    def publish(self, frame: bytes) -> None:
        """This is the newest one from now on."""
        with self._lock:
            self.newest = frame
            told = set(self._followers.values())  # a server with many followers is told once
        for tell in told:
            tell()

    def join(self, follower: object, tell: Callable[[], None]) -> None:
        """From now on ``tell`` is called, from any thread, when there is a new frame."""
        with self._lock:
            self._followers[follower] = tell

    def leave(self, follower: object) -> None:
        """Follow no more; nothing happens to who does not."""
        with self._lock:
            self._followers.pop(follower, None)


@dataclass(frozen=True, slots=True)
class Following:
    """An answer that goes on with the frames of a feed after ``told``, which its body told already."""

    feed: Feed
    told: bytes | None = None
