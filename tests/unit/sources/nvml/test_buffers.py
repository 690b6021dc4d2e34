"""Reused buffers: equal bytes give the same result object, and any change is seen."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from typing import Any

import pynvml
import pytest

from otel_gpu.errors import NoValue, Unsupported
from otel_gpu.model import DeviceMemory, ProcessKind
from otel_gpu.sources.nvml.buffers import EmptyAnswer, FieldBuffer, ListBuffer, memory_buffer, process_buffer

OK: int = pynvml.NVML_SUCCESS
MEMORY = struct.Struct("=I4xQQQQ")
ENTRY = struct.Struct("=I4xQII")
DOUBLE, UNSIGNED, UNSIGNED_LONG_LONG, SIGNED = 0, 1, 3, 5


def writes(data: bytes, code: int = OK) -> Callable[[Any], int]:
    """A call that writes these bytes into a structure."""

    def ask(pointer: Any) -> int:
        ctypes.memmove(pointer, data, len(data))
        return code

    return ask


def lists(entries: bytes, count: int) -> Callable[[Any, Any], int]:
    """A call that writes this list."""

    def ask(buffer: Any, pointer: Any) -> int:
        ctypes.memmove(buffer, entries, len(entries))
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_uint))[0] = count
        return OK

    return ask


# ---------------------------------------------------------------------------- structures


def test_equal_memory_is_the_same_object_and_a_change_is_seen() -> None:
    into = memory_buffer()
    version = pynvml.nvmlMemory_v2
    found = into.fill(writes(MEMORY.pack(version, 80, 1, 59, 20)))
    assert found == DeviceMemory(total_bytes=80, used_bytes=20, free_bytes=59, reserved_bytes=1)
    assert into.fill(writes(MEMORY.pack(version, 80, 1, 59, 20))) is found
    for figures in ((81, 1, 59, 20), (80, 2, 59, 20), (80, 1, 58, 20), (80, 1, 59, 1 << 63)):
        total, reserved, free, used = figures
        assert into.fill(writes(MEMORY.pack(version, *figures))) == DeviceMemory(total, used, free, reserved)


def test_the_driver_gets_the_version_and_no_earlier_bytes() -> None:
    into = memory_buffer()
    found: list[bytes] = []

    def ask(pointer: Any) -> int:
        found.append(ctypes.string_at(pointer, MEMORY.size))
        return writes(b"\xff" * MEMORY.size)(pointer)

    for _ in range(2):
        into.fill(ask)
    assert found == [MEMORY.pack(pynvml.nvmlMemory_v2, 0, 0, 0, 0)] * 2


def test_refused_memory_does_not_repeat_the_previous_read() -> None:
    into = memory_buffer()
    into.fill(writes(MEMORY.pack(pynvml.nvmlMemory_v2, 80, 1, 59, 20)))
    with pytest.raises(Unsupported):
        into.fill(writes(b"", pynvml.NVML_ERROR_NOT_SUPPORTED))


# ---------------------------------------------------------------------------- lists


def test_an_equal_list_is_the_same_object_and_a_change_is_seen() -> None:
    into = process_buffer(ProcessKind.COMPUTE, wide=False)
    first, second = ENTRY.pack(7, 100, 0xFFFFFFFF, 0xFFFFFFFF), ENTRY.pack(8, 200, 0xFFFFFFFF, 0xFFFFFFFF)
    found = into.fill(lists(first + second, 2))
    assert [(each.pid, each.memory_bytes) for each in found] == [(7, 100), (8, 200)]
    assert into.fill(lists(first + second, 2)) is found
    assert into.fill(lists(first + second, 1)) == found[:1]
    other = into.fill(lists(first + ENTRY.pack(8, 201, 0xFFFFFFFF, 0xFFFFFFFF), 2))
    assert [(each.pid, each.memory_bytes) for each in other] == [(7, 100), (8, 201)]
    assert other[0] is found[0]
    assert into.fill(lists(b"", 0)) == ()


def test_an_empty_answer_code_is_an_error_without_an_empty_answer() -> None:
    into: ListBuffer[tuple[int, ...]] = ListBuffer(1, tuple)
    nothing: EmptyAnswer[tuple[int, ...]] = EmptyAnswer(pynvml.NVML_ERROR_NOT_FOUND, ())
    assert into.fill(lists(b"\x01\x02", 2), nothing) == (1, 2)
    assert into.fill(lambda *_: pynvml.NVML_ERROR_NOT_FOUND, nothing) == ()
    with pytest.raises(NoValue):
        into.fill(lambda *_: pynvml.NVML_ERROR_NOT_FOUND)
    with pytest.raises(Unsupported):
        into.fill(lambda *_: pynvml.NVML_ERROR_NOT_SUPPORTED, nothing)


# ---------------------------------------------------------------------------- field values


def call(fields: Mapping[int, tuple[int, int, bytes]]) -> Callable[[int, Any], int]:
    """A call that writes these fields by id: type, code and the bytes of the value, each with a time."""
    passes = 0

    def ask(count: int, values: Any) -> int:
        nonlocal passes
        passes += 1
        for number in range(count):
            value = values[number]
            kind, code, data = fields.get(value.fieldId, (UNSIGNED, pynvml.NVML_ERROR_NOT_SUPPORTED, b""))
            value.timestamp, value.valueType, value.nvmlReturn = passes, kind, code
            ctypes.memmove(ctypes.byref(value, 32), data.ljust(8, b"\0"), 8)
        return OK

    return ask


def test_values_are_read_by_their_current_types() -> None:
    into = FieldBuffer((10, 20, 30))
    number = struct.Struct("=Q").pack
    fields = {
        10: (UNSIGNED_LONG_LONG, OK, number(1 << 40)),
        20: (DOUBLE, OK, struct.pack("=d", 1.5)),
        30: (SIGNED, OK, struct.pack("=i", -3)),
    }
    assert into.fill(call(fields)) == {10: 1 << 40, 20: 1.5, 30: -3}
    fields[10] = (UNSIGNED_LONG_LONG, OK, number((1 << 40) + 1))
    assert into.fill(call(fields)) == {10: (1 << 40) + 1, 20: 1.5, 30: -3}
    fields[20] = (UNSIGNED, OK, struct.pack("=II", 7, 0xFFFFFFFF))  # the rest of the union is undefined
    assert into.fill(call(fields)) == {10: (1 << 40) + 1, 20: 7, 30: -3}
    fields[10] = (UNSIGNED_LONG_LONG, pynvml.NVML_ERROR_UNKNOWN, number(5))
    assert into.fill(call(fields)) == {20: 7, 30: -3}
    fields[20] = (99, OK, number(5))  # a type of a later driver
    assert into.fill(call(fields)) == {30: -3}
    assert into.fill(call({})) == {}


@pytest.mark.parametrize(
    ("kind", "absent"), [(UNSIGNED, b"\xff\xff\xff\xff"), (UNSIGNED_LONG_LONG, b"\xff" * 8)], ids=["32 bits", "64 bits"]
)
def test_an_unavailable_value_is_left_out(kind: int, absent: bytes) -> None:
    into = FieldBuffer((10, 20))
    for value, expected in ((b"\x01", {10: 1, 20: 2}), (absent, {20: 2}), (b"\x01", {10: 1, 20: 2})):
        assert into.fill(call({10: (kind, OK, value), 20: (UNSIGNED, OK, b"\x02")})) == expected
