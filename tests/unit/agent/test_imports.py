"""Imports follow use: an agent does not load modules that it does not use."""

from __future__ import annotations

import subprocess
import sys

import pytest

OTHER_COMMANDS = {
    *("otel_gpu.sources.sim", "otel_gpu.sources.names.slurm", "otel_gpu.compat.families", "otel_gpu.doctor"),
    *("otel_gpu.top", "docker", "grpc", "google.protobuf", "prometheus_client", "yaml"),
}
NEVER = {"pynvml", "opentelemetry.sdk", "opentelemetry.exporter", "prometheus_client", "psutil"}
HTTP = {"requests", "urllib3", "charset_normalizer", "otel_gpu.export.otlp_http"}
GRPC = {"grpc", "otel_gpu.export.otlp_grpc"}
API = {"opentelemetry.metrics", "ssl"}
"""Of OpenTelemetry's API and TLS nothing is needed to serve Prometheus in plain text."""
OTLP = {"google.protobuf", "opentelemetry.proto", "otel_gpu.export.otlp", "otel_gpu.export.otlp_encoder"}

DEMO = """
import socket, sys
from otel_gpu.agent.agent import Agent
from otel_gpu.cli import main
run = Agent.run
def run_until_scraped(agent, stop, on_sample, on_start):
    def scrape(report):
        with socket.create_connection((agent.web.address.host, agent.web.address.port)) as client:
            client.sendall(b"GET /metrics HTTP/1.0\\r\\n\\r\\n")
            assert client.recv(12) == b"HTTP/1.1 200", "no metrics"
        stop.set()
    run(agent, stop, scrape, on_start)
Agent.run = run_until_scraped
exporters, protocol, *modules = sys.argv[1:]
status = main(["demo", "--exporters", exporters, "--otlp-protocol", protocol, "--otlp-endpoint", "http://127.0.0.1:9",
               "--listen", "127.0.0.1:0", "--log-level", "error"])
blocked = [name for name, module in sys.modules.items() if module is None]
print("loaded", *sorted(set(modules) & set(sys.modules)), "blocked", *blocked)
sys.exit(status)
"""


def python(script: str, *arguments: str) -> str:
    """Run a script; returns the last line of its output."""
    command = [sys.executable, "-c", script, *arguments]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return (result.stdout.splitlines() or [""])[-1]


def test_the_command_line_loads_no_module_of_other_commands() -> None:
    script = "import sys, otel_gpu.cli.run; print(*(set(sys.argv[1:]) & set(sys.modules)), end='')"
    assert python(script, *OTHER_COMMANDS) == ""


@pytest.mark.parametrize(
    ("exporters", "protocol", "unused"),
    [
        ("prometheus", "http/protobuf", NEVER | HTTP | GRPC | OTLP | API),
        ("prometheus,otlp", "http/protobuf", NEVER | GRPC),
        ("prometheus,otlp", "grpc", NEVER | HTTP),
    ],
    ids=["prometheus", "http", "grpc"],
)
def test_a_running_agent_loads_only_the_exporters_it_uses(exporters: str, protocol: str, unused: set[str]) -> None:
    assert python(DEMO, exporters, protocol, *unused) == "loaded blocked"
