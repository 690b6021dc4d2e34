"""Values from outside the agent: texts that a user or program wrote, and JSON in which anything may be missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

MAX_TEXT_BYTES: Final = 128
"""Longest label, annotation or other free text that is exported, in bytes of UTF-8. It is in every series."""
MAX_NAME_BYTES: Final = 256
"""The same for names that others join by: of containers, images, pods and namespaces. Kubernetes allows 253 bytes."""

_CUT: Final = "…"


def sanitize(value: object, max_bytes: int = MAX_TEXT_BYTES) -> str | None:
    """The text as valid Unicode, cut at ``max_bytes``; ``None`` for anything that is not text, or empty."""
    if not isinstance(value, str) or not value:
        return None
    # JSON may contain lone surrogates ("\ud800"), which no exporter can encode.
    encoded = value.encode("utf-8", "replace")
    if len(encoded) <= max_bytes:
        return value if value.isascii() else encoded.decode("utf-8")
    return encoded[: max_bytes - len(_CUT.encode())].decode("utf-8", "ignore") + _CUT


def change_of(value: str, exported: str) -> str | None:
    """What of a text is not exported, for the reason of a source; ``None`` if it is exported as it is."""
    if value == exported:
        return None
    if exported.endswith(_CUT) and len(value) >= len(exported):
        size_bytes = len(value.encode("utf-8", "replace"))
        return f"has {size_bytes:,} bytes; only the first {len(exported.encode()) - len(_CUT.encode()):,} are exported"
    return "is not valid Unicode; invalid characters are exported as question marks"


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
