from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.unit.export.collectors import GrpcCollector, HttpCollector, Pki

T = TypeVar("T", HttpCollector, GrpcCollector)


@pytest.fixture
def started() -> Iterator[Callable[[T], T]]:
    """Ends the stand-ins that a test starts."""
    running: list[HttpCollector | GrpcCollector] = []

    def keep(collector: T) -> T:
        running.append(collector)
        return collector

    yield keep
    for each in running:
        each.close()


@pytest.fixture
def collector() -> Iterator[HttpCollector]:
    made = HttpCollector()
    yield made
    made.close()


@pytest.fixture
def grpc_collector() -> Iterator[GrpcCollector]:
    made = GrpcCollector()
    yield made
    made.close()


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)
