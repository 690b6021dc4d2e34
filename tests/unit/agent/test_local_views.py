from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from otel_gpu.agent.host import Host, open_host
from otel_gpu.agent.local_views import LocalViews
from otel_gpu.clock import Clock, SystemClock
from otel_gpu.config import Config, load
from otel_gpu.errors import OtelGpuError, Unavailable, UsageError
from otel_gpu.model import SourceState
from otel_gpu.top.latest import LatestView
from tests.builders import FakeGpus, FakeProcesses, gpu_read

PATIENCE_S = 30.0


def config() -> Config:
    return load({"source": "sim", "interval": "1s", "price-kwh": "0.3"}, {}).config


@contextmanager
def running(opened: object = open_host) -> Iterator[LatestView]:
    latest = LatestView(SystemClock())
    views = LocalViews(config(), SystemClock(), latest, "node-1", opened)  # type: ignore[arg-type]
    views.start()
    try:
        yield latest
    finally:
        views.close()


def wait_for(latest: LatestView) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while latest.read().view is None and latest.failure is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_views_of_this_host_have_its_name_and_prices() -> None:
    with running() as latest:
        wait_for(latest)
        shown = latest.read().view
    assert shown is not None
    assert (shown.host, shown.interval_s) == ("node-1", 1.0)
    assert "cost" in [column.key for column in shown.columns]
    assert (shown.simulated or "").endswith("(requested with --source sim)")
    assert len(shown.gpus) == 4


@pytest.mark.parametrize("error", [UsageError("no such pod"), Unavailable("no driver")], ids=["usage", "driver"])
def test_a_host_that_cannot_be_opened_is_a_failure(error: OtelGpuError) -> None:
    def fail(_config: Config, _clock: Clock) -> Host:
        raise error

    with running(fail) as latest:
        wait_for(latest)
    assert latest.failure is error


def test_a_bug_is_reported_in_one_line() -> None:
    def fail(_config: Config, _clock: Clock) -> Host:
        raise RuntimeError("oops")

    with running(fail) as latest:
        wait_for(latest)
    assert str(latest.failure) == "internal error: RuntimeError: oops"


def test_a_driver_without_a_gpu_at_the_start_is_a_failure() -> None:
    blind = FakeGpus(gpu_read(state=SourceState.UNAVAILABLE, reason="NVML: no driver"))
    with running(lambda _config, _clock: Host(blind, FakeProcesses(), ())) as latest:
        wait_for(latest)
    assert str(latest.failure) == "NVML: no driver"


def test_an_upgraded_driver_requires_a_restart() -> None:
    outdated = threading.Event()
    outdated.set()

    def opened(settings: Config, clock: Clock) -> Host:
        return replace(open_host(settings, clock), outdated=outdated)

    with running(opened) as latest:
        wait_for(latest)
    assert "start it again" in str(latest.failure)
