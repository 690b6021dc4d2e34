"""Of who has not run nothing is read, and nothing that matters is missed for it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.sources.base import ProcessRead
from otel_gpu.sources.procfs import ProcfsSource
from otel_gpu.sources.procfs_files import read_cgroup
from otel_gpu.sources.procfs_scan import STEADY
from otel_gpu.sources.vigil import Vigil
from tests.procfs_tree import UVM, ProcTree, Reads, maps_line

IDS = [f"{number:064x}" for number in range(3)]
PID, BYSTANDER = 16, 110
CUDA_FDS = ("/dev/null", "/dev/nvidiactl", UVM, "/dev/nvidia0")


def cgroup(number: int) -> str:
    return f"0::/system.slice/docker-{IDS[number]}.scope\n"


class Watched(Vigil):
    """Watches whom it is told to, and says of whom the test says so that they ended."""

    def __init__(self) -> None:
        super().__init__(most=0)
        self.pids: set[int] = set()
        self.over: list[int] = []

    def __contains__(self, pid: int) -> bool:
        return pid in self.pids

    def watch(self, pid: int) -> None:
        self.pids.add(pid)

    def ended(self) -> list[int]:
        ended, self.over = self.over, []
        self.pids.difference_update(ended)
        return ended


class Host:
    """A user of a GPU and some bystanders, each with a clock that stands unless the test lets it go."""

    def __init__(self, root: Path, vigil: Vigil | None = None) -> None:
        self.tree = ProcTree(root)
        self.tree.add(PID, cgroup=cgroup(0), fds=CUDA_FDS, maps=maps_line(0x10000, 4096))
        for pid in range(100, 120):
            self.tree.add(pid)
        self.cpu_ns: defaultdict[int, int | None] = defaultdict(lambda: 1_000_000)
        self.clock = ManualClock()
        self.source = ProcfsSource(
            root,
            self.clock,
            own_proc=root,
            ticks_per_second=100,
            pace=STEADY,
            cpu_clock=lambda pid: self.cpu_ns[pid],
            vigil=vigil,
        )

    def run(self, pid: int) -> None:
        """Let a process run for a moment."""
        self.cpu_ns[pid] = (self.cpu_ns[pid] or 0) + 1

    def after(self, seconds: int) -> ProcessRead:
        """What is read so much later, with a cycle every second until then."""
        for _ in range(seconds):
            self.clock.advance(1)
            read = self.source.read([PID])
        return read


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path / "proc")
    host.after(70)
    return host


def test_nothing_is_opened_but_cgroups_twice_a_minute(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch)
    host.after(60)
    assert reads.count["open"] == 60 + 2  # /proc itself in every cycle
    assert reads.count["readlink"] == 0


def test_what_is_told_is_the_same_object(host: Host) -> None:
    before = host.after(1).processes
    assert host.after(20).processes is before
    host.run(PID)
    assert host.after(20).processes is before
    host.tree.set_fds(PID, (*CUDA_FDS, "/dev/nvidia1"))
    host.run(PID)
    assert host.after(11).processes is not before


def test_who_has_run_is_looked_at_as_if_there_were_no_clock(host: Host) -> None:
    host.tree.set_fds(PID, (*CUDA_FDS, "/dev/nvidia1"))
    host.tree.write(f"{PID}/maps", maps_line(0x10000, 8192))
    host.run(PID)
    assert host.after(10).processes[PID].gpu_minors_open == {0, 1}
    assert host.after(21).processes[PID].uvm_mapping_bytes == 8192


def test_who_has_run_and_sleeps_again_is_looked_at_after_that(host: Host) -> None:
    """What was read before he ran says nothing of what he did then, however long he sleeps now."""
    host.run(PID)
    host.after(1)
    host.tree.set_fds(PID, (*CUDA_FDS, "/dev/nvidia1"))
    host.tree.write(f"{PID}/maps", maps_line(0x10000, 8192))
    host.run(PID)
    facts = host.after(31).processes[PID]
    assert facts.gpu_minors_open == {0, 1}
    assert facts.uvm_mapping_bytes == 8192


def test_one_who_opens_a_gpu_has_run_for_it_and_is_noticed_within_half_a_minute(host: Host) -> None:
    host.tree.set_fds(BYSTANDER, CUDA_FDS)
    host.run(BYSTANDER)
    assert host.after(31).processes[BYSTANDER].gpu_minors_open == {0}


def test_a_cgroup_that_others_put_it_in_is_noticed_within_half_a_minute(host: Host) -> None:
    host.tree.write(f"{PID}/cgroup", cgroup(1))
    assert host.after(31).processes[PID].workload.id == IDS[1]
    host.tree.write(f"{PID}/cgroup", cgroup(2))
    assert host.after(31).processes[PID].workload.id == IDS[2]


def test_what_others_change_of_one_who_sleeps_is_noticed_within_five_minutes(host: Host) -> None:
    """Who shares the table of descriptors or the address space may do so (clone(2))."""
    host.tree.set_fds(PID, (*CUDA_FDS, "/dev/nvidia1"))
    host.tree.write(f"{PID}/maps", maps_line(0x10000, 8192))
    host.tree.set_fds(BYSTANDER, CUDA_FDS)
    assert host.after(60).processes[PID].gpu_minors_open == {0}
    processes = host.after(300).processes
    assert processes[PID].gpu_minors_open == {0, 1}
    assert processes[PID].uvm_mapping_bytes == 8192
    assert processes[BYSTANDER].gpu_minors_open == {0}


def test_an_end_is_noticed_within_ten_seconds_and_a_pid_used_again_at_once(host: Host) -> None:
    host.tree.add(PID, state="Z", cgroup=cgroup(0), fds=())
    host.run(PID)
    assert not host.after(10).processes[PID].alive
    host.tree.remove(PID)
    host.tree.add(PID, start_ticks=5_000, cgroup=cgroup(1), fds=["/dev/null"])
    host.cpu_ns[PID] = 700
    other = host.after(1).processes[PID]
    assert (other.key.start_ticks, other.workload.id, other.gpu_minors_open) == (5_000, IDS[1], frozenset())


def test_a_cgroup_read_of_a_successor_is_not_its_predecessors(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """He came after the clock was read and before the cgroup was: the clock is asked again after it."""

    def replaced(path: str, dir_fd: int) -> str:
        host.tree.remove(PID)
        host.tree.add(PID, start_ticks=5_000, cgroup=cgroup(0), fds=["/dev/null"])
        host.cpu_ns[PID] = 700
        return read_cgroup(path, dir_fd)

    monkeypatch.setattr("otel_gpu.sources.procfs.read_cgroup", replaced)
    while host.cpu_ns[PID] != 700:
        read = host.after(1)
    assert read.processes[PID].key.start_ticks == 5_000


def test_one_whose_clock_is_not_told_is_looked_at_as_before(host: Host) -> None:
    host.cpu_ns[PID] = None
    host.after(1)
    host.tree.set_fds(PID, (*CUDA_FDS, "/dev/nvidia1"))
    assert host.after(11).processes[PID].gpu_minors_open == {0, 1}


def test_of_one_who_is_watched_and_runs_nobody_asks_who_it_is_until_something_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path / "proc", vigil := Watched())
    host.after(70)
    assert vigil.pids == {PID}
    monkeypatch.setattr("otel_gpu.sources.procfs.stat_mark", lambda *_: pytest.fail("it is asked who it is"))
    opened = []
    for _ in range(60):
        host.run(PID)
        with monkeypatch.context() as patch:
            reads = Reads(patch)
            host.after(1)
            opened.append(reads.count["open"] - 1)  # /proc itself
    assert opened.count(0) >= 60 - (6 + 2 + 2)  # all but those in which its descriptors, mappings or cgroup are due


def test_an_end_of_one_who_is_watched_is_noticed_at_once(tmp_path: Path) -> None:
    host = Host(tmp_path / "proc", vigil := Watched())
    host.after(70)
    host.tree.add(PID, state="Z", cgroup=cgroup(0), fds=())
    host.run(PID)
    vigil.over.append(PID)
    assert not host.after(1).processes[PID].alive


def test_whose_pids_are_invented_is_not_watched(host: Host) -> None:
    assert PID not in host.source._vigil


# ---------------------------------------------------------------------------- all of them asleep


def test_one_of_many_who_runs_is_looked_at_and_the_others_stand(tmp_path: Path) -> None:
    host = Host(tmp_path / "proc")
    users = range(200, 216)
    for pid in users:
        host.tree.add(pid, cgroup=cgroup(0), fds=CUDA_FDS)
    host.after(70)
    before = host.after(5).processes
    assert before.keys() == {PID, *users}
    host.tree.set_fds(207, (*CUDA_FDS, "/dev/nvidia1"))
    host.run(207)
    after = host.after(11).processes
    assert after[207].gpu_minors_open == {0, 1}
    assert all(after[pid] is before[pid] for pid in before if pid != 207)


def test_who_opens_a_gpu_while_all_others_sleep_is_told_beside_them_and_leaves_them_as_they_were(host: Host) -> None:
    before = host.after(1).processes
    host.tree.set_fds(BYSTANDER, CUDA_FDS)
    host.run(BYSTANDER)
    beside = host.after(31).processes
    assert beside.keys() == {PID, BYSTANDER}
    assert beside[PID] is before[PID]
    host.tree.set_fds(BYSTANDER, ["/dev/null"])
    host.run(BYSTANDER)
    assert host.after(11).processes == before


def test_who_is_asked_for_no_more_is_told_no_more_and_again_when_asked_for_again(host: Host) -> None:
    before = host.after(1).processes
    for asked in ([PID, BYSTANDER], [PID], [PID, BYSTANDER], [BYSTANDER]):
        for _ in range(3):
            host.clock.advance(1)
            told = host.source.read(asked).processes
            assert told.keys() == {PID, *asked}
            assert told[PID] is before[PID]


def test_who_is_gone_while_all_others_sleep_is_told_no_more(host: Host) -> None:
    host.tree.set_fds(BYSTANDER, CUDA_FDS)
    host.run(BYSTANDER)
    assert host.after(31).processes.keys() == {PID, BYSTANDER}
    host.after(70)
    host.tree.remove(BYSTANDER)
    assert host.after(1).processes.keys() == {PID}


def test_a_file_that_cannot_be_read_is_told_for_as_long_as_it_cannot(host: Host) -> None:
    assert host.after(1).reason is None
    host.tree.write(f"{PID}/stat", "no stat")
    host.run(PID)
    assert "1 process under" in str(host.after(11).reason)
    assert "1 process under" in str(host.after(60).reason)
    host.tree.add(PID, cgroup=cgroup(0), fds=CUDA_FDS)
    host.run(PID)
    assert host.after(31).reason is None
    assert host.after(60).reason is None
