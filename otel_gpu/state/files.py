"""Private files: a directory with mode 0700, files with 0600, no symbolic link followed, no file of another user read.

Every call is relative to the open directory, so that no other directory can take its place in between.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from otel_gpu.errors import Unavailable

_SAFE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE
_LARGEST_BYTES: Final = 32 << 20
"""Far beyond the checkpoint of a host. Reading a larger file could take more memory than the agent may use."""


class PrivateDirectory:
    """An open directory that only this user may enter. Calls raise OSError where the file system fails."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path, *, as_it_is: bool = False) -> Self:
        """Open it, created if it is missing, and tighten its mode; Unavailable if it cannot be used.

        With ``as_it_is`` no parents are created and the mode stays; only this user may have write permission.
        """
        try:
            path.mkdir(mode=0o700, parents=not as_it_is, exist_ok=True)
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _SAFE)
        except OSError as error:
            reason = error.strerror
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EEXIST):
                is_link = path.is_symlink()
                reason = "it is a symbolic link; name the directory itself" if is_link else "it is not a directory"
            raise Unavailable(f"{path}: {reason}") from None
        try:
            _tighten(path, descriptor, as_it_is=as_it_is)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    def close(self) -> None:
        """Close the directory, and with it the lock of ``wait_for_turn``."""
        os.close(self._descriptor)

    def lock(self, name: str) -> int:
        """Lock a file until the returned descriptor is closed or the process ends; BlockingIOError if it is locked.

        Unavailable if another user has created it while the directory was writable for others. Its mode does not
        matter: the kubelet changes it (fsGroup).
        """
        try:
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | _SAFE, 0o600, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise Unavailable(f"{self.path / name}: it is a symbolic link; remove it") from None
            raise
        try:
            if (problem := lock_problem(os.fstat(descriptor))) is not None:
                raise Unavailable(f"{self.path / name}: {problem}; remove it")  # noqa: TRY301 - to be closed first
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (OSError, Unavailable):
            os.close(descriptor)
            raise
        return descriptor

    def wait_for_turn(self) -> None:
        """Wait for an exclusive lock on the directory; ``close`` releases it."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def names(self) -> list[str]:
        """Names of all entries, sorted."""
        return sorted(os.listdir(self._descriptor))  # noqa: PTH208 - of a descriptor

    def size_bytes(self, name: str) -> int:
        """The size of a file; 0 if there is none."""
        try:
            return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_size
        except FileNotFoundError:
            return 0

    def read(self, name: str, most_bytes: int = _LARGEST_BYTES) -> bytes:
        """A file's content; ValueError if it is larger than ``most_bytes``, not a regular file, or another user's."""
        try:
            # Non-blocking: a pipe in its place must not stop the agent.
            descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _SAFE, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise ValueError("it is a symbolic link") from None
            raise
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(file.fileno())
            if (problem := _why_not_own_file(found)) is not None:
                raise ValueError(problem)
            if found.st_size > most_bytes:
                raise ValueError(f"it has {found.st_size} bytes, the limit is {most_bytes}")
            content = file.read(most_bytes + 1)  # it may grow while it is read
        if len(content) > most_bytes:
            raise ValueError(f"it has over {most_bytes} bytes, which is the limit")
        return content

    def create(self, name: str) -> int:
        """Create a file and return a descriptor to append to it; FileExistsError if there is one."""
        return os.open(name, _NEW | os.O_APPEND, 0o600, dir_fd=self._descriptor)

    def write(self, name: str, content: bytes) -> None:
        """Write a file and sync it to disk, in place of any of that name."""
        self.remove(name)
        descriptor = os.open(name, _NEW, 0o600, dir_fd=self._descriptor)
        try:
            write_all(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file atomically, in place of any that has the new name."""
        os.rename(name, new_name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of it, usually in one call; OSError if that fails."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _why_not_own_file(found: os.stat_result) -> str | None:
    if stat.S_ISLNK(found.st_mode):
        return "it is a symbolic link"
    if not stat.S_ISREG(found.st_mode):
        return "it is not a regular file"
    return None if found.st_uid == os.geteuid() else f"it belongs to user {found.st_uid}"


def lock_problem(found: os.stat_result) -> str | None:
    """Why a file must not be used as a lock; ``None`` if it may."""
    problem = _why_not_own_file(found)
    if problem is None and found.st_nlink > 1:  # what is written to it would be written to another file
        return "it is a hard link"
    return problem


def _tighten(path: Path, descriptor: int, *, as_it_is: bool) -> None:
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid():
        raise Unavailable(f"{path}: it belongs to user {found.st_uid}, and the agent runs as user {os.geteuid()}")
    if as_it_is:
        if stat.S_IMODE(found.st_mode) & 0o022:
            raise Unavailable(f"{path}: other users may write to it")
        return
    try:
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(descriptor, 0o700)
    except OSError as error:
        raise Unavailable(
            f"{path}: other users may enter it, and its mode cannot be changed: {error.strerror}"
        ) from None
