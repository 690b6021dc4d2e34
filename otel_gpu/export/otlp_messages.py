"""OTLP's messages in protobuf, as far as metrics need them: ``opentelemetry/proto/metrics/v1/metrics.proto``."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final

from otel_gpu.metrics.catalogue import Kind, Metric
from otel_gpu.metrics.tags import Attribute, Attributes
from otel_gpu.version import __version__

# Tags of fields: number << 3 | type, with 0 for a number, 1 for 8 bytes, 2 for what has a length.
FIRST: Final = 0x0A  # field 1, with a length: where a message begins with what it is about, or a list is all it has
SECOND: Final = 0x12
_UNIT: Final = 0x1A
_START, _TIME, _ATTRIBUTE = 0x11, 0x19, 0x3A  # NumberDataPoint
DOUBLE: Final = 0x21
INT: Final = 0x31
_GAUGE, _SUM = 0x2A, 0x3A  # Metric
_TEMPORALITY, _MONOTONIC = b"\x10", b"\x18\x01"  # Sum
_DELTA, _CUMULATIVE = b"\x01", b"\x02"  # AggregationTemporality

_FIXED: Final = Struct("<Q")
TIME_BYTES: Final = _FIXED.size
_DOUBLE_VALUE: Final = Struct("<Bd")
_INT_VALUE: Final = Struct("<Bq")
FIGURE_BYTES: Final = _INT_VALUE.size
_GAUGE_DOUBLE: Final = Struct("<BQBd")
_GAUGE_INT: Final = Struct("<BQBq")
_SUM_DOUBLE: Final = Struct("<BQBQBd")
_SUM_INT: Final = Struct("<BQBQBq")


def packed(value: float, time_ns: int, start_ns: int | None) -> bytes:
    """Times and value of a point. A gauge has no start; and of a sum, nobody may tell since when it counts.

    The wall clock may have been set back since: a start after the end would be refused.
    """
    if start_ns:
        start_ns = min(start_ns, time_ns)
        if isinstance(value, int):
            return _SUM_INT.pack(_START, start_ns, _TIME, time_ns, INT, value)
        return _SUM_DOUBLE.pack(_START, start_ns, _TIME, time_ns, DOUBLE, value)
    if isinstance(value, int):
        return _GAUGE_INT.pack(_TIME, time_ns, INT, value)
    return _GAUGE_DOUBLE.pack(_TIME, time_ns, DOUBLE, value)


def time_of(time_ns: int) -> bytes:
    """A time as it stands in a point, after its tag."""
    return _FIXED.pack(time_ns)


@lru_cache(maxsize=256)
def point_head(start_ns: int | None, attributes_bytes: int) -> bytes:
    """What stands before the time of a point with so many bytes of attributes, with the tag of the time.

    Gauges come and go most often, and have no start: of them there are as many as lengths.
    """
    if start_ns is None:
        start, inner_bytes = b"", _GAUGE_INT.size + attributes_bytes
    else:
        start, inner_bytes = bytes((_START,)) + _FIXED.pack(start_ns), _SUM_INT.size + attributes_bytes
    return bytes((FIRST,)) + length(inner_bytes) + start + bytes((_TIME,))


def figure_of(value: float) -> bytes:
    """The value of a point with its tag: what stands after the time."""
    return _INT_VALUE.pack(INT, value) if isinstance(value, int) else _DOUBLE_VALUE.pack(DOUBLE, value)


write_whole: Final = _INT_VALUE.pack_into
write_double: Final = _DOUBLE_VALUE.pack_into
"""Write a figure into a buffer, at a place, with its tag. Hundreds are written in a cycle, by C alone."""


def own_attributes(attributes: Attributes) -> bytes:
    """The attributes of a point."""
    return attributes_of(_ATTRIBUTE, attributes)


def resource_of(attributes: Attributes) -> bytes:
    """A ResourceMetrics' Resource."""
    return field_of(FIRST, attributes_of(FIRST, attributes))


def scope_of() -> bytes:
    """A ScopeMetrics' scope."""
    return field_of(FIRST, text_of(FIRST, "otel_gpu") + text_of(SECOND, __version__))


def heading_of(metric: Metric) -> bytes:
    """A Metric's name, description and unit."""
    return text_of(FIRST, metric.name) + text_of(SECOND, metric.description) + text_of(_UNIT, metric.unit)


def around_points(metric: Metric, heading: bytes, points_bytes: int, *, deltas: bool) -> tuple[bytes, bytes]:
    """What stands before and after so many bytes of points to make a Metric of them in a ScopeMetrics."""
    tail, tag = b"", _GAUGE
    if metric.kind is not Kind.GAUGE:
        counter = metric.kind is Kind.COUNTER
        tail = _TEMPORALITY + (_DELTA if counter and deltas else _CUMULATIVE) + (_MONOTONIC if counter else b"")
        tag = _SUM
    inner = bytes((tag,)) + length(points_bytes + len(tail))
    size = len(heading) + len(inner) + points_bytes + len(tail)
    return bytes((SECOND,)) + length(size) + heading + inner, tail


@lru_cache(maxsize=4096)
def length(number: int) -> bytes:
    """A varint: seven bits a byte, the lowest first. Few lengths come again and again."""
    if number < 0x80:
        return bytes((number,))
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def field_of(tag: int, data: bytes) -> bytes:
    """A field with a length."""
    return bytes((tag,)) + length(len(data)) + data


def text_of(tag: int, text: str) -> bytes:
    """Absent where it is empty, as proto3 has it. Half a surrogate pair is no Unicode."""
    return field_of(tag, text.encode("utf-8", "replace")) if text else b""


def attributes_of(tag: int, attributes: Attributes) -> bytes:
    """A list of KeyValue."""
    return b"".join(
        field_of(tag, text_of(FIRST, key) + field_of(SECOND, _any(value))) for key, value in attributes.items()
    )


def _any(value: Attribute) -> bytes:
    """An AnyValue; one of its fields is always there, however empty."""
    match value:
        case str():
            return field_of(FIRST, value.encode("utf-8", "replace"))
        case bool():
            return b"\x10\x01" if value else b"\x10\x00"
        case int():
            return b"\x18" + length(value & 0xFFFFFFFFFFFFFFFF)
