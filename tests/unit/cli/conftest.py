"""Fixtures of the tests of commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest


@pytest.fixture
def no_nvml(tmp_path: Path) -> Mapping[str, str]:
    """An environment in which NVML cannot be loaded, even on a machine that has it."""
    (tmp_path / "libnvidia-ml.so.1").touch()
    return {"LD_LIBRARY_PATH": str(tmp_path)}
