"""Fixtures of the unit tests."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from otel_gpu.cli.logs import CLIENTS


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Logging that the test may set up at will, and that is as it was afterwards."""
    root = logging.getLogger()
    handlers, level, raises = list(root.handlers), root.level, logging.raiseExceptions
    levels = {name: logging.getLogger(name).level for name in CLIENTS}
    yield
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raises


@pytest.fixture
def clean_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of ours in the environment."""
    for name in os.environ:
        if name.startswith(("OTEL_", "HOST_PROC", "HOST_SYS")):
            monkeypatch.delenv(name)
