"""Progress of commands on a slow driver: within two seconds they report what they are doing."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

import pytest

from tests.agent_process import agent_process
from tests.cli import otel_gpu
from tests.nvml_stub.world import World
from tests.proc_tree import ProcTree

pytestmark = pytest.mark.long

INIT_MS: Final = 3000
FLAGS: Final = ("--environment", "host", "--deadline", "30s")
AUTO: Final = ("--source", "auto")


@pytest.fixture
def environment(stub_dir: Path, tmp_path: Path) -> dict[str, str]:
    """A host whose driver takes three seconds to initialise."""
    world = World()
    world.gpu("GPU-one", name="NVIDIA L4").typical()
    world.latency(INIT_MS, function="nvmlInit*")
    proc = ProcTree(tmp_path / "proc")
    proc.set_own_pids()
    return {**world.environment(stub_dir, tmp_path), "HOST_PROC": str(proc.root)}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("once",), "reading GPUs and processes … 2 s"),
        (("once", *AUTO), "opening the driver … 2 s"),
        (("doctor",), "examining this host … 2 s"),
        (("once", "--log-format", "json"), '"msg": "reading GPUs and processes'),
    ],
    ids=["once", "once auto", "doctor", "once json"],
)
def test_a_slow_command_reports_progress(words: tuple[str, ...], said: str, environment: dict[str, str]) -> None:
    result = otel_gpu(*words, *FLAGS, environment=environment, progress=True)
    assert said in result.stderr
    assert len(result.stderr.splitlines()) < 10
    assert "L4" in result.stdout or words[0] == "doctor"


def test_an_agent_reports_that_it_waits_for_the_driver(environment: dict[str, str], tmp_path: Path) -> None:
    flags = ("run", *AUTO, *FLAGS, "--exporters", "none", "--listen", "127.0.0.1:0")
    with agent_process(*flags, directory=tmp_path, environment=environment) as agent:
        agent.until(lambda: "opening the driver … 2 s" in agent.whole_stderr)
        agent.until(lambda: "is running" in agent.whole_stderr)
        assert agent.end(signal.SIGTERM)[0] == 0


def test_a_quick_command_reports_no_progress() -> None:
    result = otel_gpu("once", "--source", "sim", progress=True)
    assert "…" not in result.stderr
