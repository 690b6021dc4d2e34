"""Who has not run is known by his CPU clock, where that means him and is exact."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_gpu.sources.cpuclock import CpuClocks, cpu_clock_for, cpu_time_ns, not_told
from tests.procfs_tree import ProcTree

OWN_PROC = Path("/proc")


@pytest.fixture
def cat() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs when it is written to, and answers once it has."""
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        echoed(process)
        yield process
        process.kill()


def echoed(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"x")
    assert process.stdout.read(1) == b"x"


def wait_for_sleep(pid: int) -> int:
    """Its CPU time once it waits for input again."""
    while Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split()[2] != "S":
        pass
    cpu_ns = cpu_time_ns(pid)
    assert cpu_ns is not None
    return cpu_ns


def test_one_that_sleeps_has_run_no_longer_and_one_that_ran_longer(cat: subprocess.Popen[bytes]) -> None:
    before_ns = wait_for_sleep(cat.pid)
    for _ in range(100):
        assert cpu_time_ns(cat.pid) == before_ns
    echoed(cat)
    assert wait_for_sleep(cat.pid) > before_ns


def test_one_that_ended_has_run_for_it_and_one_that_is_gone_has_no_clock(cat: subprocess.Popen[bytes]) -> None:
    before_ns = wait_for_sleep(cat.pid)
    os.kill(cat.pid, signal.SIGKILL)
    os.waitid(os.P_PID, cat.pid, os.WEXITED | os.WNOWAIT)  # ended, and nobody has waited for it yet
    ended_ns = cpu_time_ns(cat.pid)
    assert ended_ns is not None
    assert ended_ns > before_ns
    cat.wait()
    assert cpu_time_ns(cat.pid) is None


def test_many_are_told_together_as_each_is_by_itself(cat: subprocess.Popen[bytes]) -> None:
    asleep_ns = wait_for_sleep(cat.pid)
    me, gone = os.getpid(), subprocess.Popen(["true"])
    gone.wait()
    together = CpuClocks(cpu_time_ns, [cat.pid, me, cat.pid])
    first, own_ns, last = together.read()
    assert (first, last) == (asleep_ns, asleep_ns)
    assert own_ns is not None
    (_, later_ns, _) = together.read()
    assert later_ns is not None
    assert later_ns > own_ns
    echoed(cat)
    ran_ns = wait_for_sleep(cat.pid)
    assert CpuClocks(cpu_time_ns, [gone.pid, cat.pid, gone.pid]).read() == [None, ran_ns, None]


def test_whose_clock_is_another_s_is_told_by_that() -> None:
    assert CpuClocks({3: 30, 4: None}.get, [4, 3]).read() == [None, 30]
    assert CpuClocks(not_told, [os.getpid()]).read() == [None]
    assert CpuClocks(cpu_time_ns, []).read() == []


def test_it_is_told_of_the_agents_own_proc_also_behind_links(tmp_path: Path) -> None:
    (tmp_path / "self").symlink_to("/proc/self")
    assert cpu_clock_for(OWN_PROC) is cpu_time_ns
    assert cpu_clock_for(tmp_path) is cpu_time_ns


@pytest.mark.parametrize("nspid", [None, "1{}", "5\t{}", "{}\t5"])
def test_pids_of_another_namespace_or_of_nowhere_have_no_clock(tmp_path: Path, nspid: str | None) -> None:
    tree = ProcTree(tmp_path / "proc")
    if nspid is not None:
        tree.set_own_pids(nspid.format(os.getpid()))
    assert cpu_clock_for(tree.root) is not_told
    assert not_told(os.getpid()) is None


def test_a_clock_that_stands_still_or_goes_in_ticks_is_none() -> None:
    ticks_ns = itertools.count(0, 1_000_000)
    for clock in (lambda _: 40_000_000, lambda _: next(ticks_ns), not_told):
        assert cpu_clock_for(OWN_PROC, clock) is not_told


def test_a_clock_that_jumps_once_is_one() -> None:
    """Other threads of the agent may run meanwhile, and their time is the agent's."""
    readings_ns = iter([0, 5_000_000, 5_000_100, 5_000_200])

    def clock(_: int) -> int:
        return next(readings_ns)

    assert cpu_clock_for(OWN_PROC, clock) is clock
