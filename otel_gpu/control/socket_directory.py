"""Opens the directory of the control socket, if no other user can write to it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from otel_gpu.errors import Unavailable


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
