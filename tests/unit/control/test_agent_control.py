"""The agent and its control socket, in this process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_gpu.agent import Agent
from otel_gpu.clock import ManualClock
from otel_gpu.config import load
from otel_gpu.control.client import ask
from otel_gpu.control.protocol import RESUME, pause_request, paused_text, resumed_text
from otel_gpu.errors import Unavailable
from otel_gpu.host import Host
from otel_gpu.metrics.labels import Resources
from otel_gpu.sources.pausing import PausableGpus
from tests.builders import FakeGpus, FakeProcesses, gpu, gpu_read
from tests.web import ask as get

PATIENCE_S = 30.0


class Running:
    """An agent at work on one GPU, which can be told to pause at ``control``."""

    def __init__(self, control: Path) -> None:
        self.clock = ManualClock()
        self.source = FakeGpus(gpu_read(gpu()))
        gpus = PausableGpus(self.source, self.clock)
        self.host = Host(gpus, FakeProcesses(), (), pausing=gpus)
        flags = {"interval": "1h", "listen": "127.0.0.1:0", "exporters": "none", "control-socket": str(control)}
        resources = Resources({"host.name": "here"}, {"service.name": "otel-gpu"})
        self.agent = Agent(load(flags, {}).config, self.host, resources, self.clock, control=control)
        self.begun, self.stop = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.agent.run, args=(self.stop, lambda _: self.begun.set()), daemon=True)

    def ready(self) -> int:
        """What /readyz says, after a sample of now."""
        self.clock.advance(5)
        get(self.agent.web.address, "/api/attribution")
        return get(self.agent.web.address, "/readyz").status


@contextmanager
def running(control: Path) -> Iterator[Running]:
    agent = Running(control)
    agent.thread.start()
    try:
        assert agent.begun.wait(PATIENCE_S)
        yield agent
    finally:
        agent.stop.set()
        agent.thread.join(PATIENCE_S)
        assert not agent.thread.is_alive()


def test_an_agent_that_is_paused_is_alive_and_not_ready(tmp_path: Path) -> None:
    control = tmp_path / "run/c.sock"
    with running(control) as agent:
        assert agent.ready() == 200
        answer = ask([control], pause_request(600))
        assert paused_text(answer) == (
            "paused since 2023-11-14T22:13:25Z, until 2023-11-14T22:23:25Z, or otel-gpu resume"
        )
        assert agent.source.closed
        assert agent.ready() == 503
        assert get(agent.agent.web.address, "/healthz").status == 200
        assert resumed_text(ask([control], RESUME)) == "resumed; was paused since 2023-11-14T22:13:25Z"
        assert agent.ready() == 200
        assert resumed_text(ask([control], RESUME)) == "was not paused"
    assert not control.exists()


def test_an_agent_that_starts_while_its_predecessor_was_paused_is_paused_until_it_is_resumed(tmp_path: Path) -> None:
    control = tmp_path / "run/c.sock"
    with running(control):
        ask([control], pause_request(None))
    with running(control) as agent:
        assert agent.ready() == 503
        assert agent.source.reads == 0
        assert resumed_text(ask([control], RESUME)) == "resumed; was paused since 2023-11-14T22:13:20Z"
        assert agent.ready() == 200
    with running(control) as agent:
        assert agent.ready() == 200
    assert list((tmp_path / "run").iterdir()) == []


def test_an_agent_that_nobody_can_resume_does_not_go_on_with_the_pause_of_another(tmp_path: Path) -> None:
    control = tmp_path / "run/c.sock"
    with running(control) as first:
        ask([control], pause_request(None))
        with running(control) as second:
            assert second.ready() == 200
        assert first.ready() == 503


@pytest.mark.parametrize("for_s", [0, -1, "10m", True, 1e9, [1]])
def test_a_time_that_is_none_is_refused_and_pauses_nothing(tmp_path: Path, for_s: object) -> None:
    control = tmp_path / "run/c.sock"
    with running(control) as agent:
        with pytest.raises(Unavailable, match="for_s is a number of seconds"):
            ask([control], {"command": "pause", "for_s": for_s})
        assert agent.ready() == 200


def test_an_agent_that_cannot_listen_says_so_in_one_line_and_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path / "no/such/place/c.sock") as agent:
        assert agent.ready() == 200
    (line,) = [record for record in caplog.records if "pause" in record.getMessage()]
    assert line.levelno == logging.WARNING
    assert "No such file or directory" in line.getMessage()


def test_an_agent_whose_library_is_old_ends_in_order_without_being_told_to(tmp_path: Path) -> None:
    with running(tmp_path / "run/c.sock") as agent:
        agent.host.outdated.set()
        agent.thread.join(PATIENCE_S)
        assert not agent.thread.is_alive()
        assert not agent.stop.is_set()
        assert agent.source.closed


@pytest.mark.parametrize("since", [None, "x", True, float("nan"), 1e300, -1])
def test_an_answer_that_cannot_be_understood_is_told_without_a_time(since: object) -> None:
    assert paused_text({"since": since}) == "paused"
    assert resumed_text({"since": since}) == "was not paused"
