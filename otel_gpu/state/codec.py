"""Frozen data as JSON and back, by type hints. A dataclass is the list of its fields.

The fields of each class are looked up once, because every cycle is written. Reading is strict: ValueError for any text
that ``to_json`` does not write. A new field goes at the end and has a default, which files without it get.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from otel_gpu.bounded_io import parse_json

T = TypeVar("T")
_Read = Callable[[Any], Any]

_ABSURD: Final = 1 << 100
"""No real count, time or amount comes near. Beyond the range of floats arithmetic would fail."""


def to_json(data: object) -> str:
    """One line of ASCII. ``data`` consists of dataclasses, named tuples, enumerations and plain values."""
    return _ENCODER.encode(data)


def from_json(kind: type[T], text: str | bytes) -> T:
    """The data that ``to_json`` was given; ValueError for any other text."""
    return from_plain(kind, parse_json(text))


def from_plain(kind: type[T], data: Any) -> T:
    """The same as ``from_json``, from parsed JSON."""
    return cast("T", _reader(cast("Hashable", kind))(data))


# ---------------------------------------------------------------------------- writing


class _Layout(NamedTuple):
    """Reads the fields of a dataclass. ``mappings`` are the positions of fields whose keys may not be strings."""

    values: Callable[[Any], tuple[Any, ...]]
    mappings: tuple[int, ...]


@cache
def _layout(kind: Any) -> _Layout:
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind) if field.init]
    mappings = tuple(place for place, name in enumerate(names) if get_origin(hints[name]) is Mapping)
    several = attrgetter(*names)
    return _Layout(several if len(names) > 1 else lambda data: (several(data),), mappings)


def _plain(data: Any) -> Any:
    """A list or tuple for what JSON lacks: sets and dataclasses. The encoder calls it again for nested ones."""
    if isinstance(data, frozenset):
        return list(data)
    layout = _layout(cast("Hashable", type(data)))
    values = layout.values(data)
    if not layout.mappings:
        return values
    parts = list(values)
    for place in layout.mappings:
        parts[place] = list(parts[place].items())
    return parts


_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), default=_plain, check_circular=False)


# ---------------------------------------------------------------------------- reading


@cache
def _reader(hint: Any) -> _Read:
    """A function that reads a value of this type, or raises ValueError."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (inner,) = (each for each in arguments if each is not NoneType)
        return _optional(_reader(inner))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _record(tuple, [_reader(each) for each in arguments])
    if origin in (tuple, frozenset):
        return _several(origin, _reader(arguments[0]))
    if origin is Mapping:
        return _mapping(_record(tuple, [_reader(each) for each in arguments]))
    if is_dataclass(hint) or issubclass(hint, tuple):  # a named one
        return _record(_call(hint), _field_readers(hint), _required_fields(hint))
    return _enumerated(hint) if issubclass(hint, Enum) else _SCALARS[hint]


def _field_readers(kind: Any) -> list[_Read]:
    """One reader per field, in their order."""
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind) if field.init] if is_dataclass(kind) else list(hints)
    return [_reader(hints[name]) for name in names]


def _required_fields(kind: Any) -> int:
    """How many fields a record has at least, and never none. The last ones may be missing if they have defaults."""
    if not is_dataclass(kind):
        return max(1, len(kind._fields) - len(kind._field_defaults))
    without = [field.default is MISSING and field.default_factory is MISSING for field in fields(kind) if field.init]
    return max((place + 1 for place, needed in enumerate(without) if needed), default=1)


def _scalar(*kinds: type) -> _Read:
    def read(data: Any) -> Any:
        if type(data) not in kinds or (type(data) is int and not -_ABSURD < data < _ABSURD):
            raise ValueError(f"expected a {kinds[-1].__name__} in range, found a {type(data).__name__}")
        return data

    return read


_SCALARS: Final[Mapping[type, _Read]] = {
    bool: _scalar(bool),
    int: _scalar(int),
    float: _scalar(int, float),
    str: _scalar(str),
}


def _call(kind: Any) -> Callable[[tuple[Any, ...]], Any]:
    return lambda values: kind(*values)


def _list(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise ValueError("expected a list")  # noqa: TRY004 - a bad value to the caller, as all others
    return data


def _record(make: Callable[[tuple[Any, ...]], Any], readers: list[_Read], required: int | None = None) -> _Read:
    least = len(readers) if required is None else required

    def read(data: Any) -> Any:
        if not least <= len(_list(data)) <= len(readers):
            raise ValueError(f"expected {len(readers)} values, found {len(data)}")
        return make(tuple(reader(each) for reader, each in zip(readers, data, strict=False)))

    return read


def _several(make: Callable[[Any], Any], reader: _Read) -> _Read:
    return lambda data: make(reader(each) for each in _list(data))


def _mapping(item: _Read) -> _Read:
    return lambda data: dict(item(each) for each in _list(data))


def _optional(reader: _Read) -> _Read:
    return lambda data: None if data is None else reader(data)


def _enumerated(kind: type[Enum]) -> _Read:
    return lambda data: kind(_SCALARS[str](data))
