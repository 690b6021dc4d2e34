from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.model import HOST_WORKLOAD, UNIDENTIFIED_WORKLOAD, SourceState, UnreadableReason
from otel_gpu.sources.base import UnreadableProcess
from otel_gpu.sources.proc.files import NamedDevices, ProcessDir
from otel_gpu.sources.proc.source import ProcfsSource
from tests.proc_tree import USER_FLAGS, UVM, ProcTree, Reads, maps_line

CONTAINER = "0123456789abcdef" * 4
CUDA_FDS = ("/dev/null", "/dev/nvidiactl", UVM, "/dev/nvidia0")


Refuse = Callable[[str, int], None]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Make reads of paths with this suffix fail with this error (0: no longer), since root may read everything."""
    refused: dict[str, int] = {}
    real_open, real_readlink = os.open, os.readlink

    def check(path: str, dir_fd: int | None) -> None:
        whole = path if dir_fd is None else f"{real_readlink(f'/proc/self/fd/{dir_fd}')}/{path}"
        for suffix, number in refused.items():
            if number and whole.endswith(suffix):
                raise OSError(number, os.strerror(number))

    def guarded_open(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        check(os.fspath(path), dir_fd)
        return real_open(path, flags, mode, dir_fd=dir_fd)

    def guarded_readlink(path: str, *, dir_fd: int | None = None) -> str:
        check(os.fspath(path), dir_fd)
        return real_readlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", guarded_open)
    monkeypatch.setattr(os, "readlink", guarded_readlink)
    return refused.__setitem__


# ---------------------------------------------------------------------------- unreadable files


@pytest.mark.parametrize("number", [errno.ESRCH, errno.ENOENT])
@pytest.mark.parametrize("file", ["7", "7/stat"])
def test_a_process_that_ends_while_it_is_read_is_absent_without_an_error(
    tree: ProcTree, source: ProcfsSource, refuse: Refuse, file: str, number: int
) -> None:
    tree.add(7, fds=CUDA_FDS)
    refuse(f"/{file}", number)
    read = source.read([7])
    assert (read.processes, read.state, read.errors) == ({}, SourceState.OK, 0)


@pytest.mark.parametrize("file", ["7/fd", "7/fd/3", "7/maps", "7/cgroup"])
def test_a_process_that_ends_after_its_stat_was_read_is_absent_too(
    tree: ProcTree, source: ProcfsSource, refuse: Refuse, file: str
) -> None:
    tree.add(7, fds=CUDA_FDS)
    refuse(f"/{file}", errno.ESRCH)
    refuse("/7/cgroup", errno.ESRCH)
    read = source.read([7])
    assert (read.processes, read.state, read.errors) == ({}, SourceState.OK, 0)


def test_maps_are_not_read_of_processes_without_the_uvm_node(
    tree: ProcTree, source: ProcfsSource, refuse: Refuse
) -> None:
    tree.add(7, fds=["/dev/nvidia0"], maps=maps_line(0x1000, 4096))
    refuse("7/maps", errno.EIO)
    read = source.read([7])
    assert read.processes[7].uvm_mapping_bytes is None
    assert read.state is SourceState.OK


@pytest.mark.parametrize("file", ["fd", "fd/0"])
def test_the_reason_for_unreadable_descriptors_names_the_capabilities(
    tree: ProcTree, source: ProcfsSource, refuse: Refuse, file: str
) -> None:
    for pid in (7, 8):
        tree.add(pid, comm=b"secret", fds=CUDA_FDS)
        refuse(f"/{pid}/{file}", errno.EACCES)
    tree.add(9, fds=CUDA_FDS)
    read = source.read([7])
    assert set(read.processes) == {7, 9}
    assert read.processes[7].name == "secret"
    assert read.processes[7].gpu_minors_open == frozenset()
    assert read.state is SourceState.DEGRADED
    assert (
        read.reason
        == "open files of 2 processes are not readable: run as root with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
    )
    assert read.errors == 1


@pytest.mark.parametrize("denied", list(product(["fd", "fd/0", "maps"], [errno.EACCES, errno.EPERM])))
@pytest.mark.parametrize(
    "end", [{"state": "Z"}, {"state": "X"}, {"flags": USER_FLAGS | 0x4}, {"state": "Z", "threads": 3}]
)
def test_a_denial_of_an_exiting_process_is_no_fault(
    tree: ProcTree, source: ProcfsSource, refuse: Refuse, denied: tuple[str, int], end: dict[str, Any]
) -> None:
    tree.add(7, fds=CUDA_FDS)
    assert source.read([7]).state is SourceState.OK
    tree.add(7, fds=CUDA_FDS, **end)
    file, number = denied
    refuse(f"/7/{file}", number)
    read = source.read([7])
    assert (read.state, read.reason, read.errors) == (SourceState.OK, None, 0)
    assert read.all_visible
    assert read.processes[7].gpu_minors_open == {0}  # unreadable does not mean closed


def test_a_denial_of_a_process_that_then_ends_is_no_fault(
    tree: ProcTree, source: ProcfsSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(directory: ProcessDir, cursor: int, limit: int) -> NamedDevices:
        tree.remove(7)
        raise PermissionError(errno.EACCES, "Permission denied")

    tree.add(7, fds=CUDA_FDS)
    monkeypatch.setattr(ProcessDir, "named_devices", gone)
    read = source.read([])
    assert (read.processes, read.state, read.unreadable) == ({}, SourceState.OK, {})


def test_the_reason_disappears_when_the_files_become_readable(
    tree: ProcTree, source: ProcfsSource, refuse: Refuse
) -> None:
    tree.add(7, fds=CUDA_FDS)
    refuse("/7/fd", errno.EACCES)
    assert (
        source.read([]).reason
        == "open files of 1 process are not readable: run as root with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
    )
    refuse("/7/fd", 0)
    read = source.read([])
    assert (read.state, read.reason, set(read.processes)) == (SourceState.OK, None, {7})


def test_descriptors_that_become_unreadable_do_not_count_as_closed(
    tree: ProcTree, source: ProcfsSource, refuse: Refuse
) -> None:
    tree.add(7, fds=CUDA_FDS)
    source.read([])
    refuse("/7/fd", errno.EIO)
    read = source.read([])
    assert read.processes[7].gpu_minors_open == {0}
    assert (read.state, read.unreadable) == (SourceState.OK, {"malformed": 1})


def test_the_size_of_unreadable_mappings_is_absent_and_not_zero(
    tree: ProcTree, source: ProcfsSource, refuse: Refuse
) -> None:
    tree.add(7, fds=CUDA_FDS, maps=maps_line(0x1000, 4096))
    refuse("/7/maps", errno.EACCES)
    read = source.read([])
    assert read.processes[7].uvm_open
    assert read.processes[7].uvm_mapping_bytes is None
    assert read.state is SourceState.DEGRADED


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL, errno.ENODEV])
def test_an_unreadable_process_is_counted_and_named_and_does_not_affect_others(
    tree: ProcTree, source: ProcfsSource, refuse: Refuse, number: int
) -> None:
    tree.add(7, fds=CUDA_FDS)
    tree.add(8, fds=CUDA_FDS)
    refuse("/7/stat", number)
    read = source.read([7, 8])
    assert set(read.processes) == {8}
    assert (read.state, read.reason, read.errors, read.all_visible) == (SourceState.OK, None, 0, True)
    assert read.unreadable == {"malformed": 1}
    assert read.unreadable_processes == (UnreadableProcess(7, None, UnreadableReason.MALFORMED, os.strerror(number)),)


def test_an_agent_without_descriptors_keeps_the_last_answer_and_says_why(
    tree: ProcTree, source: ProcfsSource, refuse: Refuse
) -> None:
    tree.add(7, fds=CUDA_FDS)
    before = source.read([7])
    refuse("/7/stat", errno.EMFILE)
    read = source.read([7])
    assert (read.processes, read.state, read.unreadable) == (before.processes, SourceState.DEGRADED, {})
    assert read.reason == "Too many open files; the processes of the last answer are used"


def test_a_process_with_an_unreadable_cgroup_keeps_its_workload(
    tree: ProcTree, source: ProcfsSource, refuse: Refuse
) -> None:
    tree.add(7, cgroup=f"0::/docker/{CONTAINER}\n")
    source.read([7])
    refuse("/7/cgroup", errno.EIO)
    read = source.read([7])
    assert read.processes[7].workload.id == CONTAINER
    assert (read.state, read.unreadable) == (SourceState.OK, {"malformed": 1})


def test_files_in_place_of_directories_do_not_raise(tree: ProcTree, source: ProcfsSource) -> None:
    tree.write("9", "not a process")
    directory = tree.add(7)
    (directory / "fd/0").unlink()
    (directory / "fd").rmdir()
    (directory / "fd").write_text("not a directory")
    read = source.read([7, 9])
    assert set(read.processes) == {7}
    assert (read.state, read.unreadable) == (SourceState.OK, {"malformed": 2})


# ---------------------------------------------------------------------------- unavailable and incomplete procfs


def test_the_reason_for_a_missing_root_names_the_fix(tmp_path: Path, clock: ManualClock) -> None:
    read = ProcfsSource(tmp_path / "missing", clock, own_proc=tmp_path).read([1])
    assert (read.processes, read.state, read.errors) == ({}, SourceState.UNAVAILABLE, 1)
    assert read.reason is not None
    for part in (str(tmp_path / "missing"), "No such file", "--proc-root", "HOST_PROC"):
        assert part in read.reason
    assert "\n" not in read.reason


@pytest.mark.parametrize("content", [None, "cpu 1 2 3\n", ""])
def test_a_directory_without_processes_and_boot_time_is_not_a_procfs(
    tmp_path: Path, clock: ManualClock, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "stat").write_text(content)
    assert ProcfsSource(tmp_path, clock).read([]).state is SourceState.UNAVAILABLE


@pytest.mark.parametrize("content", [None, b"cpu 1 2 3\n", b"", b"btime \xff\n"])
def test_without_a_boot_time_only_the_start_times_are_missing(
    tree: ProcTree, source: ProcfsSource, content: bytes | None
) -> None:
    if content is None:
        (tree.root / "stat").unlink()
    else:
        tree.write("stat", content)
    tree.add(7, comm=b"train", start_ticks=900, fds=CUDA_FDS, cgroup=f"0::/docker/{CONTAINER}\n")
    read = source.read([1])
    assert set(read.processes) == {1, 7}
    facts = read.processes[7]
    assert (facts.key, facts.name, facts.start_time_s) == ((7, 900), "train", None)
    assert facts.workload.id == CONTAINER
    assert read.state is SourceState.DEGRADED
    assert read.reason == f"start times are unknown: {tree.root}/stat has no readable btime"
    assert read.errors == 1


def test_start_times_follow_when_the_boot_time_becomes_readable(tree: ProcTree, source: ProcfsSource) -> None:
    (tree.root / "stat").unlink()
    tree.add(7, comm=b"bash", start_ticks=100)
    source.read([7])
    tree.set_btime(1_700_000_000)
    tree.add(7, comm=b"python3", start_ticks=100)
    read = source.read([7])
    assert (read.processes[7].name, read.processes[7].start_time_s) == ("bash", 1_700_000_001.0)
    assert (read.state, read.reason) == (SourceState.OK, None)


def test_the_boot_time_persists_while_it_is_unreadable(tree: ProcTree, source: ProcfsSource, refuse: Refuse) -> None:
    source.read([])
    refuse("/proc/stat", errno.EIO)
    tree.add(7, start_ticks=100)
    read = source.read([7])
    assert (read.state, read.processes[7].start_time_s) == (SourceState.OK, 1_700_000_001.0)


def test_a_file_as_root_is_unavailable(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "proc").write_text("")
    assert ProcfsSource(tmp_path / "proc", clock).read([]).state is SourceState.UNAVAILABLE


def test_a_root_that_appears_again_is_read_again(tree: ProcTree, source: ProcfsSource) -> None:
    tree.add(7, fds=CUDA_FDS)
    hidden = tree.root.with_name("elsewhere")
    tree.root.rename(hidden)
    assert source.read([]).state is SourceState.UNAVAILABLE
    hidden.rename(tree.root)
    read = source.read([])
    assert (read.state, set(read.processes)) == (SourceState.OK, {7})


def test_the_empty_directory_of_a_removed_mount_is_unavailable(tree: ProcTree, source: ProcfsSource) -> None:
    source.read([])
    tree.root.rename(tree.root.with_name("elsewhere"))
    tree.root.mkdir()
    assert source.read([]).state is SourceState.UNAVAILABLE


def test_the_reason_names_a_mount_with_hidepid_that_hides_process_1(tree: ProcTree, source: ProcfsSource) -> None:
    tree.remove(1)
    tree.add(7, fds=CUDA_FDS)
    tree.write("mounts", "tmpfs /run tmpfs rw 0 0\nproc /proc proc rw,relatime,hidepid=invisible 0 0\n")
    read = source.read([])
    assert set(read.processes) == {7}
    assert read.state is SourceState.DEGRADED
    assert read.reason is not None
    assert "hidepid" in read.reason


def test_without_hidepid_a_missing_process_1_gives_no_reason(tree: ProcTree, source: ProcfsSource) -> None:
    tree.remove(1)
    tree.write("mounts", "proc /proc proc rw,relatime 0 0\n")
    assert source.read([]).state is SourceState.OK


def test_the_reason_names_hidepid_if_listed_processes_are_unreadable(
    tree: ProcTree, source: ProcfsSource, refuse: Refuse
) -> None:
    for pid in range(100, 120):
        tree.add(pid)
        refuse(f"/{pid}", errno.EPERM)
    read = source.read([])
    assert read.state is SourceState.DEGRADED
    assert read.reason is not None
    assert "hidepid" in read.reason
    assert read.errors == 1


def test_unreadable_processes_count_towards_the_budget(
    tree: ProcTree, clock: ManualClock, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in range(100, 200):
        tree.add(pid)
        refuse(f"/{pid}", errno.EPERM)
    source = ProcfsSource(tree.root, clock, own_proc=tree.root, descriptors_per_cycle=20, descriptors_per_process=5)
    reads = Reads(monkeypatch)
    for _ in range(3):
        reads.count.clear()
        source.read([])
        assert reads.count["open"] <= 25


def test_the_reason_names_a_private_cgroup_namespace_that_hides_a_workload(
    tree: ProcTree, source: ProcfsSource
) -> None:
    tree.add(7, fds=CUDA_FDS, cgroup="0::/\n")
    tree.set_namespaces()
    assert source.read([]).state is SourceState.OK
    tree.set_namespaces(cgroup=4026532999)
    read = source.read([])
    assert read.processes[7].workload == UNIDENTIFIED_WORKLOAD
    assert read.state is SourceState.DEGRADED
    assert read.reason == (
        "the workload of 1 process is unknown: the cgroup does not identify it in the agent's cgroup namespace: "
        "run the agent in the host's cgroup namespace (docker run --cgroupns=host)"
    )


@pytest.mark.parametrize("text", ["0::/\n", "4:memory:/\n0::/\n"])
@pytest.mark.parametrize("is_known", [True, False])
def test_the_root_cgroup_is_the_host_unless_the_cgroup_namespace_is_private(
    tree: ProcTree, source: ProcfsSource, text: str, is_known: bool
) -> None:
    if is_known:
        tree.set_namespaces()
    tree.add(7, cgroup=text)
    read = source.read([7])
    assert (read.processes[7].workload, read.state) == (HOST_WORKLOAD, SourceState.OK)


@pytest.mark.parametrize("text", [b"", b"\xff\xfe\x00", b"rubbish\n", b"0::/..\n", b"0::/../x\n4:memory:/\n"])
def test_a_cgroup_without_a_known_form_is_unidentified_and_not_the_host(
    tree: ProcTree, source: ProcfsSource, text: bytes
) -> None:
    for pid in (7, 8):
        tree.add(pid, fds=CUDA_FDS, cgroup=text)
    tree.add(9, fds=CUDA_FDS, cgroup=f"0::/docker/{CONTAINER}\n")
    read = source.read([])
    workloads = {pid: facts.workload for pid, facts in read.processes.items()}
    assert (workloads[7], workloads[8], workloads[9].id) == (UNIDENTIFIED_WORKLOAD, UNIDENTIFIED_WORKLOAD, CONTAINER)
    assert (read.state, read.reason, read.unreadable) == (SourceState.OK, None, {"unidentified": 2})
    assert [process.pid for process in read.unreadable_processes] == [7, 8]


def test_a_process_with_a_cgroup_that_was_never_readable_is_unidentified(
    tree: ProcTree, source: ProcfsSource, refuse: Refuse
) -> None:
    tree.add(7)
    refuse("/7/cgroup", errno.EIO)
    read = source.read([7])
    assert read.processes[7].workload == UNIDENTIFIED_WORKLOAD
    assert read.unreadable == {"malformed": 1}
    refuse("/7/cgroup", 0)
    assert source.read([7]).processes[7].workload == HOST_WORKLOAD


@pytest.mark.parametrize("text", [b"0::/\n", b"", b"rubbish"])
def test_the_workload_persists_if_the_cgroup_no_longer_identifies_it(
    tree: ProcTree, source: ProcfsSource, text: bytes
) -> None:
    tree.add(7, cgroup=f"0::/docker/{CONTAINER}\n")
    source.read([7])
    tree.add(7, cgroup=text)
    read = source.read([7])
    assert (read.processes[7].workload.id, read.state) == (CONTAINER, SourceState.OK)


# ---------------------------------------------------------------------------- pid namespaces


@pytest.fixture
def own_proc(tmp_path: Path) -> ProcTree:
    """The ``/proc`` of an agent in a private pid namespace."""
    own = ProcTree(tmp_path / "own")
    own.set_namespaces(pid=4026532178)
    own.set_own_pids("7")
    return own


PRIVATE = (
    "NVML does not show processes outside the agent's pid namespace: "
    "run the agent in the host's pid namespace (docker run --pid=host, in Kubernetes hostPID: true)"
)


def test_a_private_pid_namespace_degrades_and_the_reason_names_the_fix(own_proc: ProcTree, clock: ManualClock) -> None:
    own_proc.add(7, fds=CUDA_FDS)
    read = ProcfsSource(own_proc.root, clock, own_proc=own_proc.root).read([])
    assert (read.state, read.reason, read.errors) == (SourceState.DEGRADED, PRIVATE, 1)
    assert (read.pids_complete, read.pids_are_own) == (False, True)
    assert set(read.processes) == {7}


def test_pids_of_a_hosts_proc_mounted_elsewhere_are_not_the_agents_own(
    tree: ProcTree, own_proc: ProcTree, clock: ManualClock
) -> None:
    source = ProcfsSource(tree.root, clock, own_proc=own_proc.root)
    for nspid in (None, "4711\t7"):
        if nspid is not None:
            tree.set_own_pids(nspid)
        read = source.read([])
        assert (read.reason, read.pids_complete, read.pids_are_own) == (PRIVATE, False, False)


def test_in_the_hosts_pid_namespace_pids_are_complete_under_any_root(
    tree: ProcTree, own_proc: ProcTree, clock: ManualClock
) -> None:
    own_proc.set_namespaces()
    read = ProcfsSource(tree.root, clock, own_proc=own_proc.root).read([])
    assert (read.state, read.pids_complete, read.pids_are_own) == (SourceState.OK, True, True)


def test_an_unknown_pid_namespace_degrades_nothing(tree: ProcTree, clock: ManualClock, tmp_path: Path) -> None:
    read = ProcfsSource(tree.root, clock, own_proc=tmp_path / "missing").read([])
    assert (read.state, read.pids_complete, read.pids_are_own) == (SourceState.OK, True, True)


def test_the_pid_namespace_is_known_without_a_procfs_too(
    own_proc: ProcTree, clock: ManualClock, tmp_path: Path
) -> None:
    read = ProcfsSource(tmp_path / "missing", clock, own_proc=own_proc.root).read([])
    assert (read.state, read.pids_complete, read.pids_are_own) == (SourceState.UNAVAILABLE, False, False)


def test_the_agents_pid_namespace_is_read_once(own_proc: ProcTree, clock: ManualClock) -> None:
    source = ProcfsSource(own_proc.root, clock, own_proc=own_proc.root)
    source.read([])
    own_proc.set_namespaces()
    assert source.read([]).pids_complete is False


# ---------------------------------------------------------------------------- resources


def test_no_descriptor_is_left_open(tree: ProcTree, source: ProcfsSource, tmp_path: Path) -> None:
    tree.add(7, fds=CUDA_FDS)
    tree.write("8/stat", b"")
    before = set(Path("/proc/self/fd").iterdir())
    for _ in range(3):
        source.read([7, 8])
        ProcfsSource(tmp_path, ManualClock()).read([])
    assert set(Path("/proc/self/fd").iterdir()) == before
