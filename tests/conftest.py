"""Fixtures of many tests."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.nvml_stage import Stage
from tests.nvml_stub.build import build
from tests.state_dirs import end_threads

# `make test` has three minutes for everything; laws that need more examples say so themselves.
settings.register_profile("quick", max_examples=40, deadline=None)
settings.load_profile("quick")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import different modules first in each worker: pytest rewrites a module once and caches it for other workers.

    In a fresh clone this is most of the cost of collection, and all workers collect the same modules at the same time.
    """
    worker = getattr(session.config, "workerinput", None)  # of pytest-xdist; None where there is one process
    if worker is None or not all(Path(each).is_dir() for each in session.config.args):
        return
    root = session.config.rootpath
    left_out = [root / each for each in session.config.getoption("ignore") or ()]
    modules = [
        path
        for each in session.config.args
        for path in Path(each).resolve().rglob("test_*.py")
        if not any(path.is_relative_to(out) for out in left_out)
    ]
    first, step = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for path in sorted(modules, key=lambda path: path.stat().st_size)[first::step]:
        # Collection imports them again, and reports the error.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Freeze collected tests: the garbage collector need not traverse thousands of them again and again."""
    gc.freeze()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Where CI declares that every part is installed, a skipped test fails."""
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


@pytest.fixture(autouse=True)
def no_threads_of_state() -> Iterator[None]:
    """End the threads of agents with a state directory that a test does not close, because they count as killed."""
    yield
    end_threads()
