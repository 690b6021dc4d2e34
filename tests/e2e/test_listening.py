"""Where a running agent listens: on this machine only, until somebody says otherwise."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import psutil
import pytest

from tests.agent_process import AgentProcess, agent_process

ARGUMENTS = ("run", "--source", "sim", "--exporters", "prometheus")


def beside() -> tuple[str, str]:
    """Other exporters' listeners too, on ports that were free a moment ago."""
    with socket.create_server(("0.0.0.0", 0)) as one, socket.create_server(("0.0.0.0", 0)) as other:
        return "--compat", f"dcgm-exporter:{one.getsockname()[1]},my-gpu-exporter:{other.getsockname()[1]}"


def listening_on(agent: AgentProcess) -> set[str]:
    """Every address on which any socket of the process listens, or takes datagrams."""
    agent.until(lambda: "/healthz" in agent.stderr)
    sockets = psutil.Process(agent.process.pid).net_connections(kind="inet")
    return {each.laddr[0] for each in sockets if each.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)}


def test_without_a_word_every_listener_is_on_the_loopback_interface(tmp_path: Path) -> None:
    environment = {"OTEL_EXPORTER_PROMETHEUS_PORT": "0"}  # any free port; nothing is said of the host
    with agent_process(*ARGUMENTS, *beside(), directory=tmp_path, environment=environment) as agent:
        found = listening_on(agent)
    assert found
    assert all(ipaddress.ip_address(each).is_loopback for each in found), found


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.2"])
def test_asked_to_it_listens_where_it_is_told(host: str, tmp_path: Path) -> None:
    with agent_process(*ARGUMENTS, *beside(), "--listen", f"{host}:0", directory=tmp_path) as agent:
        assert listening_on(agent) == {host}
