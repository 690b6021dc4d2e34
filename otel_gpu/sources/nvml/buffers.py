"""Memory that the driver writes its answers into, kept from pass to pass.

A list is asked for with the room it needed last time, so that nobody has to ask how long it is first. A driver that
needs more says so, and is asked again with more.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import pynvml

from otel_gpu.sources.nvml.faults import translate

T = TypeVar("T")

_TRIES: Final = 4
_MOST_ENTRIES: Final = 1 << 16
"""More than any driver has (950 processes, 4,000 accounted for): a larger number is nonsense."""

_NO_VALUES: Final = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})  # nvml.h: NVML_VALUE_NOT_AVAILABLE, in either width
_FIELD: Final = struct.Struct("=I4x16xii8s")  # nvmlFieldValue_t: fieldId, (scope, time, latency), type, code, value
_VALUE_OF: Final = tuple(struct.Struct(f"={code}") for code in ("d", "I4x", "Q", "Q", "q", "i4x", "H6x"))
"""What the value is, by its type, in the order of nvmlValueType_t; a long has 64 bits where this runs."""


class KeptList(Generic[T]):
    """One of the driver's lists. ``parse`` makes a result of its raw entries; the same bytes give the same result."""

    def __init__(self, entry_bytes: int, parse: Callable[[bytes], T], room: int = 32) -> None:
        self._entry_bytes = entry_bytes
        self._parse = parse
        self._room = room
        self._buffer = ctypes.create_string_buffer(room * entry_bytes)
        self._count = ctypes.c_uint()
        self._count_pointer = ctypes.byref(self._count)
        self._last: tuple[bytes, T] | None = None

    def fill(self, ask: Callable[[Any, Any], int]) -> T:
        """Have ``ask(buffer, count)`` filled in, which gives a code of NVML's."""
        for _ in range(_TRIES):
            self._count.value = self._room
            code = ask(self._buffer, self._count_pointer)
            wanted = self._count.value
            if code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE or not self._room < wanted <= _MOST_ENTRIES:
                break
            self._room = 2 * wanted  # room for those that come between the two calls
            self._buffer = ctypes.create_string_buffer(self._room * self._entry_bytes)
        if code != pynvml.NVML_SUCCESS:
            raise translate(pynvml.NVMLError(code))
        raw = ctypes.string_at(self._buffer, min(wanted, self._room) * self._entry_bytes)
        if self._last is None or self._last[0] != raw:
            self._last = raw, self._parse(raw)
        return self._last[1]


class KeptFields:
    """Several figures by one call: what the header calls field values."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = tuple(ids)
        self._values = (pynvml.c_nvmlFieldValue_t * len(self._ids))()
        for value, id_ in zip(self._values, self._ids, strict=True):
            value.fieldId = id_

    def fill(self, ask: Callable[[int, Any], int]) -> dict[int, float]:
        """The figures that were told, by id, as ``ask(count, values)`` fills them in."""
        code = ask(len(self._ids), self._values)
        if code != pynvml.NVML_SUCCESS:
            raise translate(pynvml.NVMLError(code))
        # Read as bytes: nvidia-ml-py's structures look up, at every access, how a member is printed.
        told: dict[int, float] = {}
        for id_, kind, outcome, value in _FIELD.iter_unpack(self._values):
            if outcome == pynvml.NVML_SUCCESS and 0 <= kind < len(_VALUE_OF):
                (found,) = _VALUE_OF[kind].unpack(value)
                if found not in _NO_VALUES:
                    told[id_] = found
        return told
