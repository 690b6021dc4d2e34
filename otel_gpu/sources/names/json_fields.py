"""Read fields of JSON documents in which anything may be missing, null or of another type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

_EMPTY: Final[Mapping[str, object]] = MappingProxyType({})


def mapping(value: object) -> Mapping[str, object]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else _EMPTY


def array(value: object) -> Sequence[object]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else ()


def section(document: object, key: str) -> Mapping[str, object]:
    """The object under a key; an empty one if there is none."""
    return mapping(document.get(key)) if isinstance(document, Mapping) else _EMPTY


def entries(document: Mapping[str, object], key: str) -> Sequence[Mapping[str, object]]:
    """The objects in the list under a key."""
    return [item for item in array(document.get(key)) if isinstance(item, Mapping)]


def strings(value: object) -> Sequence[str]:
    """The strings in a list."""
    return [item for item in array(value) if isinstance(item, str)]


def text(value: object) -> str | None:
    """A string that is not empty, or ``None``."""
    return value if isinstance(value, str) and value else None
