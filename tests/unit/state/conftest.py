"""A place for a state directory."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory that is not there yet."""
    return tmp_path / "state"
