"""CRC-32 (RFC 1952, 8) of bytes that were read once and now stand after others, without reading them again.

A CRC is a remainder of polynomials whose coefficients are bits; the highest bit of zlib's is that of x^0. Bytes take
the CRC of what stands before them to another: times x^8 for each of them, plus what is theirs alone. So whoever knows
where they took one CRC knows where they take any other. zlib has that as crc32_combine(), which Python does not offer.
"""

from __future__ import annotations

import zlib
from functools import cache, lru_cache
from typing import Final

_BITS: Final = int.from_bytes(b"\1" * 63)
_DIGITS: Final = int.from_bytes(b"0" * 63)
_ALL: Final = (1 << 32) - 1
_LOWER: Final = (1 << 31) - 1
_FOUR_BYTES: Final = bytes(4)
_ONE: Final = 1 << 31
_BYTE: Final = 1 << 23  # x^8


def moved(crc: int, before: int, after: int, length: int) -> int:
    """Where ``crc`` is taken by so many bytes that took ``before`` to ``after``."""
    return after if crc == before else _product(crc ^ before, _spread_power(length)) ^ after


@lru_cache(maxsize=512)
def _spread_power(length: int) -> int:
    """x^8 to the power of a length, spread; lengths come again."""
    power = _ONE
    for bit in range(length.bit_length()):
        if length >> bit & 1:
            power = _product(power, _spread_square(bit))
    return _spread(power)


@cache
def _spread_square(times: int) -> int:
    """x^8 squared so many times, spread."""
    if not times:
        return _spread(_BYTE)
    square = _spread_square(times - 1)
    return _spread(_product(_gathered(square), square))


def _spread(polynomial: int) -> int:
    """Its bits, each in a byte of its own: in a product of two such, no sum of bits reaches the next byte."""
    return int.from_bytes(f"{polynomial:b}".encode()) & _BITS


def _gathered(spread: int) -> int:
    """The lowest bits of its bytes, together again: with the upper half of a digit they are a text of 0 and 1."""
    return int((spread & _BITS | _DIGITS).to_bytes(63), 2)


def _product(one: int, spread: int) -> int:
    """The remainder of the product of one and another, which is spread."""
    bits = _gathered(_spread(one) * spread)
    # Its lower half is x^32 and more, where four bytes of nothing take a CRC; zlib's is one of the complement.
    return bits >> 31 ^ zlib.crc32(_FOUR_BYTES, (bits & _LOWER) << 1 ^ _ALL) ^ _ALL
