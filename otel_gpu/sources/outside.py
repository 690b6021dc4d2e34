"""Text from outside, made fit to be told: names and labels are whatever somebody once typed."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 1024
"""Characters of a name or label that are told. Longer ones are somebody's data, not a name, and every series has it."""


def told(value: object) -> str | None:
    """A text as it is told: whole, valid Unicode, not too long; ``None`` for what is no text, or empty."""
    if not isinstance(value, str) or not value:
        return None
    # JSON may carry halves of a character ("\ud800"), which no exporter can encode.
    text = value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def printable(text: str, longest: int = 80) -> str:
    """A text from outside for use in a reason: one line, not long."""
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= longest else f"{text[:longest]}…"
