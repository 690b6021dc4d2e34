"""An agent with listeners for other exporters."""

from __future__ import annotations

import socket
import threading
from contextlib import closing

import pytest

from otel_gpu.agent.agent import Agent
from otel_gpu.agent.host import Host
from otel_gpu.clock import ManualClock
from otel_gpu.config import load
from otel_gpu.config.values import Address
from otel_gpu.errors import UsageError
from otel_gpu.metrics.labels import Resources
from tests.builders import GIB, FakeGpus, FakeProcesses, gpu, gpu_read, listed, memory
from tests.real.programs import free_addresses
from tests.web import ask

PATIENCE_S = 30.0
WORKING = gpu_read(gpu(0, [listed(1)], memory=memory(used_gib=1)))


def agent(compat: str, listen: str = "127.0.0.1:0", **settings: str) -> Agent:
    flags = {"interval": "1h", "listen": listen, "source": "sim", "exporters": "none", "compat": compat, **settings}
    host = Host(FakeGpus(WORKING), FakeProcesses(), ())
    return Agent(load(flags, {}).config, host, Resources({"host.name": "node-1"}, {}), ManualClock())


def test_listeners_serve_while_the_agent_runs() -> None:
    inference, idle = free_addresses(2)
    # Process metrics are off for the agent itself; other exporters still have processes.
    running = agent(f"gpu-inference:{inference.port},gpu-idle-exporter:{idle.port}", **{"process-metrics": "off"})
    sampled, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=running.run, args=(stop, lambda _: sampled.set()), daemon=True)
    thread.start()
    try:
        assert sampled.wait(PATIENCE_S)
        assert f'gpu_memory_used_bytes{{gpu="0"}} {GIB}\n' in ask(inference, "/metrics").body
        assert f'gpu_idle_process_memory_used_bytes{{gpu="0",pid="1",process=""}} {GIB}\n' in ask(idle, "/metrics").body
        assert ask(idle, "/healthz").body == "ok\n"
        assert list(running.compat.urls.values()) == ["gpu-inference", "gpu-idle-exporter"]
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    for address in (inference, idle):
        with pytest.raises(OSError, match="refused"):
            ask(address, "/metrics")


def test_other_listeners_are_closed_if_the_agents_own_address_is_in_use() -> None:
    (free,) = free_addresses(1)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken, pytest.raises(UsageError, match="--listen"):
        agent(f"gpu-inference:{free.port}", listen=f"127.0.0.1:{taken.getsockname()[1]}")
    with closing(socket.create_server((free.host, free.port))):
        assert free == Address("127.0.0.1", free.port)
