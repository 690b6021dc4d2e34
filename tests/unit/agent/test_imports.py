"""Imports follow use: what an agent does not use is not in its memory."""

from __future__ import annotations

import subprocess
import sys


def test_an_agent_imports_only_what_it_uses() -> None:
    others = {
        *("otel_gpu.sources.sim", "otel_gpu.sources.names.slurm", "otel_gpu.compat.exporters", "otel_gpu.doctor"),
        *("otel_gpu.top", "docker", "grpc", "google.protobuf", "prometheus_client", "yaml"),
    }
    script = "import sys, otel_gpu.commands; print(*(set(sys.argv[1:]) & set(sys.modules)), end='')"
    result = subprocess.run(
        [sys.executable, "-c", script, *others], capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
