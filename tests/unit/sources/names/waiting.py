"""Waiting for what a thread finds out."""

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
    """A source that is closed in the end."""
    try:
        yield source
    finally:
        source.close()


def until(source: NameSource, condition: Callable[[NameRead], bool]) -> NameRead:
    """Read, without anybody on a GPU, until the answer is like that."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (answer := source.read({})).reason == NO_ANSWER_YET or not condition(answer):
        assert time.monotonic() < deadline_s, answer
        time.sleep(0.01)
    return answer


def soon(condition: Callable[[], bool]) -> None:
    """Wait until it is so."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def our_threads(name: str) -> int:
    """How many threads of a source there are."""
    return sum(thread.name == f"otel-gpu-{name}" for thread in threading.enumerate())


def open_files() -> int:
    """How many descriptors this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def sockets_to(path: Path) -> int:
    """How many sockets the kernel has for a path, the listening one among them."""
    return sum(line.rstrip("\n").endswith(str(path)) for line in Path("/proc/net/unix").read_text().splitlines())
