"""Labels and help as Prometheus's text format writes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

LabelValue: TypeAlias = str | int | bool


def labels_text(labels: Iterable[tuple[str, LabelValue]]) -> str:
    """The text between the braces of a series."""
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in labels])


def help_text(text: str) -> str:
    """The text after ``# HELP`` and the name."""
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _escaped(value: LabelValue) -> str:
    if isinstance(value, str):
        # Half a surrogate pair is not valid Unicode: it is written as Python's escape.
        text = value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
