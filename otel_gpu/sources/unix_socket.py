"""Connections to unix sockets, and one text for each reason why a path does not connect."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

NO_LISTENER: Final = (FileNotFoundError, NotADirectoryError, ConnectionRefusedError)
"""Errors of ``connect`` where no process listens at the path."""


_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred of socket(7): pid, uid, gid


class Peer(NamedTuple):
    """The process at the other end of a connection. A server's is the process that called listen()."""

    pid: int
    uid: int


class NotASocketError(OSError):
    """Something else than a socket is at the path."""


def connect(path: Path | str) -> socket.socket:
    """Connect to the socket at a path without waiting. Raises OSError, for which ``failure_reason`` has a text.

    The connection has a timeout of 0, which the caller replaces.
    """
    # connect() refuses a file as it refuses the socket of a process that has ended.
    if (problem := _not_a_socket(os.stat(path).st_mode)) is not None:  # noqa: PTH116
        raise NotASocketError(errno.ENOTSOCK, problem)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(0.0)  # EAGAIN if the queue of the server is full (unix(7))
        connection.connect(os.fspath(path))
    except BaseException:
        connection.close()
        raise
    return connection


def peer(connection: socket.socket) -> Peer:
    """The process at the other end. OSError if the kernel does not know it."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid, uid)


def impostor(connection: socket.socket, path: Path) -> str | None:
    """Why the listener at a path may have taken the agent's place. Root and the own user do not.

    Another user is the agent's if it was given the directory of the socket, as with ``DynamicUser=``: then no other
    user can replace that directory or one above it. A sticky directory, such as /tmp, is open to every user.
    """
    uid, trusted = peer(connection).uid, {0, os.geteuid()}
    if uid in trusted or _is_writable_only_by(path, {*trusted, uid}):
        return None
    return f"user {uid} listens there, and may not be the agent"


def _is_writable_only_by(path: Path, users: Collection[int]) -> bool:
    """Whether only these users can replace the path, with links in it and without."""
    try:
        found = [each.lstat() for each in {*path.parents, *path.resolve().parents}]
    except OSError:
        return False
    return all(
        status.st_uid in users and (stat.S_ISLNK(status.st_mode) or not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
        for status in found
    )


def failure_reason(error: OSError) -> str:
    """Why a path did not connect."""
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return "no such file"
        case PermissionError():
            return "permission denied"
        case ConnectionRefusedError():
            return "connection refused: no process listens on it"
        case BlockingIOError() | TimeoutError():
            return "the server does not accept connections"
    return error.strerror or str(error)


def _not_a_socket(mode: int) -> str | None:
    if stat.S_ISSOCK(mode):
        return None
    if stat.S_ISDIR(mode):  # container engines create one for a bind mount whose source is missing
        return "is a directory, not a socket: a mount created it while there was no socket"
    return "is a file, not a socket"
