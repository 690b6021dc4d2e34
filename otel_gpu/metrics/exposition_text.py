"""Labels and help as Prometheus's text format writes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

LabelValue: TypeAlias = str | int | bool | None


def labels_text(labels: Iterable[tuple[str, LabelValue]]) -> str:
    """What stands between the braces of a series."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)


def help_text(text: str) -> str:
    """What stands after ``# HELP`` and the name."""
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _escaped(value: LabelValue) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            # Half a surrogate pair is no Unicode; shown as Python would write it.
            text = value.encode("utf-8", "backslashreplace").decode()
            return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
