"""Fixtures that many tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.nvml_stage import Stage
from tests.nvml_stub.build import build

# `make test` has three minutes for everything; laws that need more examples say so themselves.
settings.register_profile("quick", max_examples=40, deadline=None)
settings.load_profile("quick")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Where CI says that every part is installed, a skipped test is a failed one."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]  # pluggy's result object
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("OTEL_GPU_TEST_NO_SKIP"):
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be skipped: {report.longrepr}"


@pytest.fixture(scope="session")
def stub_dir() -> Path:
    """A directory with the stub ``libnvidia-ml.so.1``."""
    return build()


@pytest.fixture
def stage(stub_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A stage on which a world is played through the real nvidia-ml-py in this process."""
    with Stage(stub_dir, tmp_path, monkeypatch) as ready:
        yield ready
