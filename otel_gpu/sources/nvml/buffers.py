"""Buffers that the driver writes its answers into, reused in every read.

A list is requested with the capacity it needed last time, without a call for its length first. A driver that needs more
capacity says so, and the request is repeated.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import pynvml

from otel_gpu.model import DeviceMemory, ListedProcess, ProcessKind, UtilizationRow
from otel_gpu.sources.nvml.errors import translate

T = TypeVar("T")

_SUCCESS: Final = pynvml.NVML_SUCCESS
_TOO_SMALL: Final = pynvml.NVML_ERROR_INSUFFICIENT_SIZE
_TRIES: Final = 4
_MAX_ENTRIES: Final = 1 << 16
"""More than any driver has (950 processes, 4,000 accounting records): a larger number is invalid."""

NOT_AVAILABLE_32: Final = 0xFFFFFFFF
NOT_AVAILABLE_64: Final = 0xFFFFFFFFFFFFFFFF
NOT_AVAILABLE: Final = frozenset({NOT_AVAILABLE_32, NOT_AVAILABLE_64})
"""nvml.h: NVML_VALUE_NOT_AVAILABLE, in either width."""

# nvmlFieldValue_t: fieldId, (scope, time, latency), type, code, (value)
_FIELD_HEAD: Final = "I20xii8x"
_FIELD_SKIPPED: Final = "40x"
_FIELD_VALUE: Final = tuple(f"32x{code}" for code in ("d", "I4x", "Q", "Q", "q", "i4x", "H6x"))
"""Layout of the value by its type, in the order of nvmlValueType_t; a long has 64 bits on the supported platforms."""


class EmptyAnswer(NamedTuple, Generic[T]):
    """A return code that means an empty result. Raising and catching an error for it takes longer than the call."""

    code: int
    result: T


class ListBuffer(Generic[T]):
    """A buffer for a list. ``parse`` converts raw entries; equal bytes give the same result object."""

    def __init__(self, entry_bytes: int, parse: Callable[[bytes], T], capacity: int = 32) -> None:
        self._entry_bytes = entry_bytes
        self._parse = parse
        self._capacity = capacity
        self._buffer = ctypes.create_string_buffer(capacity * entry_bytes)
        self._count = ctypes.c_uint()
        self._count_pointer = ctypes.byref(self._count)
        self._last: tuple[bytes, T] | None = None

    def fill(self, request: Callable[[Any, Any], int], empty: EmptyAnswer[T] | None = None) -> T:
        """The result of ``request(buffer, count)``, which returns an NVML code; ``empty`` is a code without entries."""
        count = self._count
        for _ in range(_TRIES):
            count.value = self._capacity
            code = request(self._buffer, self._count_pointer)
            wanted = count.value
            if code != _TOO_SMALL or not self._capacity < wanted <= _MAX_ENTRIES:
                break
            self._capacity = 2 * wanted  # for entries that are added between the two calls
            self._buffer = ctypes.create_string_buffer(self._capacity * self._entry_bytes)
        if code != _SUCCESS:
            if empty is not None and code == empty.code:
                return empty.result
            raise translate(pynvml.NVMLError(code))
        entries = wanted if wanted < self._capacity else self._capacity
        raw: bytes = self._buffer[: entries * self._entry_bytes]  # type: ignore[assignment]  # a buffer of chars gives bytes
        if self._last is None or self._last[0] != raw:
            self._last = raw, self._parse(raw)
        return self._last[1]


class StructBuffer(Generic[T]):
    """A buffer for one structure. ``parse`` converts its bytes; equal bytes give the same result object."""

    def __init__(self, head: bytes, size: int, parse: Callable[[bytes], T]) -> None:
        """``head`` is what the driver expects at the beginning, such as the structure's version; the rest is zero."""
        self._blank = head.ljust(size, b"\0")
        self._parse = parse
        self._buffer = ctypes.create_string_buffer(size)
        self._pointer = ctypes.byref(self._buffer)
        self._last: tuple[bytes, T] | None = None

    def fill(self, request: Callable[[Any], int]) -> T:
        """The result of ``request(buffer)``, which returns an NVML code."""
        self._buffer.raw = self._blank
        code = request(self._pointer)
        if code != _SUCCESS:
            raise translate(pynvml.NVMLError(code))
        raw = self._buffer.raw
        if self._last is None or self._last[0] != raw:
            self._last = raw, self._parse(raw)
        return self._last[1]


class FieldBuffer:
    """A buffer for field values: several figures by one call (nvmlDeviceGetFieldValues)."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = tuple(ids)
        self._values = (pynvml.c_nvmlFieldValue_t * len(self._ids))()
        for value, id_ in zip(self._values, self._ids, strict=True):
            value.fieldId = id_
        self._heads = struct.Struct("=" + _FIELD_HEAD * len(self._ids))
        self._last_heads: tuple[int, ...] = ()
        self._valid_ids: tuple[int, ...] = ()
        """Ids with a value, according to the last heads."""
        self._valid_values = struct.Struct("=")
        """The layout of those values."""

    def fill(self, request: Callable[[int, Any], int]) -> dict[int, float]:
        """The available figures by id. ``request(count, values)`` returns an NVML code."""
        code = request(len(self._ids), self._values)
        if code != _SUCCESS:
            raise translate(pynvml.NVMLError(code))
        # Unpacked from bytes: structures of nvidia-ml-py look up a format at every access to a member. Availability and
        # type rarely change between reads, so that all values are unpacked at once.
        heads = self._heads.unpack_from(self._values)
        if heads != self._last_heads:
            self._lay_out(heads)
        values: tuple[float, ...] = self._valid_values.unpack_from(self._values)
        found = dict(zip(self._valid_ids, values, strict=True))
        if NOT_AVAILABLE.isdisjoint(values):
            return found
        return {id_: value for id_, value in found.items() if value not in NOT_AVAILABLE}

    def _lay_out(self, heads: tuple[int, ...]) -> None:
        valid: list[int] = []
        layout = "="
        for id_, kind, outcome in zip(heads[::3], heads[1::3], heads[2::3], strict=True):
            if outcome == _SUCCESS and 0 <= kind < len(_FIELD_VALUE):
                valid.append(id_)
                layout += _FIELD_VALUE[kind]
            else:
                layout += _FIELD_SKIPPED
        self._valid_ids, self._valid_values = tuple(valid), struct.Struct(layout)
        self._last_heads = heads


# ---------------------------------------------------------------------------- layouts of nvml.h

_PROCESS: Final = struct.Struct("=I4xQII")  # nvmlProcessInfo_t: pid, usedGpuMemory, instances
_WIDE_PROCESS: Final = struct.Struct("=I4xQIIQ")  # some R535 drivers: with protected memory at the end
_SAMPLE: Final = struct.Struct("=I4xQIIII")  # nvmlProcessUtilizationSample_t
_PID: Final = struct.Struct("=I")
_VERSION: Final = struct.Struct("=I")
_MEMORY: Final = struct.Struct("=8xQQQQ")  # nvmlMemory_v2_t: (version), total, reserved, free, used
_NO_INSTANCE: Final = 0xFFFFFFFF  # "invalid" GPU or compute instance id

_ROW_CAPACITY: Final = 128
_ACCOUNTING_CAPACITY: Final = 4000
"""Initial capacities: some drivers require room for 100 rows at any time, and keep 4,000 accounting records."""

ENERGY_FIELD: Final = pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION
AVERAGE_POWER_FIELD: Final = pynvml.NVML_FI_DEV_POWER_AVERAGE
INSTANT_POWER_FIELD: Final = pynvml.NVML_FI_DEV_POWER_INSTANT
POWER_LIMIT_FIELD: Final = pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT
CORRECTED_FIELD: Final = pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL
UNCORRECTED_FIELD: Final = pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL


def process_buffer(kind: ProcessKind, *, wide: bool) -> ListBuffer[tuple[ListedProcess, ...]]:
    """A buffer for a process list, of ``wide`` (32-byte) entries or the usual 24-byte ones."""
    entry = _WIDE_PROCESS if wide else _PROCESS
    return ListBuffer(entry.size, _ProcessEntries(kind, entry).parse)


class _ProcessEntries:
    """Parser of one process list. An unchanged entry is the same object as in the last read."""

    def __init__(self, kind: ProcessKind, entry: struct.Struct) -> None:
        self._kind = kind
        self._entry = entry
        self._known: dict[tuple[int, ...], ListedProcess] = {}

    def parse(self, raw: bytes) -> tuple[ListedProcess, ...]:
        """The processes in these bytes."""
        rows: list[tuple[int, ...]] = list(self._entry.iter_unpack(raw))
        known = self._known
        self._known = {row: known.get(row) or self._listed(*row) for row in rows}
        return tuple(map(self._known.__getitem__, rows))

    def _listed(self, pid: int, used: int, gpu: int, compute: int, *_: int) -> ListedProcess:
        return ListedProcess(
            pid, self._kind, None if used == NOT_AVAILABLE_64 else used, _instance(gpu), _instance(compute)
        )


def utilization_buffer() -> ListBuffer[tuple[UtilizationRow, ...]]:
    """A buffer for utilisation rows. Empty rows are dropped: a driver may return fewer rows than it counts."""
    return ListBuffer(
        _SAMPLE.size,
        lambda raw: tuple(UtilizationRow(*row) for row in _SAMPLE.iter_unpack(raw) if row[0]),
        _ROW_CAPACITY,
    )


def accounting_pids_buffer() -> ListBuffer[frozenset[int]]:
    """A buffer for the pids with accounting records."""
    return ListBuffer(_PID.size, lambda raw: frozenset(pid for (pid,) in _PID.iter_unpack(raw)), _ACCOUNTING_CAPACITY)


def memory_buffer() -> StructBuffer[DeviceMemory]:
    """A buffer for device memory with reserved memory."""
    return StructBuffer(_VERSION.pack(pynvml.nvmlMemory_v2), _MEMORY.size, _memory)


def _memory(raw: bytes) -> DeviceMemory:
    total, reserved, free, used = _MEMORY.unpack(raw)
    return DeviceMemory(total, used, free, reserved)


def field_buffer() -> FieldBuffer:
    """A buffer for energy, power and ECC errors."""
    power = (AVERAGE_POWER_FIELD, INSTANT_POWER_FIELD, POWER_LIMIT_FIELD)
    return FieldBuffer((ENERGY_FIELD, *power, CORRECTED_FIELD, UNCORRECTED_FIELD))


def _instance(value: int) -> int | None:
    return None if value == _NO_INSTANCE else value
