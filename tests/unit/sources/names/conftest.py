"""Fixtures of the tests over sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubelet_servers import Kubelet, Runtime, socket_directory


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory for sockets."""
    with socket_directory() as path:
        yield path


@pytest.fixture
def runtime(directory: Path) -> Iterator[Runtime]:
    """A running container runtime without containers."""
    server = Runtime(directory / "cri.sock")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def kubelet(directory: Path) -> Iterator[Kubelet]:
    """A running kubelet without pods."""
    server = Kubelet(directory / "kubelet.sock")
    server.start()
    yield server
    server.stop()
