"""The agent's end of the control socket. Only its own user, and root, are listened to."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from otel_gpu.control import wire
from otel_gpu.control.directory import open_directory
from otel_gpu.errors import OtelGpuError, Unavailable

log = logging.getLogger(__name__)

Handler = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Does what a request asks for, and says what became of it. OtelGpuError if it cannot."""

_REQUEST_S: Final = 2.0
_ANSWER_S: Final = 2.0
_REFUSED_S: Final = 0.2
_BACKLOG: Final = 8
_LOCKED_S: Final = 1.0
"""How long an agent that starts at the same moment is waited for."""

_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred of socket(7): pid, uid, gid


class ControlServer:
    """Listens at a path of its own, in a directory that nobody else can write to, from construction to ``close``.

    Unavailable if it cannot, or another agent does.
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
        """Answer from now on."""
        self._thread.start()

    def close(self) -> None:
        """Listen no more, and take the socket away if it is still this one."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
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
                self._closed.wait(0.1)  # no descriptor to be had: that passes
                continue
            with connection, contextlib.suppress(OSError):  # whoever has gone needs no answer
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        answer = self._answer(connection)
        wire.send(connection, answer, time.monotonic() + _ANSWER_S)

    def _answer(self, connection: socket.socket) -> Mapping[str, Any]:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(credentials)
        if uid not in self._users:
            log.warning("control: user %d (pid %d) was refused", uid, pid)
            with contextlib.suppress(OSError, ValueError):  # unread, it would cost him the answer
                wire.receive(connection, time.monotonic() + _REFUSED_S)
            return _refused("only root and the agent's own user may do that")
        try:
            request = wire.receive(connection, time.monotonic() + _REQUEST_S)
        except ValueError as error:
            return _refused(f"bad request: {error}")
        command = request.get("command")
        handler = self._handlers.get(command) if isinstance(command, str) else None
        if handler is None:
            return _refused(f"bad request: command is one of {', '.join(self._handlers)}")
        try:
            answer = handler(request)
        except OtelGpuError as error:
            return _refused(str(error))
        except Exception as error:  # a bug must cost one answer, not the agent's ear
            log.error("control: %s: %s", type(error).__name__, error, exc_info=log.isEnabledFor(logging.DEBUG))  # noqa: TRY400
            return _refused(f"internal error: {type(error).__name__}")
        return {"ok": True, **answer}


def _refused(reason: str) -> dict[str, Any]:
    return {"ok": False, "error": reason}


def _listen(path: Path) -> tuple[socket.socket, int]:
    """A listener at this path, and its inode. A socket that a dead agent left there goes; nothing else does."""
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(mode=0o700)
    directory = open_directory(path.parent)
    try:
        _lock(path.parent, directory)
        _make_room(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(os.fspath(path))
            path.chmod(0o600)  # nobody can connect before listen()
            listener.listen(_BACKLOG)
            return listener, path.lstat().st_ino
        except OSError:
            listener.close()
            raise
    finally:
        os.close(directory)  # and the lock with it


def _lock(path: Path, directory: int) -> None:
    """Of two agents that start at once, one looks and binds before the other looks. Nobody is waited for any longer."""
    deadline_s = time.monotonic() + _LOCKED_S
    while True:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise Unavailable(f"{path} is locked by another process: choose another directory") from None
            time.sleep(_LOCKED_S / 20)
        else:
            return


def _make_room(path: Path) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise Unavailable(f"{path} is there and is no socket: choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:  # nobody listens: whoever made it has died
            path.unlink()
            return
        except TimeoutError:  # somebody has no time
            pass
    raise Unavailable(f"{path}: another agent listens there")
