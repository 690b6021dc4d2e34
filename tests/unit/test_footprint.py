"""A process that runs for months: little memory, and little time spent on it."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import ctypes, gc
from otel_gpu.footprint import bound_heaps, settle
bound_heaps()
ring = []
ring.append(ring)
del ring
settle()
print(gc.get_freeze_count() > 1000, gc.get_threshold()[0] > 700, gc.isenabled(), len(gc.garbage))
"""


def test_what_is_there_is_left_alone_and_what_comes_is_still_collected() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=30)
    assert (done.stdout, done.stderr) == ("True True True 0\n", "")


def test_an_allocator_that_cannot_be_told_is_left_as_it_is() -> None:
    script = (
        "import ctypes\n"
        "class Other: pass\n"
        "ctypes.CDLL = lambda *_: Other()\n"
        "from otel_gpu.footprint import bound_heaps\n"
        "bound_heaps()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_agent_has_only_in_memory_what_an_agent_needs() -> None:
    others = {
        *("otel_gpu.sources.sim", "otel_gpu.sources.slurm", "otel_gpu.compat.exporters", "otel_gpu.doctor"),
        *("otel_gpu.top", "docker", "grpc", "google.protobuf", "prometheus_client", "yaml"),
    }
    script = "import sys, otel_gpu.commands; print(*(set(sys.argv[1:]) & set(sys.modules)), end='')"
    result = subprocess.run(
        [sys.executable, "-c", script, *others], capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
