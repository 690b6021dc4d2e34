"""The configuration file: a flat YAML mapping of words and lists of words, each with the line it stands on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from otel_gpu.errors import UsageError
from otel_gpu.yamlfile import Node, parse_yaml, read_yaml


@dataclass(frozen=True, slots=True)
class FileValue:
    """A value as written, and where."""

    text: str
    origin: str


def read_config_file(path: Path) -> dict[str, FileValue]:
    """Keys and values of a file. UsageError names the file, the line and what is wrong."""
    return parse_config(read_yaml(path, "configuration file"), str(path))


def parse_config(text: str, name: str) -> dict[str, FileValue]:
    """Parse a flat YAML mapping; an empty text is an empty mapping."""
    root = parse_yaml(text, name)
    if root is None:
        return {}
    entries = root.entries()
    if entries is None:
        raise UsageError(f"{name}: a mapping of settings is expected, such as 'interval: 5s'")
    values: dict[str, FileValue] = {}
    for key_node, value_node in entries:
        key = key_node.text()
        if key is None:
            raise UsageError(f"{key_node.origin}: a setting is 'key: value' on one line")
        value = _value(value_node)
        if value is None:
            raise UsageError(f"{key_node.origin}: {key} is no word and no list of words; a setting is 'key: value'")
        if key in values:
            raise UsageError(f"{key_node.origin}: {key} is set a second time; the first is at {values[key].origin}")
        values[key] = FileValue(value, key_node.origin)
    return values


def _value(node: Node) -> str | None:
    """A word, or the words of a list between commas, as flags and variables have them; None if it is neither."""
    items = node.items()
    if items is None:
        return node.text()
    words = [word for item in items if (word := item.text()) is not None]
    return ",".join(words) if len(words) == len(items) else None
