"""The configuration file: a flat YAML mapping, each value with the line it stands on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from otel_gpu.errors import UsageError

_LARGEST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FileValue:
    """A value as written, and where."""

    text: str
    origin: str


def read_config_file(path: Path) -> dict[str, FileValue]:
    """Keys and values of a file. UsageError names the file, the line and what is wrong."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a name that can be no file's
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read the configuration file {path}: {reason}") from None
    if len(content) > _LARGEST_BYTES:
        raise UsageError(f"the configuration file {path} is over 1 MiB; is it the right file?")
    try:
        return parse_config(content.decode("utf-8"), str(path))
    except UnicodeDecodeError:
        raise UsageError(f"the configuration file {path} is not UTF-8 text") from None


def parse_config(text: str, name: str) -> dict[str, FileValue]:
    """Parse a flat YAML mapping; an empty text is an empty mapping."""
    try:
        # Nodes, not values: they keep the line, and 'source: on' stays the text the user wrote.
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise UsageError(f"{name}{line}: not valid YAML: {error.problem or error.context or 'syntax error'}") from None
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        # The last two: PyYAML leaves it to chr() and int() to refuse "\UFFFFFFFF" and a %YAML version of 5,000 digits.
        problem, _, _ = str(error).partition("\n")
        raise UsageError(f"{name}: not valid YAML: {problem}") from None
    if root is None or root.tag == "tag:yaml.org,2002:null":  # nothing, or '---' and nothing
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{name}: a mapping of settings is expected, such as 'interval: 5s'")
    values: dict[str, FileValue] = {}
    for key, value in root.value:
        origin = f"{name}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode) or not isinstance(value, yaml.ScalarNode):
            raise UsageError(f"{origin}: a setting is 'key: value' on one line")
        if key.value in values:
            raise UsageError(f"{origin}: {key.value} is set a second time; the first is at {values[key.value].origin}")
        values[key.value] = FileValue(value.value, origin)
    return values
