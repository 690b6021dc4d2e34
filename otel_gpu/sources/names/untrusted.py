"""Values from outside the agent: texts that a user or program wrote, and JSON in which anything may be missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

MAX_CHARS: Final = 1024
"""Longest name or label that is exported, in characters. Longer text is data, not a name, and is in every series."""


def sanitize(value: object) -> str | None:
    """The text as valid Unicode, cut at ``MAX_CHARS``; ``None`` for anything that is not text, or empty."""
    if not isinstance(value, str) or not value:
        return None
    # JSON may contain lone surrogates ("\ud800"), which no exporter can encode.
    text = value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1]}…"


# ---------------------------------------------------------------------------- fields of JSON documents

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
