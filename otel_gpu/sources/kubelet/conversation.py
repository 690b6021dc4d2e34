"""Talking to a service of the node beside the cycles, over one socket, for as long as it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from otel_gpu.clock import Clock
from otel_gpu.errors import Unavailable
from otel_gpu.sources.beside import Beside, Board
from otel_gpu.sources.kubelet.endpoint import open_channel, open_wire, socket_path

M = TypeVar("M", bound=Message)


class _Line(Protocol):
    """A connection to ask through: a wire, or the library's channel."""

    def ask(self, method: str, request: bytes = b"") -> bytes | None:
        """The answer to a method by its full name; ``None`` if there is no good one."""

    def close(self) -> None:
        """Hang up."""


class Conversation:
    """Calls ``talk`` on a thread of its own, which asks and rests by turns; again after a loss.

    Between two questions nothing is open: an idle channel keeps threads of gRPC awake.
    """

    def __init__(
        self, name: str, endpoint: str, board: Board, talk: Callable[[], None], *, timeout_s: float, clock: Clock
    ) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._clock = clock
        self._beside = Beside(name, board, lambda _: talk())
        self._line: _Line | None = None

    def start(self) -> None:
        """Begin, unless it has begun."""
        self._beside.start()

    def wake(self) -> None:
        """End a rest: there is something to ask."""
        self._beside.wake()

    def close(self) -> None:
        """End it. A call that is under way is given up."""
        self._beside.stop(timeout_s=0.0)
        if (line := self._line) is not None:
            line.close()
        self._beside.stop()

    # -- within ``talk`` ----------------------------------------------------------------

    @property
    def goes_on(self) -> bool:
        """Whether it is not to end."""
        return not self._beside.stopping

    def ask(self, method: str, kind: type[M], request: bytes = b"") -> M:
        """The answer to a method by its full name; ``Unavailable``, or ``Unsupported`` if there is no such method."""
        raw = self._asked(open_wire(self._endpoint, self._timeout_s, self._clock), method, request)
        if raw is None and self.goes_on:
            raw = self._asked(open_channel(self._endpoint, self._timeout_s), method, request)
        if raw is None:
            raise Unavailable("closed")
        try:
            return kind.FromString(raw)
        except DecodeError:
            name = method.rpartition("/")[2]
            path = socket_path(self._endpoint)
            raise Unavailable(f"{path}: the answer to {name} cannot be read ({len(raw):,} bytes)") from None

    def rest(self, seconds: float) -> bool:
        """Wait so long at most after what was answered well; true if woken."""
        self._beside.well()
        return self._beside.sleep(seconds)

    def _asked(self, line: _Line, method: str, request: bytes) -> bytes | None:
        self._line = line
        try:
            # Whoever closes says so first and looks for a line then: either it is seen here, or the line there.
            if self._beside.stopping:
                raise Unavailable("closed")
            return line.ask(method, request)
        finally:
            self._line = None
            line.close()
