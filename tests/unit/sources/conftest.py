"""Fixtures of the sources' tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.unit.sources.watched import Lines


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What was logged so far, from information on."""
    handler, logger = Lines(), logging.getLogger("otel_gpu")
    caplog.set_level(logging.INFO, logger="otel_gpu")
    logger.addHandler(handler)
    yield handler.messages
    logger.removeHandler(handler)
