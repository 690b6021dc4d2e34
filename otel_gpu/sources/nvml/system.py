"""The driver as the kernel shows it, without a call to it: its GPUs in ``/sys``, and a replaced NVML library."""

from __future__ import annotations

import os
import re
import threading
import weakref
from pathlib import Path
from typing import Final

from otel_gpu.sources.proc.files import read_file

_BUS_ID: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# Documentation/ABI/testing/sysfs-devices-power: suspended, suspending, resuming, active, error, unsupported.
# A GPU that is suspending is not kept awake.
_ASLEEP: Final = frozenset({b"suspended", b"suspending"})
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_STATUS_BYTES: Final = 64


class PciBus:
    """NVIDIA GPUs on the PCI bus, by their addresses in the kernel's format (``0000:3b:00.0``).

    Files that are read in every cycle stay open: a read from the start returns the present value
    (Documentation/filesystems/sysfs.rst), and an error once the device was removed.
    """

    def __init__(self, root: Path) -> None:
        self._driver = os.fspath(root / "bus/pci/drivers/nvidia")
        self._devices = os.fspath(root / "bus/pci/devices")
        self._names: list[str] = []
        self._gpus: tuple[str, ...] = ()
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}
        weakref.finalize(self, _close, self._files)

    def gpus(self) -> tuple[str, ...] | None:
        """The GPUs of the NVIDIA driver by ascending address; ``None`` if unknown."""
        try:
            names = os.listdir(self._driver)  # noqa: PTH208 - iterdir() fails later
        except OSError:
            return None
        if names != self._names:
            self._names, self._gpus = names, tuple(sorted(name for name in names if _BUS_ID.fullmatch(name)))
        return self._gpus

    def is_asleep(self, bus_id: str) -> bool:
        """Whether this GPU is runtime-suspended, so that a driver call would wake it."""
        try:
            with self._lock:
                status = self._status(bus_id)
        except OSError:
            return False
        return status.strip() in _ASLEEP

    def close_files(self) -> None:
        """Close all files. A later read opens them again."""
        with self._lock:
            _close(self._files)

    def _status(self, bus_id: str) -> bytes:
        file = self._files.get(bus_id)
        if file is not None:
            try:
                return os.pread(file, _STATUS_BYTES, 0)
            except OSError:  # the device was removed, and another one may have its address
                os.close(self._files.pop(bus_id))
        if not _BUS_ID.fullmatch(bus_id):
            return b""
        file = self._files[bus_id] = os.open(f"{self._devices}/{bus_id}/power/runtime_status", _FLAGS)
        return os.pread(file, _STATUS_BYTES, 0)


def _close(files: dict[str, int]) -> None:
    while files:
        os.close(files.popitem()[1])


# ---------------------------------------------------------------------------- the library that this process has loaded


_LIBRARY: Final = "libnvidia-ml.so.1"
_DELETED: Final = " (deleted)"
# address perms offset dev inode path, proc_pid_maps(5); the path is the rest of the line.
_MAPPING: Final = re.compile(r"^\S+ \S+ \S+ \S+ (\d+) +(/.*libnvidia-ml\.so\..*)$", re.MULTILINE)


def parse_mapped_library(maps: str) -> tuple[int, Path] | None:
    """Inode and path of the NVML library in ``/proc/<pid>/maps``; ``None`` without one."""
    found = _MAPPING.search(maps)
    return None if found is None else (int(found[1]), Path(found[2].removesuffix(_DELETED)))


def library_was_replaced(own_proc: Path = Path("/proc")) -> bool:
    """Whether the library on disk differs from the one that this process has mapped."""
    try:
        mapped = parse_mapped_library(read_file(os.fspath(own_proc / "self/maps")).decode("utf-8", "replace"))
        if mapped is None:
            return False
        inode, path = mapped
        return (path.parent / _LIBRARY).stat().st_ino != inode  # follows the link, as the loader does
    except OSError:
        return False
