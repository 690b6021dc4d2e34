"""The server of the control socket. It serves root and the agent's own user only."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from otel_gpu.bounded_io import Deadline
from otel_gpu.control import protocol
from otel_gpu.control.protocol import MAX_PAUSE_S
from otel_gpu.errors import OtelGpuError, Unavailable, UsageError
from otel_gpu.sources.pause import PausableGpus
from otel_gpu.sources.unix_socket import connect, peer

log = logging.getLogger(__name__)

Handler = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Executes a request and returns its result. OtelGpuError if it cannot."""

_REQUEST_TIMEOUT_S: Final = 2.0
_RESPONSE_TIMEOUT_S: Final = 2.0
_REJECT_TIMEOUT_S: Final = 0.2
_BACKLOG: Final = 8
_LOCK_TIMEOUT_S: Final = 1.0
"""Time to wait for another agent that starts at the same moment."""


class ControlServer:
    """Listens at a path from construction to ``stop``. Its directory must not be writable by other users.

    Unavailable if it cannot listen there, or another agent does.
    """

    def __init__(self, path: Path, handlers: Mapping[str, Handler], *, users: frozenset[int] | None = None) -> None:
        self._path = path
        self._handlers = handlers
        self._users = frozenset({0, os.geteuid()}) if users is None else users
        self._closed = threading.Event()
        try:
            self._listener, self._inode = _listen(path)
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror or error}") from None
        self._thread = threading.Thread(target=self._loop, name="otel-gpu-control", daemon=True)

    def start(self) -> None:
        """Start to serve requests."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, and remove the socket if it is still this one."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes up the thread
        if self._thread.is_alive():
            self._thread.join(1.0)
        self._listener.close()
        with contextlib.suppress(OSError):
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()

    def _loop(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EBADF, errno.EINVAL):
                    return
                self._closed.wait(0.1)  # no descriptor is left: a temporary condition
                continue
            with connection, contextlib.suppress(OSError):  # the client may have closed the connection
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        response = self._respond(connection)
        protocol.send(connection, response, Deadline(_RESPONSE_TIMEOUT_S))

    def _respond(self, connection: socket.socket) -> Mapping[str, Any]:
        pid, uid = peer(connection)
        if uid not in self._users:
            log.warning("control: request of user %d (pid %d) rejected", uid, pid)
            # An unread request would reset the connection before the response arrives.
            with contextlib.suppress(OSError, ValueError):
                protocol.receive(connection, Deadline(_REJECT_TIMEOUT_S))
            return _error("only root and the agent's own user are allowed")
        try:
            request = protocol.receive(connection, Deadline(_REQUEST_TIMEOUT_S))
        except ValueError as error:
            return _error(f"bad request: {error}")
        command = request.get("command")
        handler = self._handlers.get(command) if isinstance(command, str) else None
        if handler is None:
            return _error(f"bad request: unknown command; use {', '.join(self._handlers)}")
        try:
            result = handler(request)
        except OtelGpuError as error:
            return _error(str(error))
        except Exception as error:  # a bug must not stop the server
            log.error("control: %s: %s", type(error).__name__, error, exc_info=log.isEnabledFor(logging.DEBUG))  # noqa: TRY400
            return _error(f"internal error: {type(error).__name__}")
        return {"ok": True, **result}


def pause_handlers(gpus: PausableGpus, on_change: Callable[[], object]) -> dict[str, Handler]:
    """The handlers of ``pause`` and ``resume``. ``on_change`` is called after each."""

    def pause(request: Mapping[str, Any]) -> Mapping[str, Any]:
        paused = gpus.pause(_parse_duration_s(request.get("for_s")))
        on_change()
        return {"since": paused.since_s, "until": paused.until_s, "held": list(paused.held)}

    def resume(_: Mapping[str, Any]) -> Mapping[str, Any]:
        ended = gpus.resume()
        on_change()
        return {"since": None if ended is None else ended.since_s}

    return {"pause": pause, "resume": resume}


def _parse_duration_s(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_PAUSE_S:
        raise UsageError(f"for_s must be a number of seconds up to {MAX_PAUSE_S:.0f}, or null")
    return float(value)


def _error(reason: str) -> dict[str, Any]:
    return {"ok": False, "error": reason}


def _listen(path: Path) -> tuple[socket.socket, int]:
    """A listening socket at this path, and its inode. The socket of a dead agent is replaced, no other file is."""
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(mode=0o700)
    directory = open_directory(path.parent)
    try:
        _lock(path.parent, directory)
        _remove_stale_socket(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(os.fspath(path))
            path.chmod(0o600)  # no client can connect before listen()
            listener.listen(_BACKLOG)
            return listener, path.lstat().st_ino
        except OSError:
            listener.close()
            raise
    finally:
        os.close(directory)  # also releases the lock


def _lock(path: Path, directory: int) -> None:
    """Lock the directory, so that of two agents that start at once one checks and binds before the other checks."""
    deadline_s = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise Unavailable(f"{path} is locked by another process; choose another directory") from None
            time.sleep(_LOCK_TIMEOUT_S / 20)
        else:
            return


def _remove_stale_socket(path: Path) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise Unavailable(f"{path} exists and is not a socket; choose another path")
    try:
        connect(path).close()
    except ConnectionRefusedError:  # no process listens: the agent that created it has died
        path.unlink()
        return
    except BlockingIOError:  # a process listens but is busy
        pass
    raise Unavailable(f"{path}: another agent listens there")


# ---------------------------------------------------------------------------- its directory


def open_directory(path: Path) -> int:
    """A descriptor of the socket's directory.

    OSError if it cannot be opened or is a symbolic link, Unavailable if another user could write to it.
    """
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check_directory(path, os.fstat(directory))
    except Unavailable:
        os.close(directory)
        raise
    return directory


def _check_directory(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise Unavailable(f"{path} belongs to user {status.st_uid}; the control socket needs a directory of its own")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unavailable(f"{path} is writable by other users; run chmod go-w {path}, or choose another directory")
