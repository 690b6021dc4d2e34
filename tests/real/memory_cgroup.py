"""A cgroup with a limit of memory, of version 1 or 2. Needs root."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path("/sys/fs/cgroup")
_V1: Final = _ROOT / "memory"
_GONE_S: Final = 10.0


class MemoryCgroup:
    """A cgroup that a process joins by itself."""

    def __init__(self, path: Path, limit_file: str, limit_bytes: int) -> None:
        self._path = path
        (path / limit_file).write_text(str(limit_bytes))

    def join(self) -> None:
        """Move this process into the cgroup. For a child before it runs its program."""
        (self._path / "cgroup.procs").write_text(str(os.getpid()))

    @property
    def oom_kills(self) -> int:
        """How many processes the kernel has killed in it."""
        for name in ("memory.events", "memory.oom_control"):
            if (self._path / name).exists():
                fields = dict(line.split() for line in (self._path / name).read_text().splitlines())
                return int(fields["oom_kill"])
        raise AssertionError(f"no count of kills in {self._path}")


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[MemoryCgroup]:
    """A cgroup of its own, removed afterwards. The test is skipped if there is no memory controller to write to."""
    is_v1 = _V1.is_dir()
    parent, limit_file = (_V1, "memory.limit_in_bytes") if is_v1 else (_ROOT, "memory.max")
    path = parent / f"otel-gpu-test-{os.getpid()}"
    try:
        if not is_v1 and "memory" not in (_ROOT / "cgroup.subtree_control").read_text().split():
            (_ROOT / "cgroup.subtree_control").write_text("+memory")
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup: {error}")
    try:
        yield MemoryCgroup(path, limit_file, limit_bytes)
    finally:
        _remove(path)


def _remove(path: Path) -> None:
    """Remove the cgroup once its last process has left it."""
    deadline_s = time.monotonic() + _GONE_S
    while True:
        try:
            path.rmdir()
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)
        else:
            return
