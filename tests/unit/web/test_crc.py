"""CRCs of bytes that are not read again."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.web.crc import moved

CRCS = st.integers(0, (1 << 32) - 1)


@given(st.binary(max_size=300), CRCS, CRCS)
def test_where_bytes_took_one_crc_tells_where_they_take_any_other(data: bytes, before: int, other: int) -> None:
    assert moved(other, before, zlib.crc32(data, before), len(data)) == zlib.crc32(data, other)


@pytest.mark.parametrize("length", [0, 1, 255, 256, 65_535, 1_104_226, (1 << 22) - 1])
@pytest.mark.parametrize("crc", [0, 1, 1 << 31, (1 << 32) - 1])
def test_of_any_length(length: int, crc: int) -> None:
    data = b"\xa5" * length
    assert moved(crc, 7, zlib.crc32(data, 7), length) == zlib.crc32(data, crc)


def test_that_of_two_texts_is_made_of_theirs() -> None:
    first, second = b"gpu_up 1\n" * 100, b"# EOF\n"
    assert moved(zlib.crc32(first), 0, zlib.crc32(second), len(second)) == zlib.crc32(first + second)
