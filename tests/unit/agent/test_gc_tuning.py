"""Tuning of the garbage collector and the allocator, in a process of its own because it changes the whole process."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import ctypes, gc
from otel_gpu.agent.gc_tuning import limit_malloc_arenas, tune_gc
limit_malloc_arenas()
cycle = []
cycle.append(cycle)
del cycle
tune_gc()
print(gc.get_freeze_count() > 1000, gc.get_threshold()[0] > 700, gc.isenabled(), len(gc.garbage))
"""


def test_existing_objects_are_frozen_and_new_ones_are_still_collected() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=30)
    assert (done.stdout, done.stderr) == ("True True True 0\n", "")


def test_an_allocator_without_arenas_is_left_unchanged() -> None:
    script = (
        "import ctypes\n"
        "class Other: pass\n"
        "ctypes.CDLL = lambda *_: Other()\n"
        "from otel_gpu.agent.gc_tuning import limit_malloc_arenas\n"
        "limit_malloc_arenas()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
