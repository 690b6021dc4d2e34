"""Clients of any number of ports leave descriptors for reading the host."""

from __future__ import annotations

import re
import resource
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from otel_gpu.config.values import Address
from tests.agent_process import AgentProcess
from tests.cli import clean_environment, command
from tests.web import PATIENCE_S, ask

MAX_DESCRIPTORS: Final = 400
KEEP_ALIVE: Final = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
EXPORTERS: Final = ("gpu-idle-exporter", "dcgm-exporter")


def unused_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def limit_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_DESCRIPTORS // 2, MAX_DESCRIPTORS))


def test_idle_connections_to_all_ports_leave_descriptors_for_sampling(tmp_path: Path) -> None:
    ports = unused_ports(len(EXPORTERS))
    compat = ",".join(f"{name}:{port}" for name, port in zip(EXPORTERS, ports, strict=True))
    words = command("run", "--source", "sim", "--listen", "127.0.0.1:0", "--exporters", "none", "--compat", compat)
    agent = AgentProcess(words, clean_environment(), tmp_path, before_start=limit_descriptors)
    try:
        addresses = [agent.address, *(Address("127.0.0.1", port) for port in ports)]
        limits = Path(f"/proc/{agent.process.pid}/limits").read_text(encoding="ascii")
        assert re.search(rf"^Max open files +{MAX_DESCRIPTORS} +{MAX_DESCRIPTORS} ", limits, re.MULTILINE)
        most = 0
        with ExitStack() as stack:
            for _ in range(MAX_DESCRIPTORS // len(addresses)):
                for address in addresses:
                    client = stack.enter_context(socket.create_connection((address.host, address.port), PATIENCE_S))
                    client.sendall(KEEP_ALIVE)
                    client.recv(1)
                    most = max(most, len(list(Path(f"/proc/{agent.process.pid}/fd").iterdir())))
            assert [ask(address, "/metrics").status in (200, 404) for address in addresses] == [True] * len(addresses)
        assert most <= MAX_DESCRIPTORS - 200
        assert "Too many open files" not in agent.stderr
    finally:
        agent.process.kill()
        agent.process.wait()
