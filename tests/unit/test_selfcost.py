"""What the agent says of its own cost is what the system says."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import psutil
import pytest

from otel_gpu import selfcost
from otel_gpu.selfcost import SelfCost


def test_cpu_time_is_that_of_the_whole_process() -> None:
    before_s = SelfCost().cpu_s()
    until_s = time.process_time() + 0.05
    while time.process_time() < until_s:
        pass
    after_s, times = SelfCost().cpu_s(), psutil.Process().cpu_times()
    assert before_s is not None
    assert after_s is not None
    assert after_s - before_s >= 0.05
    assert after_s == pytest.approx(times.user + times.system, abs=0.1)


def test_memory_is_what_is_resident_and_goes_with_it() -> None:
    cost = SelfCost()
    before_bytes = cost.memory_bytes()
    held = b"\1" * (64 << 20)
    after_bytes = cost.memory_bytes()
    assert before_bytes is not None
    assert after_bytes is not None
    assert after_bytes - before_bytes > len(held) // 2
    assert after_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_no_file_stays_open_after_it() -> None:
    before = open_files()
    costs = [SelfCost() for _ in range(10)]
    assert open_files() == before + 10
    del costs
    gc.collect()
    assert open_files() == before


def test_where_proc_does_not_tell_somebody_else_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcost, "_STATM", str(tmp_path / "none"))
    memory_bytes = SelfCost().memory_bytes()
    assert memory_bytes is not None
    assert memory_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)


@pytest.mark.parametrize("text", ["", "12", "12 many"])
def test_what_nobody_can_read_is_not_known(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statm = tmp_path / "statm"
    statm.write_text(text)
    monkeypatch.setattr(selfcost, "_STATM", str(statm))
    assert SelfCost().memory_bytes() is None


def test_a_process_that_psutil_does_not_find_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcost, "_STATM", str(tmp_path / "none"))
    cost = SelfCost()

    def gone(_: psutil.Process) -> None:
        raise psutil.NoSuchProcess(1)

    monkeypatch.setattr(psutil.Process, "memory_info", gone)
    assert cost.memory_bytes() is None
