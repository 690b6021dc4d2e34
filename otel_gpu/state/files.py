"""Files of the agent alone: a directory 0700, files 0600, no symbolic link followed, nothing of anybody else trusted.

Everything is done relative to the open directory, so that nobody can put another one in its place meanwhile.
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
"""Far beyond the books of a host; a larger file is not its own, and reading it takes more memory than there may be."""


class PrivateDirectory:
    """An open directory that only this user may enter. OSError where the file system fails, as in all of ``os``."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path, *, as_it_is: bool = False) -> Self:
        """Open it, made if it is missing, tightened if it is ours; Unavailable says why it cannot be used.

        With ``as_it_is`` it is another's to make the way to it, and to say who may enter; who may write there is us.
        """
        try:
            path.mkdir(mode=0o700, parents=not as_it_is, exist_ok=True)
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _SAFE)
        except OSError as error:
            reason = error.strerror
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EEXIST):
                is_link = path.is_symlink()
                reason = "it is a symbolic link; name the directory itself" if is_link else "it is no directory"
            raise Unavailable(f"{path}: {reason}") from None
        try:
            _tighten(path, descriptor, as_it_is=as_it_is)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)

    def lock(self, name: str) -> int:
        """A lock that ends with this process, for as long as the descriptor is open; BlockingIOError if it is taken."""
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | _SAFE, 0o600, dir_fd=self._descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def wait_for_turn(self) -> None:
        """Return when nobody else has the directory to itself; it is ours from then on, until it is closed."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def names(self) -> list[str]:
        """Everything in it."""
        return sorted(os.listdir(self._descriptor))  # noqa: PTH208 - of a descriptor

    def size_bytes(self, name: str) -> int:
        """How large a file is; 0 if there is none."""
        try:
            return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_size
        except FileNotFoundError:
            return 0

    def read(self, name: str, most_bytes: int = _LARGEST_BYTES) -> bytes:
        """A file's content; FileNotFoundError if there is none, ValueError if it is not ours, or larger than that."""
        try:
            # Without waiting: a pipe in its place must not stop the agent.
            descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _SAFE, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise ValueError("it is a symbolic link") from None
            raise
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ValueError("it is no file")
            if found.st_uid != os.geteuid():
                raise ValueError(f"it is a file of user {found.st_uid}")
            if found.st_size > most_bytes:
                raise ValueError(f"it has {found.st_size} bytes, and no more than {most_bytes} are read")
            return file.read()

    def create(self, name: str) -> int:
        """A new file to append to, without a buffer; FileExistsError if there is one."""
        return os.open(name, _NEW | os.O_APPEND, 0o600, dir_fd=self._descriptor)

    def write(self, name: str, content: bytes) -> None:
        """A file with this content, on disk when this returns."""
        self.remove(name)
        descriptor = os.open(name, _NEW, 0o600, dir_fd=self._descriptor)
        try:
            write_all(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, name: str, new_name: str) -> None:
        """Give a file another name, at once and in place of any that has it."""
        os.rename(name, new_name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def sync(self) -> None:
        """Return when the names are on disk."""
        os.fsync(self._descriptor)

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of it, usually in one call; OSError if not all of it could be written."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _tighten(path: Path, descriptor: int, *, as_it_is: bool) -> None:
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid():
        raise Unavailable(f"{path}: it belongs to user {found.st_uid}, and this is user {os.geteuid()}")
    if as_it_is:
        if stat.S_IMODE(found.st_mode) & 0o022:
            raise Unavailable(f"{path}: others may write to it")
        return
    try:
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(descriptor, 0o700)
    except OSError as error:
        raise Unavailable(f"{path}: others may enter it, and that cannot be changed: {error.strerror}") from None
