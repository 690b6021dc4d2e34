"""Detection of a replaced NVML library, which only a new process can load."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from otel_gpu.sources.proc.files import read_file

_NAME: Final = "libnvidia-ml.so.1"
_DELETED: Final = " (deleted)"
# address perms offset dev inode path, proc_pid_maps(5); the path is the rest of the line.
_MAPPING: Final = re.compile(r"^\S+ \S+ \S+ \S+ (\d+) +(/.*libnvidia-ml\.so\..*)$", re.MULTILINE)


def parse_mapped_library(maps: str) -> tuple[int, Path] | None:
    """Inode and path of the NVML library in ``/proc/<pid>/maps``; ``None`` without one."""
    found = _MAPPING.search(maps)
    return None if found is None else (int(found[1]), Path(found[2].removesuffix(_DELETED)))


def was_replaced(own_proc: Path = Path("/proc")) -> bool:
    """Whether the library on disk differs from the one that this process has mapped."""
    try:
        mapped = parse_mapped_library(read_file(os.fspath(own_proc / "self/maps")).decode("utf-8", "replace"))
        if mapped is None:
            return False
        inode, path = mapped
        return (path.parent / _NAME).stat().st_ino != inode  # follows the link, as the loader does
    except OSError:
        return False
