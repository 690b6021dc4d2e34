"""What ``/sys`` says of NVIDIA's GPUs without asking them: which the driver has, and which are asleep."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from otel_gpu.sources.procfs_files import read_file

_BUS_ID: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# Documentation/ABI/testing/sysfs-devices-power: suspended, suspending, resuming, active, error, unsupported.
# One on its way to sleep is left to it.
_ASLEEP: Final = frozenset({"suspended", "suspending"})


class PciBus:
    """NVIDIA's GPUs on the PCI bus, by addresses as the kernel writes them (``0000:3b:00.0``). Reading wakes nobody."""

    def __init__(self, root: Path) -> None:
        self._driver = os.fspath(root / "bus/pci/drivers/nvidia")
        self._devices = os.fspath(root / "bus/pci/devices")

    def gpus(self) -> tuple[str, ...] | None:
        """The GPUs that the NVIDIA driver has, in the order of their addresses; ``None`` if ``/sys`` cannot tell."""
        try:
            names = os.listdir(self._driver)  # noqa: PTH208 - iterdir() fails later
        except OSError:
            return None
        return tuple(sorted(name for name in names if _BUS_ID.fullmatch(name)))

    def is_asleep(self, bus_id: str) -> bool:
        """Whether this GPU is runtime-suspended, so that any question would wake it."""
        if not _BUS_ID.fullmatch(bus_id):
            return False
        try:
            status = read_file(f"{self._devices}/{bus_id}/power/runtime_status")
        except OSError:
            return False
        return status.decode("ascii", "replace").strip() in _ASLEEP
