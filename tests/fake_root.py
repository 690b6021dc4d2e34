"""A root directory with real sockets, for tests of candidates."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from otel_gpu.agent.host import name_options
from otel_gpu.config import Config, load
from otel_gpu.sources.names.candidates import SourceCandidate, find_candidates, read_facts


class FakeRoot:
    """A root under which sockets listen; its path is short, since a socket's may have 107 bytes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._open: list[socket.socket] = []

    def listen(self, path: str) -> Path:
        """Listen at a path."""
        where = self.root / path
        where.parent.mkdir(parents=True, exist_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(where))
        listener.listen()
        self._open.append(listener)
        return where

    def add(self, path: str) -> Path:
        """Make a directory."""
        (self.root / path).mkdir(parents=True)
        return self.root / path

    def judge(self, config: Config | None = None, **variables: str) -> dict[str, SourceCandidate]:
        """The candidates here, by name."""
        options = name_options(config or load({}, {}).config)
        return {each.name: each for each in find_candidates(options, read_facts(options, variables, self.root))}

    def used(self, config: Config | None = None, **variables: str) -> list[str]:
        """The names of the used candidates."""
        return [name for name, each in self.judge(config, **variables).items() if each.used]

    def close(self) -> None:
        """Listen no more, and leave nothing behind."""
        for listener in self._open:
            listener.close()
        shutil.rmtree(self.root)


@contextmanager
def fake_root() -> Iterator[FakeRoot]:
    """A root for as long as it is needed."""
    made = FakeRoot(Path(tempfile.mkdtemp(prefix="og-", dir="/tmp")))
    try:
        yield made
    finally:
        made.close()
