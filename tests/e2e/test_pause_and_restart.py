"""Pause and resume of a running agent, and its restart after a driver upgrade."""

from __future__ import annotations

import secrets
import shutil
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.agent_process import AgentProcess, agent_process
from tests.cli import command as words_of
from tests.cli import otel_gpu
from tests.nvml_stub.build import LIBRARY
from tests.nvml_stub.world import StubClock, World
from tests.proc_tree import ProcTree

pytestmark = pytest.mark.long

S = 1_000_000


@pytest.fixture
def world_clock(tmp_path: Path) -> Iterator[StubClock]:
    with StubClock(tmp_path / "clock") as clock:
        yield clock


@pytest.fixture
def environment(tmp_path: Path, world_clock: StubClock) -> dict[str, str]:
    """The environment of an agent whose host and control socket are in the test directory."""
    proc = ProcTree(tmp_path / "proc")
    proc.write("sys/kernel/random/boot_id", "00000000-0000-4000-8000-000000000001\n")
    return {
        "NVML_STUB_CLOCK": str(world_clock.path),
        "HOST_PROC": str(proc.root),
        "HOST_SYS": str(tmp_path / "sys"),
        "OTEL_GPU_ENVIRONMENT": "host",
        "OTEL_GPU_CONTROL_SOCKET": "auto",
        "RUNTIME_DIRECTORY": str(tmp_path / "run"),
        "OTEL_METRICS_EXPORTER": "prometheus",
        "OTEL_GPU_INTERVAL": "1s",
    }


def run_agent(directory: Path, environment: dict[str, str]) -> AbstractContextManager[AgentProcess]:
    """Run an agent at a free port."""
    return agent_process("run", "--listen", "127.0.0.1:0", directory=directory, environment=environment)


def one_gpu() -> World:
    world = World()
    world.gpu().typical()
    return world


def metrics(agent: AgentProcess) -> dict[str, float]:
    """The value of each series in /metrics."""
    lines = agent.get("/metrics").body.splitlines()
    return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def states(agent: AgentProcess, metric: str) -> set[str]:
    """The states of NVML and its GPU that are 1 in a state metric."""
    return {
        series.partition('state="')[2].partition('"')[0]
        for series, value in metrics(agent).items()
        if series.startswith(f"{metric}{{") and value == 1 and ("hw_id" in series or 'source="nvml"' in series)
    }


def energy_j(agent: AgentProcess) -> float | None:
    """The energy counter of the GPU."""
    return next(
        (value for series, value in metrics(agent).items() if series.startswith("hw_energy_joules_total")), None
    )


def test_a_paused_agent_releases_the_driver_until_resumed(
    stub_dir: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    calls = tmp_path / "calls"
    stub = {
        **one_gpu().environment(stub_dir, tmp_path),
        "NVML_STUB_CALLS": str(calls),
    }
    with run_agent(tmp_path, environment | stub) as agent:
        agent.until(lambda: agent.get("/readyz").status == 200)
        assert not calls.exists()  # written at NVML shutdown

        paused = otel_gpu("pause", "--for", "10m", environment=environment)
        assert (paused.returncode, paused.stderr) == (0, "")
        assert paused.stdout.startswith("paused since ")
        assert ", or otel-gpu resume" in paused.stdout
        counted = dict(line.split() for line in calls.read_text().splitlines())
        assert counted["nvmlShutdown"] == "1"

        agent.until(lambda: agent.get("/readyz").status == 503)
        assert "nvml: paused at " in agent.get("/readyz").body
        assert agent.get("/healthz").status == 200
        assert states(agent, "otel_gpu_source_state") == {"paused"}
        assert states(agent, "hw_status") == {"paused"}
        assert not [series for series in metrics(agent) if series.startswith(("hw_power", "hw_gpu_memory"))]
        again = otel_gpu("pause", environment=environment)
        assert again.stdout.startswith(paused.stdout[: len("paused since 2026-01-01T00:00:00Z")])
        assert "until otel-gpu resume" in again.stdout

        resumed = otel_gpu("resume", environment=environment)
        assert (resumed.returncode, resumed.stderr) == (0, "")
        assert resumed.stdout.startswith("resumed; was paused since ")
        agent.until(lambda: agent.get("/readyz").status == 200)
        assert states(agent, "hw_status") == {"ok"}
        assert otel_gpu("resume", environment=environment).stdout == "was not paused\n"

        otel_gpu("pause", environment=environment)
        code, took_s = agent.end()
        assert code == 0
        assert took_s < 5
        assert agent.stderr.count("nvml is paused at") == 2
    assert not (tmp_path / "run/control.sock").exists()


@pytest.mark.parametrize("source", ["nvml", "auto"])
def test_a_pause_persists_when_the_agent_is_killed(
    stub_dir: Path, tmp_path: Path, environment: dict[str, str], source: str
) -> None:
    calls = tmp_path / "calls"
    stub = one_gpu().environment(stub_dir, tmp_path)
    flags = ("run", "--source", source, "--listen", "127.0.0.1:0", "--state-dir", str(tmp_path / "state"))
    with agent_process(*flags, directory=tmp_path, environment=environment | stub) as agent:
        agent.until(lambda: agent.get("/readyz").status == 200)
        paused = otel_gpu("pause", "--for", "1h", environment=environment).stdout
        agent.end(signal.SIGKILL)
    pause_file = tmp_path / "run/paused"
    assert pause_file.stat().st_mode & 0o777 == 0o600
    stub["NVML_STUB_CALLS"] = str(calls)
    with agent_process(*flags, directory=tmp_path, environment=environment | stub) as agent:
        agent.until(lambda: "nvml: paused at " in agent.get("/readyz").body)
        assert states(agent, "otel_gpu_source_state") == states(agent, "hw_status") == {"paused"}
        assert agent.stderr.count("nvml is paused at") == 1
        since = paused[: len("paused since 2026-01-01T00:00:00Z")]
        assert otel_gpu("pause", "--for", "1h", environment=environment).stdout.startswith(since)
        assert not calls.exists()  # NVML was not initialised: the file is written at its shutdown
        otel_gpu("resume", environment=environment)
        assert not pause_file.exists()
        agent.until(lambda: agent.get("/readyz").status == 200)
        assert agent.end()[0] == 0
    assert calls.exists()


def test_a_driver_call_that_hangs_delays_the_pause(
    stub_dir: Path, tmp_path: Path, environment: dict[str, str], world_clock: StubClock
) -> None:
    world = one_gpu()
    world.hang(function="nvmlShutdown", until_us=60 * S)
    stub = world.environment(stub_dir, tmp_path)
    with run_agent(tmp_path, environment | stub) as agent:
        agent.until(lambda: agent.get("/readyz").status == 200)
        rejected = otel_gpu("pause", environment=environment)
        assert (rejected.returncode, rejected.stdout) == (1, "")
        assert rejected.stderr.startswith("otel-gpu: not paused yet: the agent still holds the driver because ")
        assert rejected.stderr.count("\n") == 1
        agent.until(lambda: states(agent, "otel_gpu_source_state") == {"unavailable"})
        assert states(agent, "hw_status") == {"failed"}
        assert "the driver is not released yet" in agent.get("/readyz").body
        assert agent.get("/healthz").status == 200
        world_clock.set_us(61 * S)
        agent.until(lambda: states(agent, "otel_gpu_source_state") == {"paused"})
        assert states(agent, "hw_status") == {"paused"}
        assert otel_gpu("pause", environment=environment).stdout.startswith("paused since ")


def test_a_gpu_that_is_lost_during_a_restart_is_reported_as_failed(
    stub_dir: Path, tmp_path: Path, environment: dict[str, str], world_clock: StubClock
) -> None:
    world = World()
    healthy, lost = world.gpu(), world.gpu()
    for gpu in (healthy, lost):
        gpu.typical()
        gpu.energy_steps(0, 60 * S, 300, step_us=S)
    world.error(15, on=lost, from_us=10 * S)
    stub = {
        **world.environment(stub_dir, tmp_path),
        "OTEL_GPU_STATE_DIR": str(tmp_path / "state"),
    }
    for code in (signal.SIGTERM, signal.SIGKILL):
        with run_agent(tmp_path, environment | stub) as agent:
            agent.until(lambda: agent.get("/readyz").status == 200)
            if code is signal.SIGTERM:
                assert states(agent, "hw_status") == {"ok"}
                world_clock.set_us(20 * S)  # from the next cycle on it is lost
            else:
                assert states(agent, "hw_status") == {"ok", "failed"}
                assert agent.stderr.count("is failed: GPU is lost") == 1
            agent.end(code)


def test_without_a_driver_after_a_restart_gpus_are_failed_and_counters_continue_later(
    stub_dir: Path, tmp_path: Path, environment: dict[str, str], world_clock: StubClock
) -> None:
    world = World()
    gpu = world.gpu()
    gpu.typical()
    gpu.energy_steps(0, 60 * S, 300, step_us=S)
    world.error(9, from_us=10 * S, until_us=30 * S)
    stub = {
        **world.environment(stub_dir, tmp_path),
        "OTEL_GPU_STATE_DIR": str(tmp_path / "state"),
    }
    start = partial(run_agent, tmp_path, environment | stub)
    with start() as agent:
        agent.until(lambda: agent.get("/readyz").status == 200)
        world_clock.set_us(5 * S)
        agent.until(lambda: bool(energy_j(agent)))
        before_j = energy_j(agent)
        agent.end(signal.SIGKILL)
    world_clock.set_us(20 * S)
    with start() as agent:
        agent.until(lambda: "not loaded" in agent.get("/readyz").body)
        assert states(agent, "hw_status") == {"failed"}
        assert states(agent, "otel_gpu_source_state") == {"unavailable"}
        assert not [series for series in metrics(agent) if "_total" in series and not series.startswith("otel_gpu_")]
        world_clock.set_us(35 * S)
        agent.until(lambda: states(agent, "hw_status") == {"ok"})
        assert (energy_j(agent) or 0) > (before_j or 0) > 0
        assert "counters continue from" in agent.stderr


def test_sighup_stops_the_agent_unless_it_is_ignored(tmp_path: Path) -> None:
    flags = ("run", "--source", "sim", "--listen", "127.0.0.1:0", "--exporters", "none")
    state = tmp_path / "state"
    with agent_process(*flags, "--state-dir", str(state), directory=tmp_path) as agent:
        agent.until(lambda: agent.get("/readyz").status == 200)
        code, took_s = agent.end(signal.SIGHUP)
    assert code == 0
    assert took_s < 5
    assert sorted(path.name for path in state.iterdir()) == ["lock", "state"]  # saved at shutdown
    nohup = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh", *words_of(*flags))
    with agent_process(directory=tmp_path, words=nohup) as agent:
        agent.until(lambda: agent.get("/readyz").status == 200)
        agent.process.send_signal(signal.SIGHUP)
        before = agent.get("/api/attribution").body
        agent.until(lambda: agent.get("/api/attribution").body != before)  # it continues
        assert agent.end()[0] == 0


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_without_an_agent_pause_and_resume_fail_with_one_line(command: str, environment: dict[str, str]) -> None:
    result = otel_gpu(
        command, environment={**environment, "OTEL_GPU_INTERVAL": "wrong"}
    )  # a setting that these commands do not use
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert "no running agent was found" in result.stderr


def test_a_driver_upgrade_restarts_the_agent_once_at_the_same_address(
    stub_dir: Path, tmp_path: Path, environment: dict[str, str], world_clock: StubClock
) -> None:
    world = World()
    gpu = world.gpu()
    gpu.typical()
    gpu.energy_steps(0, 60 * S, 300, step_us=S)
    world.error(18, from_us=10 * S, until_us=20 * S)
    libraries = tmp_path / "lib"
    libraries.mkdir()
    shutil.copy(stub_dir / LIBRARY, libraries)
    stub = {
        **world.environment(libraries, tmp_path),
        "OTEL_GPU_STATE_DIR": str(tmp_path / "state"),
    }
    # An address that no other test uses, because the port must be free after the restart.
    address = f"127.{'.'.join(str(1 + byte % 254) for byte in secrets.token_bytes(3))}:19464"
    with agent_process("run", "--listen", address, directory=tmp_path, environment=environment | stub) as agent:
        agent.until(lambda: agent.get("/readyz").status == 200)
        world_clock.set_us(5 * S)
        agent.until(lambda: energy_j(agent) == 1500)
        shutil.copy(stub_dir / LIBRARY, libraries / "new")
        (libraries / "new").replace(libraries / LIBRARY)
        world_clock.set_us(12 * S)
        # The new process finds a version mismatch as well, but its library is the one on disk, so it does not restart.
        agent.until(lambda: agent.stderr.count(f"is running:\n  http://{address}/") == 2)
        agent.until(lambda: agent.stderr.count("nvml is unavailable") == 2)
        world_clock.set_us(25 * S)
        agent.until(lambda: agent.get("/readyz").status == 200)
        agent.until(lambda: energy_j(agent) == 7500)  # including the energy during the restart
        assert agent.stderr.count("restarting to load its new library") == 1
        assert agent.process.poll() is None  # the same pid
        assert agent.end()[0] == 0
