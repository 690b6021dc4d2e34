"""Fixtures of the unit tests."""

from __future__ import annotations

import logging
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
