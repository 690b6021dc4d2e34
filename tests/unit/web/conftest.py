"""Fixtures of the web tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.web.pki import Pki


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)
