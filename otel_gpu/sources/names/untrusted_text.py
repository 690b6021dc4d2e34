"""Text from outside the agent: names and labels contain whatever a user or program wrote."""

from __future__ import annotations

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


def printable(text: str, max_chars: int = 80) -> str:
    """The text as one short line, for use in a reason."""
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"
