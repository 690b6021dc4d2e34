"""An agent with its control socket, in this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_gpu.control.protocol import RESUME, describe_pause, describe_resume, pause_request, request
from otel_gpu.errors import Unavailable
from tests.builders import FakeGpus, gpu, gpu_read
from tests.unit.agent.harness import PATIENCE_S, Running, after_the_first_sample


@contextmanager
def agent_at(control: Path) -> Iterator[Running]:
    """An agent with one GPU and a control socket at ``control``."""
    with after_the_first_sample(FakeGpus(gpu_read(gpu())), control=control) as agent:
        yield agent


def test_a_paused_agent_is_healthy_and_not_ready(tmp_path: Path) -> None:
    control = tmp_path / "run/c.sock"
    with agent_at(control) as agent:
        assert agent.readiness() == 200
        response = request([control], pause_request(600))
        assert describe_pause(response) == (
            "paused since 2023-11-14T22:13:25Z, until 2023-11-14T22:23:25Z, or otel-gpu resume"
        )
        assert agent.gpus.closed
        assert agent.readiness() == 503
        assert agent.get("/healthz").status == 200
        assert describe_resume(request([control], RESUME)) == "resumed; was paused since 2023-11-14T22:13:25Z"
        assert agent.readiness() == 200
        assert describe_resume(request([control], RESUME)) == "was not paused"
    assert not control.exists()


def test_a_pause_persists_over_a_restart_until_resumed(tmp_path: Path) -> None:
    control = tmp_path / "run/c.sock"
    with agent_at(control):
        request([control], pause_request(None))
    with agent_at(control) as agent:
        assert agent.readiness() == 503
        assert agent.gpus.reads == 0
        assert describe_resume(request([control], RESUME)) == "resumed; was paused since 2023-11-14T22:13:20Z"
        assert agent.readiness() == 200
    with agent_at(control) as agent:
        assert agent.readiness() == 200
    assert list((tmp_path / "run").iterdir()) == []


def test_an_agent_without_a_control_socket_does_not_take_over_a_pause(tmp_path: Path) -> None:
    control = tmp_path / "run/c.sock"
    with agent_at(control) as first:
        request([control], pause_request(None))
        with agent_at(control) as second:
            assert second.readiness() == 200
        assert first.readiness() == 503


@pytest.mark.parametrize("for_s", [0, -1, "10m", True, 1e9, [1]])
def test_an_invalid_duration_is_rejected_and_does_not_pause(tmp_path: Path, for_s: object) -> None:
    control = tmp_path / "run/c.sock"
    with agent_at(control) as agent:
        with pytest.raises(Unavailable, match="for_s must be a number of seconds"):
            request([control], {"command": "pause", "for_s": for_s})
        assert agent.readiness() == 200


def test_an_agent_that_cannot_listen_logs_one_warning_and_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with agent_at(tmp_path / "no/such/place/c.sock") as agent:
        assert agent.readiness() == 200
    (line,) = [record for record in caplog.records if "pause" in record.getMessage()]
    assert line.levelno == logging.WARNING
    assert "No such file or directory" in line.getMessage()


def test_an_agent_with_an_outdated_library_stops_by_itself(tmp_path: Path) -> None:
    with agent_at(tmp_path / "run/c.sock") as agent:
        agent.host.outdated.set()
        agent.thread.join(PATIENCE_S)
        assert not agent.thread.is_alive()
        assert not agent.stop.is_set()
        assert agent.gpus.closed


@pytest.mark.parametrize("since", [None, "x", True, float("nan"), 1e300, -1])
def test_a_response_with_an_invalid_time_is_described_without_it(since: object) -> None:
    assert describe_pause({"since": since}) == "paused"
    assert describe_resume({"since": since}) == "was not paused"
