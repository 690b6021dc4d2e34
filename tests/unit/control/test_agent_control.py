"""An agent with its control socket, in this process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_gpu.agent.agent import Agent
from otel_gpu.agent.host import Host
from otel_gpu.clock import ManualClock
from otel_gpu.config import load
from otel_gpu.control.protocol import RESUME, describe_pause, describe_resume, pause_request, request
from otel_gpu.errors import Unavailable
from otel_gpu.metrics.labels import Resources
from otel_gpu.sources.pause import PausableGpus
from tests.builders import FakeGpus, FakeProcesses, gpu, gpu_read
from tests.web import ask as get

PATIENCE_S = 30.0


class Running:
    """An agent with one GPU and a control socket at ``control``."""

    def __init__(self, control: Path) -> None:
        self.clock = ManualClock()
        self.source = FakeGpus(gpu_read(gpu()))
        gpus = PausableGpus(self.source, self.clock)
        self.host = Host(gpus, FakeProcesses(), (), pausable=gpus)
        flags = {"interval": "1h", "listen": "127.0.0.1:0", "exporters": "none", "control-socket": str(control)}
        resources = Resources({"host.name": "here"}, {"service.name": "otel-gpu"})
        self.agent = Agent(load(flags, {}).config, self.host, resources, self.clock, control=control)
        self.started, self.stop = threading.Event(), threading.Event()
        self.thread = threading.Thread(
            target=self.agent.run, args=(self.stop, lambda _: self.started.set()), daemon=True
        )

    def readiness(self) -> int:
        """The status of /readyz after a new sample."""
        self.clock.advance(5)
        get(self.agent.web.address, "/api/attribution")
        return get(self.agent.web.address, "/readyz").status


@contextmanager
def running(control: Path) -> Iterator[Running]:
    agent = Running(control)
    agent.thread.start()
    try:
        assert agent.started.wait(PATIENCE_S)
        yield agent
    finally:
        agent.stop.set()
        agent.thread.join(PATIENCE_S)
        assert not agent.thread.is_alive()


def test_a_paused_agent_is_healthy_and_not_ready(tmp_path: Path) -> None:
    control = tmp_path / "run/c.sock"
    with running(control) as agent:
        assert agent.readiness() == 200
        response = request([control], pause_request(600))
        assert describe_pause(response) == (
            "paused since 2023-11-14T22:13:25Z, until 2023-11-14T22:23:25Z, or otel-gpu resume"
        )
        assert agent.source.closed
        assert agent.readiness() == 503
        assert get(agent.agent.web.address, "/healthz").status == 200
        assert describe_resume(request([control], RESUME)) == "resumed; was paused since 2023-11-14T22:13:25Z"
        assert agent.readiness() == 200
        assert describe_resume(request([control], RESUME)) == "was not paused"
    assert not control.exists()


def test_a_pause_persists_over_a_restart_until_resumed(tmp_path: Path) -> None:
    control = tmp_path / "run/c.sock"
    with running(control):
        request([control], pause_request(None))
    with running(control) as agent:
        assert agent.readiness() == 503
        assert agent.source.reads == 0
        assert describe_resume(request([control], RESUME)) == "resumed; was paused since 2023-11-14T22:13:20Z"
        assert agent.readiness() == 200
    with running(control) as agent:
        assert agent.readiness() == 200
    assert list((tmp_path / "run").iterdir()) == []


def test_an_agent_without_a_control_socket_does_not_take_over_a_pause(tmp_path: Path) -> None:
    control = tmp_path / "run/c.sock"
    with running(control) as first:
        request([control], pause_request(None))
        with running(control) as second:
            assert second.readiness() == 200
        assert first.readiness() == 503


@pytest.mark.parametrize("for_s", [0, -1, "10m", True, 1e9, [1]])
def test_an_invalid_duration_is_rejected_and_does_not_pause(tmp_path: Path, for_s: object) -> None:
    control = tmp_path / "run/c.sock"
    with running(control) as agent:
        with pytest.raises(Unavailable, match="for_s must be a number of seconds"):
            request([control], {"command": "pause", "for_s": for_s})
        assert agent.readiness() == 200


def test_an_agent_that_cannot_listen_logs_one_warning_and_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path / "no/such/place/c.sock") as agent:
        assert agent.readiness() == 200
    (line,) = [record for record in caplog.records if "pause" in record.getMessage()]
    assert line.levelno == logging.WARNING
    assert "No such file or directory" in line.getMessage()


def test_an_agent_with_an_outdated_library_stops_by_itself(tmp_path: Path) -> None:
    with running(tmp_path / "run/c.sock") as agent:
        agent.host.outdated.set()
        agent.thread.join(PATIENCE_S)
        assert not agent.thread.is_alive()
        assert not agent.stop.is_set()
        assert agent.source.closed


@pytest.mark.parametrize("since", [None, "x", True, float("nan"), 1e300, -1])
def test_a_response_with_an_invalid_time_is_described_without_it(since: object) -> None:
    assert describe_pause({"since": since}) == "paused"
    assert describe_resume({"since": since}) == "was not paused"
