"""State across runs on a host: a disk that hangs, and a run without a state directory."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.agent_process import AgentProcess, agent_process
from tests.nvml_stub.world import World
from tests.proc_tree import ProcTree

pytestmark = pytest.mark.long

RESUMED = "counters continue from"
NOT_RESUMED = "is not used, counters start at 0: figures were exported since that are in no journal"

HANGING = """
import sys, threading
from pathlib import Path
from otel_gpu.cli import main
from otel_gpu.state import store

write, disk_hangs = store.write_all, Path(sys.argv.pop(1))

def hang(descriptor, content):
    if disk_hangs.exists():
        threading.Event().wait()
    write(descriptor, content)

store.write_all = hang
sys.exit(main())
"""
"""``otel-gpu`` on a disk that hangs as soon as a file exists."""


def cycles(agent: AgentProcess) -> float:
    """The number of cycles without the disk, each of which is an error of the source."""
    series = r'^otel_gpu_source_errors_total\{.*otel_gpu_source="state".*\} (\S+)$'
    (found,) = re.findall(series, agent.get("/metrics").body, re.MULTILINE)
    return float(found)


def test_a_disk_that_hangs_delays_neither_the_cycles_nor_the_end(tmp_path: Path) -> None:
    hangs = tmp_path / "hangs"
    flags = ("run", "--source", "sim", "--interval", "1s", "--exporters", "prometheus", "--listen", "127.0.0.1:0")
    words = [sys.executable, "-c", HANGING, str(hangs), *flags, "--state-dir", str(tmp_path / "state")]
    with agent_process(directory=tmp_path, words=words) as agent:
        agent.until(lambda: agent.get("/readyz").status == 200)
        hangs.touch()
        agent.until(lambda: "the disk does not respond" in agent.stderr)
        before = cycles(agent)
        agent.until(lambda: cycles(agent) >= before + 3)
        assert agent.get("/healthz").status == 200
        code, took_s = agent.end()
        assert agent.stderr.count("state is unavailable") == 1
    assert (code, took_s < 5) == (0, True)


def test_state_is_not_resumed_after_a_run_without_a_state_directory(stub_dir: Path, tmp_path: Path) -> None:
    world = World()
    world.gpu().typical()
    environment = {
        "HOST_PROC": str(ProcTree(tmp_path / "proc").root),
        "HOST_SYS": str(tmp_path / "sys"),
        **world.environment(stub_dir, tmp_path),
        "OTEL_GPU_ENVIRONMENT": "host",
        "RUNTIME_DIRECTORY": str(tmp_path / "run"),
        "OTEL_METRICS_EXPORTER": "prometheus",
        "OTEL_GPU_INTERVAL": "1s",
    }
    flags = "run", "--listen", "127.0.0.1:0", "--state-dir"
    logged = []
    for state in (str(tmp_path / "state"), str(tmp_path / "state"), "none", str(tmp_path / "state")):
        with agent_process(*flags, state, directory=tmp_path, environment=environment) as agent:
            agent.until(lambda: agent.get("/readyz").status == 200)
            assert agent.end()[0] == 0
            logged.append([line for line in (RESUMED, NOT_RESUMED) if line in agent.stderr])
        assert (tmp_path / "run/unjournalled").exists() == (len(logged) > 2)
    assert logged == [[], [RESUMED], [], [NOT_RESUMED]]
