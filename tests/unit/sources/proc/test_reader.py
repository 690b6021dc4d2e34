"""A process whose files do not respond delays no other process, and does not use up the agent's threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.model import UNIDENTIFIED_WORKLOAD, SourceState, UnreadableReason
from otel_gpu.sources.base import ProcessRead, UnreadableProcess
from otel_gpu.sources.proc.files import DeviceNode, FileId, MapsRead, ProcessDir, Stat
from otel_gpu.sources.proc.reader import MAX_ABANDONED, MAX_ABANDONED_BY_SCAN, MAX_ABANDONED_PER_TENANT
from otel_gpu.sources.proc.source import ProcfsSource
from tests.proc_tree import UVM, ProcTree, maps_line
from tests.waiting import until

CUDA_FDS = ("/dev/null", "/dev/nvidiactl", UVM, "/dev/nvidia0")
PAUSE_S = 31
"""Longer than the first pause of a process whose read did not return."""


def container(number: int) -> str:
    return f"{number:064x}"


def cgroup(number: int) -> str:
    return f"0::/system.slice/docker-{container(number)}.scope\n"


class Hanging:
    """Reads of one file of some processes that do not return until they are released."""

    def __init__(self, tree: ProcTree, monkeypatch: pytest.MonkeyPatch) -> None:
        self._inodes: set[int] = set()
        self._tree = tree
        self._released = threading.Event()
        self._monkeypatch = monkeypatch
        self.calls = 0
        self.waiting = 0

    def hang(self, file: str, *pids: int) -> None:
        """From now on, reads of this file of these processes hang; ``verify`` is the ``stat`` of an open file."""
        self._inodes |= {(self._tree.root / str(pid)).stat().st_ino for pid in pids}
        real: Callable[..., object] = getattr(ProcessDir, file)

        def read(directory: ProcessDir, *arguments: object) -> object:
            if os.fstat(directory._fd).st_ino in self._inodes:
                self.calls += 1
                self.waiting += 1
                self._released.wait(60)
                self.waiting -= 1
            return real(directory, *arguments)

        self._monkeypatch.setattr(ProcessDir, file, read)

    def release(self) -> None:
        """Let every read return."""
        self._inodes.clear()
        self._released.set()
        until(lambda: self.waiting == 0)


@pytest.fixture
def hanging(tree: ProcTree, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    hanging = Hanging(tree, monkeypatch)
    yield hanging
    hanging.release()


@pytest.fixture
def source(tree: ProcTree, clock: ManualClock) -> ProcfsSource:
    return ProcfsSource(tree.root, clock, own_proc=tree.root, deadline_s=30, stall_s=0.05)


def cycles(source: ProcfsSource, clock: ManualClock, seconds: int, pids: tuple[int, ...] = ()) -> ProcessRead:
    for _ in range(seconds):
        clock.advance(1)
        read = source.read(pids)
    return read


# ---------------------------------------------------------------------------- one process


@pytest.mark.parametrize("file", ["stat", "named_devices", "cgroup", "verify", "uvm_mapping_bytes"])
def test_a_process_that_hangs_is_named_and_the_others_are_complete(
    tree: ProcTree, source: ProcfsSource, hanging: Hanging, file: str
) -> None:
    for pid in (7, 8, 9):
        tree.add(pid, comm=b"train", cgroup=cgroup(pid), fds=CUDA_FDS, maps=maps_line(0x1000, 4096))
    hanging.hang(file, 8)
    read = source.read([7, 8, 9])
    for pid in (7, 9):
        facts = read.processes[pid]
        assert facts.gpu_minors_open == {0}
        assert (facts.workload.id, facts.uvm_mapping_bytes) == (container(pid), 4096)
    assert (read.state, read.reason) == (SourceState.OK, None)
    assert read.unreadable == {"timed_out": 1}
    [named] = read.unreadable_processes
    assert (named.pid, named.reason) == (8, "timed_out")
    assert "no answer within" in named.detail


def test_what_was_read_before_the_hanging_file_is_kept(tree: ProcTree, source: ProcfsSource, hanging: Hanging) -> None:
    tree.add(8, comm=b"train", cgroup=cgroup(8), fds=CUDA_FDS, maps=maps_line(0x1000, 4096))
    hanging.hang("uvm_mapping_bytes", 8)
    facts = source.read([8]).processes[8]
    assert (facts.name, facts.workload.id, facts.uvm_open, facts.uvm_mapping_bytes) == (
        "train", container(8), True, None,
    )  # fmt: skip


def test_a_descriptor_on_a_hanging_file_system_is_not_a_device_and_hides_no_other(
    tree: ProcTree, source: ProcfsSource, hanging: Hanging
) -> None:
    tree.add(8, cgroup=cgroup(8), fds=["/dev/nvidia0"])
    hanging.hang("verify", 8)
    read = source.read([])
    assert 8 not in read.processes
    assert read.all_visible


def test_a_process_whose_descriptors_were_never_listed_may_hide_a_gpu(
    tree: ProcTree, source: ProcfsSource, hanging: Hanging
) -> None:
    tree.add(8, cgroup=cgroup(8), fds=CUDA_FDS)
    hanging.hang("stat", 8)
    assert not source.read([]).all_visible


def test_facts_of_a_process_persist_while_it_hangs(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock, hanging: Hanging
) -> None:
    tree.add(8, cgroup=cgroup(8), fds=CUDA_FDS, maps=maps_line(0x1000, 4096))
    before = source.read([]).processes[8]
    hanging.hang("stat", 8)
    for _ in range(3):
        assert cycles(source, clock, 1).processes[8] == before


def test_a_process_that_hangs_is_read_again_only_after_a_pause(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock, hanging: Hanging
) -> None:
    tree.add(8, cgroup=cgroup(8), fds=CUDA_FDS)
    hanging.hang("stat", 8)
    cycles(source, clock, 200)
    assert hanging.calls == 1
    hanging.release()
    read = cycles(source, clock, 1)
    assert (set(read.processes), read.unreadable) == ({8}, {})


def test_a_process_that_was_only_slow_is_read_again_after_a_pause(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock, hanging: Hanging
) -> None:
    tree.add(8, cgroup=cgroup(8), fds=CUDA_FDS)
    hanging.hang("stat", 8)
    cycles(source, clock, 1)
    hanging.release()
    assert cycles(source, clock, PAUSE_S - 10).processes == {}
    assert set(cycles(source, clock, 10).processes) == {8}


def test_a_late_result_changes_nothing(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock, hanging: Hanging
) -> None:
    tree.add(8, cgroup=cgroup(8), fds=CUDA_FDS)
    hanging.hang("stat", 8)
    source.read([])
    hanging.release()
    tree.release(8)
    tree.add(8, start_ticks=5_000)  # the pid is in use again
    facts = cycles(source, clock, 1, (8,)).processes[8]
    assert (facts.key.start_ticks, facts.gpu_minors_open) == (5_000, frozenset())


def test_a_process_that_starts_next_to_hanging_ones_is_read_in_its_first_cycle(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock, hanging: Hanging
) -> None:
    hostile = range(100, 100 + MAX_ABANDONED_PER_TENANT)
    for pid in hostile:
        tree.add(pid, cgroup=cgroup(pid), fds=["/dev/nvidia0"])
    hanging.hang("verify", *hostile)
    cycles(source, clock, 2)
    tree.add(8, cgroup=cgroup(8), fds=CUDA_FDS)
    assert cycles(source, clock, 1, (8,)).processes[8].workload.id == container(8)


# ---------------------------------------------------------------------------- many processes


def test_abandoned_reads_are_limited_per_container(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock, hanging: Hanging
) -> None:
    hostile = range(100, 160)
    for pid in hostile:
        tree.add(pid, cgroup=cgroup(1), fds=["/dev/nvidia0"])
    hanging.hang("verify", *hostile)
    for _ in range(5):
        cycles(source, clock, 1)
    assert hanging.calls == MAX_ABANDONED_PER_TENANT
    tree.add(8, cgroup=cgroup(8), fds=CUDA_FDS)
    read = cycles(source, clock, 1)
    assert set(read.processes) == {8}
    assert read.unreadable["timed_out"] == len(hostile)
    assert read.state is SourceState.OK


def test_at_the_limit_processes_on_a_gpu_are_still_read_and_the_reason_says_that_others_are_not(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock, hanging: Hanging
) -> None:
    hostile = range(100, 100 + 2 * MAX_ABANDONED)
    for pid in hostile:
        tree.add(pid, cgroup=cgroup(pid), fds=["/dev/nvidia0"])
    hanging.hang("verify", *hostile)
    cycles(source, clock, 3)
    assert hanging.calls == MAX_ABANDONED_BY_SCAN
    tree.add(8, cgroup=cgroup(8), fds=CUDA_FDS)
    tree.add(9, cgroup=cgroup(9), fds=CUDA_FDS)
    read = cycles(source, clock, 1, (8,))
    assert read.processes[8].workload.id == container(8)
    assert 9 not in read.processes
    assert read.state is SourceState.DEGRADED
    assert read.reason == "reads of many processes have not returned: new processes without a GPU are not read"
    assert not read.all_visible
    hanging.release()
    assert cycles(source, clock, 2).processes.keys() >= {8, 9}


def user_cgroup(container_id: str) -> str:
    """A cgroup that user 1000 made below its own slice, with the name of a container."""
    return f"0::/user.slice/user-1000.slice/user@1000.service/docker-{container_id}.scope\n"


class Bypass(NamedTuple):
    """A way to get a limit of its own for each process: the file that hangs, open descriptors, and the cgroup."""

    file: str
    fds: tuple[str, ...]
    cgroup_of: Callable[[int], str]


BYPASSES = {
    "names that a user chooses": Bypass("verify", ("/dev/nvidia0",), lambda pid: user_cgroup(container(pid))),
    "control nodes": Bypass("verify", ("/dev/nvidiactl",), lambda _: cgroup(1)),
    "before anything is known": Bypass("stat", ("/dev/null",), lambda _: cgroup(1)),
}


@pytest.mark.parametrize("bypass", BYPASSES.values(), ids=BYPASSES)
def test_a_tenant_cannot_use_up_what_may_be_abandoned_for_all(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock, hanging: Hanging, bypass: Bypass
) -> None:
    hostile = range(100, 160)
    for pid in hostile:
        tree.add(pid, cgroup=bypass.cgroup_of(pid), fds=bypass.fds)
    hanging.hang(bypass.file, *hostile)
    cycles(source, clock, 4)
    assert hanging.calls <= MAX_ABANDONED_PER_TENANT + 1  # of the first, the cgroup may be unknown
    tree.add(8, cgroup=cgroup(8), fds=CUDA_FDS)
    assert cycles(source, clock, 1).processes[8].workload.id == container(8)


def test_a_user_that_names_a_container_uses_up_nothing_of_that_container(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock, hanging: Hanging
) -> None:
    hostile = range(100, 110)
    for pid in hostile:
        tree.add(pid, cgroup=user_cgroup(container(8)), fds=["/dev/nvidia0"])
    hanging.hang("verify", *hostile)
    cycles(source, clock, 2)
    tree.add(8, cgroup=cgroup(8), fds=CUDA_FDS)
    assert cycles(source, clock, 1).processes[8].gpu_minors_open == {0}


class Slow:
    """Descriptors of some processes that answer late, but in time."""

    def __init__(self, tree: ProcTree, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.calls = 0
        self._tree = tree
        self._inodes: set[int] = set()
        real = ProcessDir.verify

        def verify(directory: ProcessDir, descriptor: str, node: DeviceNode, majors: frozenset[int]) -> object:
            if os.fstat(directory._fd).st_ino in self._inodes:
                self.calls += 1
                time.sleep(seconds)
            return real(directory, descriptor, node, majors)

        monkeypatch.setattr(ProcessDir, "verify", verify)

    def add(self, pid: int) -> None:
        """From now on, this process answers late."""
        self._inodes.add((self._tree.root / str(pid)).stat().st_ino)


def test_processes_that_answer_slowly_delay_no_other_tenant(
    tree: ProcTree, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ProcfsSource(tree.root, clock, own_proc=tree.root, deadline_s=1, stall_s=10)
    slow = Slow(tree, monkeypatch, 0.1)
    for pid in range(100, 160):
        tree.add(pid, cgroup=cgroup(1), fds=["/dev/nvidia0"])
        slow.add(pid)
    tree.add(8, cgroup=cgroup(8), fds=CUDA_FDS)
    tree.add(9, cgroup=cgroup(9), fds=CUDA_FDS)
    found = source.read([8]).processes
    assert found.keys() >= {8, 9}  # one was asked for, the other was found
    assert slow.calls <= 4


def test_a_process_that_is_slow_again_and_again_is_left_alone_for_a_while(
    tree: ProcTree, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ProcfsSource(tree.root, clock, own_proc=tree.root, deadline_s=30, stall_s=10)
    slow = Slow(tree, monkeypatch, 0.06)
    tree.add(8, cgroup=cgroup(8), fds=["/dev/nvidia0"])
    slow.add(8)
    read = cycles(source, clock, 20)
    assert slow.calls == 2
    assert (read.processes[8].gpu_minors_open, read.unreadable) == (frozenset({0}), {})


def test_a_process_that_is_being_read_when_the_cycle_ends_has_no_fault(
    tree: ProcTree, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ProcfsSource(tree.root, clock, own_proc=tree.root, deadline_s=1, stall_s=10)
    slow = Slow(tree, monkeypatch, 0.4)
    for pid in (7, 8, 9):
        tree.add(pid, cgroup=cgroup(pid), fds=["/dev/nvidia0"])
        slow.add(pid)
    for _ in range(2):
        assert source.read([7, 8, 9]).unreadable == {}
        time.sleep(0.5)
        clock.advance(1)


def test_a_tenant_with_many_descriptors_uses_a_part_of_a_cycle(tree: ProcTree, clock: ManualClock) -> None:
    source = ProcfsSource(
        tree.root, clock, own_proc=tree.root, descriptors_per_cycle=8_000, descriptors_per_process=2_000
    )
    for pid in range(100, 110):
        tree.add(pid, cgroup=cgroup(1), fds=["/dev/null"] * 1_500)
    tree.add(200, cgroup=cgroup(8), fds=CUDA_FDS)
    assert set(source.read([]).processes) == {200}


def test_a_procfs_that_does_not_answer_for_long_is_unavailable(
    tree: ProcTree, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ProcfsSource(tree.root, clock, own_proc=tree.root, deadline_s=0.1)
    tree.add(8, cgroup=cgroup(8), fds=CUDA_FDS)
    source.read([])
    released = threading.Event()
    monkeypatch.setattr("otel_gpu.sources.proc.source.list_processes", lambda _: released.wait(60))
    states = []
    for _ in range(8):
        clock.advance(5)
        states.append(source.read([]).state)
    released.set()
    assert states == [SourceState.DEGRADED] * 3 + [SourceState.UNAVAILABLE] * 5


def test_while_a_procfs_does_not_respond_the_last_read_is_used(
    tree: ProcTree, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ProcfsSource(tree.root, clock, own_proc=tree.root, deadline_s=0.1)
    tree.add(8, cgroup=cgroup(8), fds=CUDA_FDS)
    before = source.read([])
    released = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr("otel_gpu.sources.proc.source.list_processes", lambda _: released.wait(60))
        late = source.read([])
        assert (late.processes, late.state) == (before.processes, SourceState.DEGRADED)
        assert late.reason is not None
        assert "no answer within" in late.reason
    released.set()
    assert source.read([]).state is SourceState.OK


# ---------------------------------------------------------------------------- mappings, threads


def test_mappings_over_the_limit_are_absent_and_read_again_after_a_pause(
    tree: ProcTree, source: ProcfsSource, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.add(8, cgroup=cgroup(8), fds=CUDA_FDS, maps=maps_line(0x1000, 4096) + "x" * (9 << 20))
    tree.add(9, cgroup=cgroup(9), fds=CUDA_FDS, maps=maps_line(0x1000, 4096))
    read_bytes: list[int] = []
    real = ProcessDir.uvm_mapping_bytes

    def counted(directory: ProcessDir, files: frozenset[FileId], limit_bytes: int) -> MapsRead:
        read = real(directory, files, limit_bytes)
        read_bytes.append(read.read_bytes)
        return read

    monkeypatch.setattr(ProcessDir, "uvm_mapping_bytes", counted)
    read = cycles(source, clock, 1)
    assert (read.processes[8].uvm_mapping_bytes, read.processes[9].uvm_mapping_bytes) == (None, 4096)
    assert (read.state, read.unreadable) == (SourceState.OK, {"too_large": 1})
    assert read.unreadable_processes == (
        UnreadableProcess(8, "python3", UnreadableReason.TOO_LARGE, "its maps are over 8 MiB"),
    )
    cycles(source, clock, 20)
    assert sum(size > 8 << 20 for size in read_bytes) <= 1
    assert max(read_bytes) <= (8 << 20) + (1 << 16)
    tree.set_maps(8, maps_line(0x1000, 8192))
    assert cycles(source, clock, PAUSE_S).processes[8].uvm_mapping_bytes == 8192


def add_exiting_leader(tree: ProcTree, *, cgroup_of_thread: str | None) -> None:
    """A process whose main thread has exited while another one runs, as cgroup v1 shows it."""
    tree.add(8, state="Z", threads=2, cgroup="4:memory:/\n", fds=())
    tree.add(800, cgroup="" if cgroup_of_thread is None else cgroup_of_thread, fds=CUDA_FDS, maps=maps_line(1, 4096))
    task = tree.root / "8/task"
    task.mkdir()
    (task / "8").symlink_to(tree.root / "8")
    if cgroup_of_thread is not None:
        (tree.root / "800").rename(task / "9")
    else:
        tree.remove(800)


def test_a_process_whose_main_thread_has_exited_is_read_by_another_thread(tree: ProcTree, source: ProcfsSource) -> None:
    add_exiting_leader(tree, cgroup_of_thread=cgroup(3))
    facts = source.read([8]).processes[8]
    assert facts.gpu_minors_open == {0}
    assert (facts.workload.id, facts.uvm_mapping_bytes) == (container(3), 4096)
    assert facts.alive


def test_without_a_readable_thread_it_is_unidentified_and_not_the_host(tree: ProcTree, source: ProcfsSource) -> None:
    add_exiting_leader(tree, cgroup_of_thread=None)
    read = source.read([8])
    assert read.processes[8].workload == UNIDENTIFIED_WORKLOAD
    assert read.unreadable == {"unidentified": 1}


def test_a_leader_is_exiting_only_while_other_threads_run() -> None:
    assert not Stat(b"x", "Z", 0, 1, 1).is_leader_exiting
    assert Stat(b"x", "Z", 0, 2, 1).is_leader_exiting


def test_device_numbers_that_cannot_be_read_are_a_reason_of_the_source(tree: ProcTree, source: ProcfsSource) -> None:
    tree.add(8, cgroup=cgroup(8), fds=CUDA_FDS)
    (tree.root / "devices").unlink()
    read = source.read([])
    assert read.processes == {}
    assert (read.state, read.all_visible) == (SourceState.DEGRADED, False)
    assert read.reason is not None
    assert read.reason.startswith("open GPUs are unknown: ")
    tree.set_majors(1)
    assert source.read([]).state is SourceState.OK


def test_files_with_the_names_of_devices_are_no_gpus(tree: ProcTree, source: ProcfsSource) -> None:
    plain = tree.root / "plain/dev/nvidia0"
    plain.parent.mkdir(parents=True)
    plain.touch()
    uvm = plain.with_name("nvidia-uvm")
    uvm.touch()
    tree.add(8, cgroup=cgroup(8), fds=[str(plain), str(uvm)], maps=maps_line(0x1000, 4096))
    read = source.read([])
    assert (read.processes, read.state) == ({}, SourceState.OK)
    tree.set_majors()  # without the driver, no node is one
    tree.add(9, cgroup=cgroup(9), fds=CUDA_FDS)
    assert source.read([]).processes == {}
