"""gzip of texts that come in parts."""

import gzip
import zlib
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.web.gzipped import GzippedParts

TEXTS = st.lists(st.lists(st.integers(0, 5), max_size=8), max_size=6)


@given(TEXTS)
def test_whatever_comes_again_unpacks_to_what_it_was(texts: list[list[int]]) -> None:
    parts = [f'gpu_{number}{{pid="{number}"}} 1\n'.encode() * number * 40 for number in range(6)]
    packer = GzippedParts()
    for text in texts:
        chosen = [parts[number] for number in text]
        assert gzip.decompress(packer.pack(chosen)) == b"".join(chosen)


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 3), st.integers(0, 12)), max_size=30))
def test_what_of_a_long_text_changes_comes_or_goes_is_read_once_however_many_texts_it_is_in(
    changes: list[tuple[int, int, int]],
) -> None:
    read: list[bytes] = []

    def reading(data: bytes, crc: int = 0) -> int:
        read.append(data)
        return crc32(data, crc)

    made, packer = 12, GzippedParts()
    parts = [b"%d\n" % number * number * 20 for number in range(made)]
    before: list[bytes] = []
    crc32 = zlib.crc32
    for place, length, moved_to in [(0, 0, 0), *changes]:
        if parts and length:
            parts[place % len(parts)] = b"%d\n" % made * length * 30
            made += 1
        elif parts:  # one goes, or stands elsewhere
            part = parts.pop(place % len(parts))
            if moved_to < 12:
                parts.insert(moved_to, part)
        read.clear()
        with patch("zlib.crc32", reading):
            packed = packer.pack(parts)
        known = set(map(id, before))
        assert [part for part in read if len(part) != 4] == [part for part in parts if id(part) not in known]
        assert gzip.decompress(packed) == b"".join(parts)
        before = list(parts)


@given(st.lists(st.binary(max_size=3000), max_size=5))
def test_it_is_one_member_for_clients_that_stop_after_the_first(parts: list[bytes]) -> None:
    unpack = zlib.decompressobj(16 + zlib.MAX_WBITS)
    assert unpack.decompress(GzippedParts().pack(parts)) == b"".join(parts)
    assert (unpack.eof, unpack.unused_data) == (True, b"")


def test_a_part_that_comes_again_is_not_compressed_again() -> None:
    packer, compressed = GzippedParts(), []
    inner = packer._deflate

    class Counting:
        def compress(self, part: bytes) -> bytes:
            compressed.append(part)
            return inner.compress(part)

        def flush(self, mode: int) -> bytes:
            return inner.flush(mode)

    packer._deflate = Counting()  # type: ignore[assignment]
    still, first, second = b"a" * 5000, b"b" * 5000, b"c" * 5000
    packer.pack([still, first])
    packer.pack([still, second])
    assert compressed == [still, first, second]
    packer.pack([first])
    assert compressed[3:] == [first], "only the last text's parts are kept"


def test_equal_parts_are_compressed_alike_wherever_they_stand() -> None:
    begin, text = b"x" * 1000, b'gpu_up{hw_id="GPU-0"} 1\n' * 500
    one, other = GzippedParts().pack([begin, text]), GzippedParts().pack([text, begin])
    assert len(one) == len(other)
    assert gzip.decompress(one)[1000:] == gzip.decompress(other)[:-1000] == text


def test_a_part_that_could_not_be_compressed_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    packer = GzippedParts()
    inner = packer._deflate

    class Failing:
        def compress(self, part: bytes) -> bytes:
            return inner.compress(part)

        def flush(self, _: int) -> bytes:
            raise MemoryError

    monkeypatch.setattr(packer, "_deflate", Failing())
    with pytest.raises(MemoryError):
        packer.pack([b"lost" * 100])
    assert gzip.decompress(packer.pack([b"told" * 100])) == b"told" * 100
