"""A large host under a real limit of memory: slow clients, scrapers and pushes at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest

from bench.limits.load import Load, Receiver
from bench.limits.measure import high_water_bytes
from otel_gpu.export.batches import LARGEST_REQUEST_BYTES
from tests.agent_process import AgentProcess
from tests.cli import clean_environment
from tests.real.memory_cgroup import memory_cgroup

pytestmark = pytest.mark.real

GPUS: Final = 16
PROCESSES_PER_GPU: Final = 200
LIMIT_BYTES: Final = 384 << 20
"""Below the limit of the manifests, 512 MiB."""

SLOW_CLIENTS: Final = 250
SCRAPERS: Final = 16
LOAD_S: Final = 40.0


def test_a_large_host_stays_below_the_limit_whatever_clients_do(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "bench.limits.agent", str(GPUS), str(PROCESSES_PER_GPU)]
    words += ["run", "--source", "sim", "--listen", "127.0.0.1:0", "--exporters", "otlp,prometheus"]
    with memory_cgroup(LIMIT_BYTES) as cgroup, Receiver().running() as receiver:
        words += ["--otlp-endpoint", receiver.url, "--state-dir", str(tmp_path / "state")]
        agent = AgentProcess(words, clean_environment(), tmp_path, before_start=cgroup.join)
        try:
            agent.until(lambda: agent.get("/metrics").status == 200)
            load = Load(agent.address, slow_clients=SLOW_CLIENTS, scrapers=SCRAPERS, duration_s=LOAD_S)
            load.run()
            assert load.failures == []
            assert agent.process.poll() is None, f"ended with {agent.process.returncode}: {agent.stderr}"
            assert high_water_bytes(agent.process.pid) < LIMIT_BYTES
            assert cgroup.oom_kills == 0
            assert agent.get("/healthz").status == 200
        finally:
            agent.process.kill()
            agent.process.wait()
    assert load.bodies >= SCRAPERS, "every scraper was served"
    assert load.closed >= SLOW_CLIENTS, "every slow client was disconnected"
    assert len(load.cycles) >= LOAD_S / 5.0, "as many cycles as the interval asks for"
    assert receiver.received_bytes > 20 << 20, "at least two pushes"
    assert receiver.largest_bytes <= LARGEST_REQUEST_BYTES
