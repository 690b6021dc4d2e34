"""Wait for the results of a source's thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from otel_gpu.sources.base import NameRead, NameSource
from otel_gpu.sources.names.poller import NO_ANSWER_YET

PATIENCE_S = 20.0
S = TypeVar("S", bound=NameSource)


@contextmanager
def reading(source: S) -> Iterator[S]:
    """A source that is closed at the end."""
    try:
        yield source
    finally:
        source.close()


def until(source: NameSource, condition: Callable[[NameRead], bool]) -> NameRead:
    """Read without workloads until a condition holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (answer := source.read({})).reason == NO_ANSWER_YET or not condition(answer):
        assert time.monotonic() < deadline_s, answer
        time.sleep(0.01)
    return answer


def our_threads(name: str) -> int:
    """The number of a source's threads."""
    return sum(thread.name == f"otel-gpu-{name}" for thread in threading.enumerate())


def open_files() -> int:
    """The number of open descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def sockets_to(path: Path) -> int:
    """The number of sockets in the kernel for a path, including the listening one."""
    return sum(line.rstrip("\n").endswith(str(path)) for line in Path("/proc/net/unix").read_text().splitlines())
