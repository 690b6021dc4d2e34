"""Counters and state across a kill, a clean stop and a restart of the agent."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.agent_process import AgentProcess, simulated_agent
from tests.unit.export.collectors import BlackHole, unused_url

pytestmark = pytest.mark.long


def energy_j(agent: AgentProcess) -> float:
    """The exported energy of all GPUs."""
    body = agent.get("/metrics").body
    return sum(float(value) for value in re.findall(r"^hw_energy_joules_total\{.*\} (\S+)$", body, re.MULTILINE))


def test_counters_continue_after_kill_9_and_a_clean_stop_leaves_one_file(tmp_path: Path) -> None:
    state = tmp_path / "state"
    flags = ("--exporters", "prometheus", "--state-dir", str(state))
    with simulated_agent(*flags, directory=tmp_path) as agent:
        agent.until(lambda: energy_j(agent) > 0)
        before_j = energy_j(agent)
        agent.end(signal.SIGKILL)
    assert sorted(path.name for path in state.iterdir()) == ["journal-000001", "lock"]
    assert state.stat().st_mode & 0o777 == 0o700
    with simulated_agent(*flags, directory=tmp_path) as agent:
        agent.until(lambda: energy_j(agent) > 0)
        assert energy_j(agent) >= before_j
        assert "counters continue from" in agent.stderr
        assert re.search(
            r'^otel_gpu_source_state\{.*otel_gpu_source="state",otel_gpu_state="ok".*\} 1$',
            agent.get("/metrics").body,
            re.M,
        )
        code, took_s = agent.end()
    assert code == 0
    assert took_s < 5
    assert sorted(path.name for path in state.iterdir()) == ["lock", "state"]


@pytest.mark.parametrize("receiver", ["absent", "silent"])
def test_without_a_collector_sigterm_saves_the_state_and_ends_within_5_s(tmp_path: Path, receiver: str) -> None:
    state, silent = tmp_path / "state", BlackHole()
    url = silent.url if receiver == "silent" else unused_url()
    flags = ("--exporters", "otlp,prometheus", "--otlp-endpoint", url, "--state-dir", str(state))
    try:
        with simulated_agent(*flags, directory=tmp_path) as agent:
            agent.until(lambda: energy_j(agent) > 0)
            code, took_s = agent.end()
    finally:
        silent.close()
    assert code == 0
    assert took_s < 5
    assert sorted(path.name for path in state.iterdir()) == ["lock", "state"]
