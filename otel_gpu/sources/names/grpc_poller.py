"""A poller that makes gRPC calls to a service of the node."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from otel_gpu.clock import Clock
from otel_gpu.errors import Unavailable
from otel_gpu.sources.names.grpc_client import GrpcConnection, open_connection, socket_path
from otel_gpu.sources.names.poller import Poller, PublishedNames

M = TypeVar("M", bound=Message)


class GrpcPoller:
    """Runs ``poll`` on a thread, which calls the service and sleeps in turn; again after a failure.

    Each call has a connection of its own: an agent calls every few seconds at most.
    """

    def __init__(
        self,
        name: str,
        endpoint: str,
        published: PublishedNames,
        poll: Callable[[], None],
        *,
        timeout_s: float,
        clock: Clock,
    ) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._clock = clock
        self._poller = Poller(name, published, lambda _: poll())
        self._connection: GrpcConnection | None = None

    def start(self) -> None:
        """Start the thread unless it runs."""
        self._poller.start()

    def wake(self) -> None:
        """End ``sleep``: there is something to look up."""
        self._poller.wake()

    def close(self) -> None:
        """Stop the thread. A call in progress ends."""
        self._poller.stop(timeout_s=0.0)
        if (connection := self._connection) is not None:
            connection.close()
        self._poller.stop()

    # -- within ``poll`` ----------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether ``poll`` must return."""
        return self._poller.stopping

    def call(self, method: str, kind: type[M], request: bytes = b"") -> M:
        """The answer to a method, given by its full name. Raises ``Unsupported`` if the service lacks the method."""
        raw = self._call(method, request)
        try:
            return kind.FromString(raw)
        except DecodeError:
            name, path = method.rpartition("/")[2], socket_path(self._endpoint)
            raise Unavailable(f"{path}: cannot decode the answer to {name} ({len(raw):,} bytes)") from None

    def sleep(self, seconds: float) -> bool:
        """Wait after an answer, at most this long; true if woken."""
        self._poller.reset_backoff()
        return self._poller.sleep(seconds)

    def _call(self, method: str, request: bytes) -> bytes:
        connection = self._connection = open_connection(self._endpoint, self._timeout_s, self._clock)
        try:
            # close() sets stopping before it looks for a connection: either it is seen here, or the connection there.
            if self.stopping:
                raise Unavailable("closed")
            return connection.call(method, request)
        finally:
            self._connection = None
            connection.close()
