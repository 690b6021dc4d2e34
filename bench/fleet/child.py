"""Child processes that answer requests over a pipe, and end with their parent."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Final, TypeVar

from bench.fleet.errors import FleetError

T = TypeVar("T")

_PATIENCE_S: Final = 300.0
_END_S: Final = 5.0


class Child:
    """The parent's end of a child process."""

    def __init__(self, name: str, connection: Connection, pid: int) -> None:
        self.name = name
        self.pid = pid
        self._connection = connection

    def send(self, message: object) -> None:
        """Send a request."""
        try:
            self._connection.send(message)
        except OSError:
            raise FleetError(f"{self.name} has ended") from None

    def receive(self, kind: type[T]) -> T:
        """The next answer, which must be of this type."""
        try:
            if not self._connection.poll(_PATIENCE_S):
                raise FleetError(f"{self.name} has not answered for {_PATIENCE_S:g} s")
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise FleetError(f"{self.name} has ended") from None
        if not isinstance(answer, kind):
            raise FleetError(f"{self.name} answered {answer!r}")
        return answer


@contextmanager
def child(name: str, serve: Callable[..., None], *arguments: object) -> Iterator[Child]:
    """``serve(connection, *arguments)`` in a process of its own. Spawned, not forked: the caller may have threads.

    The process ends when its connection is closed, and is killed if it does not.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(theirs, serve, arguments), name=name, daemon=True)
    process.start()
    theirs.close()
    try:
        yield Child(name, ours, process.pid or 0)
    finally:
        ours.close()
        process.join(_END_S)
        process.kill()
        process.join()


def _run(connection: Connection, serve: Callable[..., None], arguments: tuple[object, ...]) -> None:
    # Ctrl-C at a terminal reaches all processes; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):  # the parent has closed the pipe
        serve(connection, *arguments)
