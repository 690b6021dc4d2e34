"""CPU time and memory of the agent agree with the figures of the system, and it is tuned."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from otel_gpu.agent import own_process
from otel_gpu.agent.own_process import SelfUsage


def test_cpu_time_includes_all_threads() -> None:
    before_s = SelfUsage().cpu_s()
    until_s = time.process_time() + 0.05
    while time.process_time() < until_s:
        pass
    after_s, times = SelfUsage().cpu_s(), psutil.Process().cpu_times()
    assert before_s is not None
    assert after_s is not None
    assert after_s - before_s >= 0.05
    assert after_s == pytest.approx(times.user + times.system, abs=0.1)


def test_memory_is_resident_memory_and_follows_it() -> None:
    usage = SelfUsage()
    before_bytes = usage.memory_bytes()
    held = b"\1" * (64 << 20)
    after_bytes = usage.memory_bytes()
    assert before_bytes is not None
    assert after_bytes is not None
    assert after_bytes - before_bytes > len(held) // 2
    assert after_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_its_file_is_closed_with_it() -> None:
    gc.collect()
    before = open_files()
    usages = [SelfUsage() for _ in range(10)]
    assert open_files() == before + 10
    del usages
    gc.collect()
    assert open_files() == before


def test_without_statm_memory_comes_from_psutil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_process, "_STATM", str(tmp_path / "none"))
    memory_bytes = SelfUsage().memory_bytes()
    assert memory_bytes is not None
    assert memory_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)


@pytest.mark.parametrize("text", ["", "12", "12 many"])
def test_an_unreadable_figure_is_unknown(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statm = tmp_path / "statm"
    statm.write_text(text)
    monkeypatch.setattr(own_process, "_STATM", str(statm))
    assert SelfUsage().memory_bytes() is None


def test_memory_is_unknown_if_psutil_does_not_find_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_process, "_STATM", str(tmp_path / "none"))
    usage = SelfUsage()

    def gone(_: psutil.Process) -> None:
        raise psutil.NoSuchProcess(1)

    monkeypatch.setattr(psutil.Process, "memory_info", gone)
    assert usage.memory_bytes() is None


# ---------------------------------------------------------------------------- in a process of its own


SCRIPT = """
import ctypes, gc
from otel_gpu.agent.own_process import tune_malloc, tune_gc
tune_malloc()
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
        "from otel_gpu.agent.own_process import tune_malloc\n"
        "tune_malloc()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
