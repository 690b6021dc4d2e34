"""Memory that the driver writes its answers into, kept from pass to pass.

A list is asked for with the room it needed last time, so that nobody has to ask how long it is first. A driver that
needs more says so, and is asked again with more.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import pynvml

from otel_gpu.sources.nvml.faults import translate

T = TypeVar("T")

_SUCCESS: Final = pynvml.NVML_SUCCESS
_TOO_SMALL: Final = pynvml.NVML_ERROR_INSUFFICIENT_SIZE
_TRIES: Final = 4
_MOST_ENTRIES: Final = 1 << 16
"""More than any driver has (950 processes, 4,000 accounted for): a larger number is nonsense."""

_NO_VALUES: Final = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})  # nvml.h: NVML_VALUE_NOT_AVAILABLE, in either width
# nvmlFieldValue_t: fieldId, (scope, time, latency), type, code, (value)
_FIELD_HEAD: Final = "I20xii8x"
_FIELD_SKIPPED: Final = "40x"
_FIELD_VALUE: Final = tuple(f"32x{code}" for code in ("d", "I4x", "Q", "Q", "q", "i4x", "H6x"))
"""Where and what the value is, by its type, in the order of nvmlValueType_t; a long has 64 bits where this runs."""


class Nothing(NamedTuple, Generic[T]):
    """A code that is no error but an answer: making an error of it, to be caught, takes longer than asking."""

    code: int
    result: T


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

    def fill(self, ask: Callable[[Any, Any], int], nothing: Nothing[T] | None = None) -> T:
        """Have ``ask(buffer, count)`` filled in, which gives a code of NVML's; one of them may mean ``nothing``."""
        count = self._count
        for _ in range(_TRIES):
            count.value = self._room
            code = ask(self._buffer, self._count_pointer)
            wanted = count.value
            if code != _TOO_SMALL or not self._room < wanted <= _MOST_ENTRIES:
                break
            self._room = 2 * wanted  # room for those that come between the two calls
            self._buffer = ctypes.create_string_buffer(self._room * self._entry_bytes)
        if code != _SUCCESS:
            if nothing is not None and code == nothing.code:
                return nothing.result
            raise translate(pynvml.NVMLError(code))
        entries = wanted if wanted < self._room else self._room
        raw: bytes = self._buffer[: entries * self._entry_bytes]  # type: ignore[assignment]  # it is one of chars
        if self._last is None or self._last[0] != raw:
            self._last = raw, self._parse(raw)
        return self._last[1]


class KeptAnswer(Generic[T]):
    """One structure of the driver's. ``parse`` makes a result of its bytes; the same bytes give the same result."""

    def __init__(self, beginning: bytes, size: int, parse: Callable[[bytes], T]) -> None:
        """``beginning`` is what the driver is to find there, as the version of the structure; the rest is zero."""
        self._blank = beginning.ljust(size, b"\0")
        self._parse = parse
        self._buffer = ctypes.create_string_buffer(size)
        self._pointer = ctypes.byref(self._buffer)
        self._last: tuple[bytes, T] | None = None

    def fill(self, ask: Callable[[Any], int]) -> T:
        """Have ``ask(buffer)`` filled in, which gives a code of NVML's."""
        self._buffer.raw = self._blank
        code = ask(self._pointer)
        if code != _SUCCESS:
            raise translate(pynvml.NVMLError(code))
        raw = self._buffer.raw
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
        self._heads = struct.Struct("=" + _FIELD_HEAD * len(self._ids))
        self._last_heads: tuple[int, ...] = ()
        self._told: tuple[int, ...] = ()
        """Of which figures there are values, by ids, as the heads said last."""
        self._told_values = struct.Struct("=")
        """And where they are."""

    def fill(self, ask: Callable[[int, Any], int]) -> dict[int, float]:
        """The figures that were told, by id, as ``ask(count, values)`` fills them in."""
        code = ask(len(self._ids), self._values)
        if code != _SUCCESS:
            raise translate(pynvml.NVMLError(code))
        # Read as bytes: nvidia-ml-py's structures look up, at every access, how a member is printed. What is told, and
        # as which type, is the same in nearly every pass: then all values are taken at once.
        heads = self._heads.unpack_from(self._values)
        if heads != self._last_heads:
            self._lay_out(heads)
        values: tuple[float, ...] = self._told_values.unpack_from(self._values)
        told = dict(zip(self._told, values, strict=True))
        if _NO_VALUES.isdisjoint(values):
            return told
        return {id_: value for id_, value in told.items() if value not in _NO_VALUES}

    def _lay_out(self, heads: tuple[int, ...]) -> None:
        told: list[int] = []
        layout = "="
        for id_, kind, outcome in zip(heads[::3], heads[1::3], heads[2::3], strict=True):
            if outcome == _SUCCESS and 0 <= kind < len(_FIELD_VALUE):
                told.append(id_)
                layout += _FIELD_VALUE[kind]
            else:
                layout += _FIELD_SKIPPED
        self._told, self._told_values = tuple(told), struct.Struct(layout)
        self._last_heads = heads
