"""A fake ``/proc`` for each test, and a source that reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.sources.proc.source import ProcfsSource
from tests.proc_tree import ProcTree


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path / "proc")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def source(tree: ProcTree, clock: ManualClock) -> ProcfsSource:
    return ProcfsSource(tree.root, clock, own_proc=tree.root, ticks_per_second=100)
