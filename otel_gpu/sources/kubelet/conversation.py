"""Talking to a service of the node beside the cycles, over one socket, for as long as it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message

from otel_gpu.errors import Unavailable
from otel_gpu.sources.beside import Beside, Board
from otel_gpu.sources.kubelet.endpoint import open_channel

if TYPE_CHECKING:
    from otel_gpu.sources.kubelet.channel import Channel

M = TypeVar("M", bound=Message)


class Conversation:
    """Calls ``talk`` on a thread of its own, which asks and rests by turns; again after a loss.

    Between two questions the channel is closed: open, it keeps threads of gRPC awake, which takes more CPU in seconds
    than opening it again.
    """

    def __init__(self, name: str, endpoint: str, timeout_s: float, board: Board, talk: Callable[[], None]) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._talk = talk
        self._beside = Beside(name, board, self._follow)
        self._channel: Channel | None = None

    def start(self) -> None:
        """Begin, unless it has begun."""
        self._beside.start()

    def wake(self) -> None:
        """End a rest: there is something to ask."""
        self._beside.wake()

    def close(self) -> None:
        """End it. A call that is under way is given up."""
        self._beside.stop(timeout_s=0.0)
        if (channel := self._channel) is not None:
            channel.close()
        self._beside.stop()

    # -- within ``talk`` ----------------------------------------------------------------

    @property
    def goes_on(self) -> bool:
        """Whether it is not to end."""
        return not self._beside.stopping

    def ask(self, method: str, kind: type[M]) -> M:
        """The answer to a method; see ``Channel.ask``."""
        if self._channel is None:
            self._channel = open_channel(self._endpoint, self._timeout_s)
        # Whoever closes says so first and looks for a channel then: either it is seen here, or the channel there.
        if self._beside.stopping:
            raise Unavailable("closed")
        return self._channel.ask(method, kind)

    def rest(self, seconds: float) -> bool:
        """Wait so long at most after what was answered well; true if woken."""
        self._hang_up()
        self._beside.well()
        return self._beside.sleep(seconds)

    def _follow(self, _: Beside) -> None:
        try:
            self._talk()
        finally:
            self._hang_up()

    def _hang_up(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
