"""A running agent listens on the loopback interface only, unless configured otherwise."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import psutil
import pytest

from tests.agent_process import AgentProcess, agent_process

ARGUMENTS = ("run", "--source", "sim", "--exporters", "prometheus")


def compat_flags() -> tuple[str, str]:
    """Flags for listeners of other exporters, on ports that were free a moment ago."""
    with socket.create_server(("0.0.0.0", 0)) as one, socket.create_server(("0.0.0.0", 0)) as other:
        return "--compat", f"dcgm-exporter:{one.getsockname()[1]},my-gpu-exporter:{other.getsockname()[1]}"


def listening_addresses(agent: AgentProcess) -> set[str]:
    """Every address on which a socket of the process listens or receives datagrams."""
    agent.until(lambda: "/healthz" in agent.stderr)
    sockets = psutil.Process(agent.process.pid).net_connections(kind="inet")
    return {each.laddr[0] for each in sockets if each.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)}


def test_by_default_every_listener_is_on_the_loopback_interface(tmp_path: Path) -> None:
    environment = {"OTEL_EXPORTER_PROMETHEUS_PORT": "0"}  # any free port, and no host
    with agent_process(*ARGUMENTS, *compat_flags(), directory=tmp_path, environment=environment) as agent:
        found = listening_addresses(agent)
    assert found
    assert all(ipaddress.ip_address(each).is_loopback for each in found), found


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.2"])
def test_the_agent_listens_on_the_configured_address_only(host: str, tmp_path: Path) -> None:
    with agent_process(*ARGUMENTS, *compat_flags(), "--listen", f"{host}:0", directory=tmp_path) as agent:
        assert listening_addresses(agent) == {host}
