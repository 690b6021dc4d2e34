"""YAML files: read, and walked node by node, so that whatever is wrong is told with its line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from otel_gpu.errors import UsageError

_LARGEST_BYTES: Final = 1 << 20
_NULL: Final = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True)
class Node:
    """A place in a file. Walked, not converted: a text stays as it was written, and aliases multiply nothing."""

    name: str
    node: yaml.Node

    @property
    def origin(self) -> str:
        """The file and the line."""
        return f"{self.name}:{self.node.start_mark.line + 1}"

    @property
    def is_empty(self) -> bool:
        """Whether nothing stands here: no word, ``~`` or ``null``."""
        return self.node.tag == _NULL

    def text(self) -> str | None:
        """The one word or line that stands here, as it was written; None if it is something else."""
        return self.node.value if isinstance(self.node, yaml.ScalarNode) else None

    def items(self) -> tuple[Node, ...] | None:
        """The entries of the list that stands here; None if it is something else."""
        if not isinstance(self.node, yaml.SequenceNode):
            return None
        return tuple(Node(self.name, item) for item in self.node.value)

    def entries(self) -> tuple[tuple[Node, Node], ...] | None:
        """Keys and values of the mapping that stands here, in order; None if it is something else."""
        if not isinstance(self.node, yaml.MappingNode):
            return None
        return tuple((Node(self.name, key), Node(self.name, value)) for key, value in self.node.value)


def read_yaml(path: Path, kind: str) -> str:
    """The text of a file. UsageError names the file and what is wrong; ``kind`` is what the file is."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a name that can be no file's
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read the {kind} {path}: {reason}") from None
    if len(content) > _LARGEST_BYTES:
        raise UsageError(f"the {kind} {path} is over 1 MiB; is it the right file?")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"the {kind} {path} is not UTF-8 text") from None


def parse_yaml(text: str, name: str) -> Node | None:
    """The topmost node of a text; None if nothing is in it. UsageError names the file, the line and what is wrong."""
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
    return None if root is None or root.tag == _NULL else Node(name, root)  # the latter: '---' and nothing
