"""An engine's API, and sources that use it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.clock import SystemClock
from otel_gpu.model import SourceState
from otel_gpu.sources.base import NameRead
from otel_gpu.sources.names.docker import DockerSource
from tests.docker_api import DockerApi, serving_docker

MakeSource = Callable[..., DockerSource]


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """A short path for a unix socket."""
    with tempfile.TemporaryDirectory(prefix="og-") as directory:
        yield Path(directory) / "docker.sock"


@pytest.fixture
def api(socket_path: Path) -> Iterator[DockerApi]:
    """An engine's API on a unix socket."""
    with serving_docker(DockerApi(), socket_path) as served:
        yield served


@pytest.fixture
def make_source() -> Iterator[MakeSource]:
    """Creates sources for an address, and closes them."""
    with ExitStack() as made:

        def make(base_url: str, **options: Any) -> DockerSource:
            source = DockerSource(options.pop("name", "docker"), base_url, **{"clock": SystemClock(), **options})
            made.callback(source.close)
            return source

        yield make


def first_read(source: DockerSource) -> NameRead:
    """The first answer of a source."""
    assert source.wait(20)
    return source.read({})


def unavailable(source: DockerSource) -> str:
    """The reason why a source has no names at all."""
    read = first_read(source)
    assert read.state is SourceState.UNAVAILABLE
    assert read.errors >= 1
    assert read.reason is not None
    assert "\n" not in read.reason
    return read.reason


def names(source: DockerSource) -> set[str | None]:
    """The names of the containers that a source knows."""
    return {known.names.container for known in source.read({}).known.values()}
