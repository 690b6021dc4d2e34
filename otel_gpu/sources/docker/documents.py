"""Looking into JSON from an engine, where anything may be missing, null or of another type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


def section(document: object, key: str) -> Mapping[str, object]:
    """The object under a key; an empty one if there is none."""
    return mapping(document.get(key)) if isinstance(document, Mapping) else _NOTHING


def entries(document: Mapping[str, object], key: str) -> Sequence[Mapping[str, object]]:
    """The objects in the list under a key; what is no object is left out."""
    value = document.get(key)
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else ()


def mapping(value: object) -> Mapping[str, object]:
    """An object, or an empty one in the place of anything else."""
    return value if isinstance(value, Mapping) else _NOTHING


def text(value: object) -> str | None:
    """A text that is not empty, or ``None``."""
    return value if isinstance(value, str) and value else None
