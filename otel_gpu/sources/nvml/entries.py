"""What the driver's lists consist of, as nvml.h lays it out, and the figures that one call tells."""

from __future__ import annotations

import struct
from typing import Final

import pynvml

from otel_gpu.model import DeviceMemory, ListedProcess, ProcessKind, UtilizationRow
from otel_gpu.sources.nvml.buffers import KeptAnswer, KeptFields, KeptList

_NARROW: Final = struct.Struct("=I4xQII")  # nvmlProcessInfo_t: pid, usedGpuMemory, instances
_WIDE: Final = struct.Struct("=I4xQIIQ")  # of some R535 drivers: the same and memory under confidential computing
_SAMPLE: Final = struct.Struct("=I4xQIIII")  # nvmlProcessUtilizationSample_t
_PID: Final = struct.Struct("=I")
_VERSION: Final = struct.Struct("=I")
_MEMORY: Final = struct.Struct("=8xQQQQ")  # nvmlMemory_v2_t: (version), total, reserved, free, used
_NO_INSTANCE: Final = 0xFFFFFFFF  # "invalid" GPU or compute instance id
_NO_BYTES: Final = 0xFFFFFFFFFFFFFFFF  # NVML_VALUE_NOT_AVAILABLE

_ROWS: Final = 128
_BOOKED: Final = 4000
"""Entries there is room for at first: some drivers want it for 100 rows, however few there are, and keep the books of
4,000 processes."""

ENERGY_FIELD: Final = pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION
AVERAGE_POWER_FIELD: Final = pynvml.NVML_FI_DEV_POWER_AVERAGE
INSTANT_POWER_FIELD: Final = pynvml.NVML_FI_DEV_POWER_INSTANT
POWER_LIMIT_FIELD: Final = pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT
CORRECTED_FIELD: Final = pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL
UNCORRECTED_FIELD: Final = pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL


def process_list(kind: ProcessKind, *, wide: bool) -> KeptList[tuple[ListedProcess, ...]]:
    """Where one of a device's process lists is read into, of ``wide`` entries or usual ones."""
    entry = _WIDE if wide else _NARROW
    return KeptList(entry.size, _Entries(kind, entry).parse)


class _Entries:
    """Entries of one list. Those that are as they were the last time are the same objects."""

    def __init__(self, kind: ProcessKind, entry: struct.Struct) -> None:
        self._kind = kind
        self._entry = entry
        self._known: dict[tuple[int, ...], ListedProcess] = {}

    def parse(self, raw: bytes) -> tuple[ListedProcess, ...]:
        """The entries that these bytes are."""
        rows: list[tuple[int, ...]] = list(self._entry.iter_unpack(raw))
        known = self._known
        self._known = {row: known.get(row) or self._listed(*row) for row in rows}
        return tuple(map(self._known.__getitem__, rows))

    def _listed(self, pid: int, used: int, gpu: int, compute: int, *_: int) -> ListedProcess:
        return ListedProcess(pid, self._kind, None if used == _NO_BYTES else used, _instance(gpu), _instance(compute))


def utilization_rows() -> KeptList[tuple[UtilizationRow, ...]]:
    """Where a device's utilisation rows are read into; without padding, where it returns fewer than it said."""
    return KeptList(
        _SAMPLE.size, lambda raw: tuple(UtilizationRow(*row) for row in _SAMPLE.iter_unpack(raw) if row[0]), _ROWS
    )


def booked_pids() -> KeptList[frozenset[int]]:
    """Where the pids in a device's books are read into."""
    return KeptList(_PID.size, lambda raw: frozenset(pid for (pid,) in _PID.iter_unpack(raw)), _BOOKED)


def memory_info() -> KeptAnswer[DeviceMemory]:
    """Where memory is read into, with the driver's own part apart."""
    return KeptAnswer(_VERSION.pack(pynvml.nvmlMemory_v2), _MEMORY.size, _memory)


def _memory(raw: bytes) -> DeviceMemory:
    total, reserved, free, used = _MEMORY.unpack(raw)
    return DeviceMemory(total, used, free, reserved)


def fields() -> KeptFields:
    """Where the figures are read into that one call tells."""
    power = (AVERAGE_POWER_FIELD, INSTANT_POWER_FIELD, POWER_LIMIT_FIELD)
    return KeptFields((ENERGY_FIELD, *power, CORRECTED_FIELD, UNCORRECTED_FIELD))


def _instance(value: int) -> int | None:
    return None if value == _NO_INSTANCE else value
