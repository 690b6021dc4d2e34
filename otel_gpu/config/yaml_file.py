"""YAML files: read, parsed to nodes that keep their line, and the configuration file among them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from otel_gpu.bounded_io import TooLarge, read_file_or_pipe
from otel_gpu.errors import UsageError

_LARGEST_BYTES: Final = 1 << 20
_PIPE_TIMEOUT_S: Final = 5.0
_EXAMPLE: Final = "write each setting as 'key: value', for example 'otlp-endpoint: http://localhost:4318'"
_NULL: Final = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a file. Nodes are not converted: a text stays as written, and aliases multiply nothing."""

    name: str
    node: yaml.Node

    @property
    def origin(self) -> str:
        """The file and the line."""
        return f"{self.name}:{self.node.start_mark.line + 1}"

    @property
    def is_empty(self) -> bool:
        """Whether the value is empty, ``~`` or ``null``."""
        return self.node.tag == _NULL

    def text(self) -> str | None:
        """The scalar as written; ``None`` for a list or mapping."""
        return self.node.value if isinstance(self.node, yaml.ScalarNode) else None

    def items(self) -> tuple[Node, ...] | None:
        """The items of a list; ``None`` for anything else."""
        if not isinstance(self.node, yaml.SequenceNode):
            return None
        return tuple(Node(self.name, item) for item in self.node.value)

    def entries(self) -> tuple[tuple[Node, Node], ...] | None:
        """Keys and values of a mapping, in order; ``None`` for anything else."""
        if not isinstance(self.node, yaml.MappingNode):
            return None
        return tuple((Node(self.name, key), Node(self.name, value)) for key, value in self.node.value)


def read_yaml(path: Path, kind: str) -> str:
    """The text of a file. UsageError names the file and the problem; ``kind`` is what the file is."""
    try:
        content = read_file_or_pipe(path, _LARGEST_BYTES, _PIPE_TIMEOUT_S)
    except TooLarge as error:
        raise UsageError(f"the {kind} {path} is {error}; is it the right file?") from None
    except TimeoutError:
        problem = f"it is not a regular file, and no process has written all of it within {_PIPE_TIMEOUT_S:g} s"
        raise UsageError(f"cannot read the {kind} {path}: {problem}") from None
    except (OSError, ValueError) as error:  # ValueError: an invalid path
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read the {kind} {path}: {reason}") from None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"the {kind} {path} is not UTF-8 text") from None


def parse_yaml(text: str, name: str) -> Node | None:
    """The root of a text; ``None`` if it is empty. UsageError names the file, the line and the problem."""
    try:
        # Nodes, not values: they keep the line, and 'source: on' stays the text the user wrote.
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        problem = error.problem or "syntax error"
        if problem.startswith("but "):  # it continues the context
            problem = f"{error.context}, {problem}"
        raise UsageError(f"{name}{line}: not valid YAML: {problem}") from None
    except RecursionError:
        raise UsageError(f"{name}: not valid YAML: nested too deeply") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # The last two: PyYAML lets chr() and int() refuse "\UFFFFFFFF" and a %YAML version of 5,000 digits.
        problem, _, _ = str(error).partition("\n")
        raise UsageError(f"{name}: not valid YAML: {problem}") from None
    return None if root is None or root.tag == _NULL else Node(name, root)  # the latter: '---' and nothing


# ---------------------------------------------------------------------------- the configuration file


@dataclass(frozen=True, slots=True)
class FileValue:
    """The text of a value, and its origin: the file and the line."""

    text: str
    origin: str


def read_config_file(path: Path) -> dict[str, FileValue]:
    """Keys and values of a file. UsageError names the file, the line and the problem."""
    return parse_config(read_yaml(path, "configuration file"), str(path))


def parse_config(text: str, name: str) -> dict[str, FileValue]:
    """Parse a flat YAML mapping of settings. A value is a single word or line, or a list of them."""
    root = parse_yaml(text, name)
    if root is None:
        return {}
    entries = root.entries()
    if entries is None:
        raise UsageError(f"{name}: not a mapping; {_EXAMPLE}")
    values: dict[str, FileValue] = {}
    for key_node, value_node in entries:
        key = key_node.text()
        if key is None:
            raise UsageError(f"{key_node.origin}: a key is not a single word; {_EXAMPLE}")
        value = _value(value_node)
        if value is None and value_node.entries() is not None:
            raise UsageError(f"{key_node.origin}: {key}: settings are not nested; {_EXAMPLE}")
        if value is None:
            raise UsageError(f"{key_node.origin}: {key}: the value is not a single word or a list of words; {_EXAMPLE}")
        if key in values:
            raise UsageError(f"{key_node.origin}: {key} is set twice, first at {values[key].origin}")
        values[key] = FileValue(value, key_node.origin)
    return values


def _value(node: Node) -> str | None:
    """A word, or the words of a list joined by commas as in flags and variables; ``None`` for anything else."""
    items = node.items()
    if items is None:
        return node.text()
    words = [word for item in items if (word := item.text()) is not None]
    return ",".join(words) if len(words) == len(items) else None
