from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.model import HOST_WORKLOAD, SourceState
from otel_gpu.sources.procfs import ProcfsSource
from tests.procfs_tree import UVM, ProcTree, Reads, maps_line

CONTAINER = "0123456789abcdef" * 4
CUDA_FDS = ("/dev/null", "/dev/nvidiactl", UVM, "/dev/nvidia0")


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path / "proc")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def source(tree: ProcTree, clock: ManualClock) -> ProcfsSource:
    return ProcfsSource(tree.root, clock, ticks_per_second=100)


Refuse = Callable[[str, int], None]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Let reading a path that ends like this fail with this error (0: no longer); root may read everything else."""
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


# ---------------------------------------------------------------------------- what cannot be read


@pytest.mark.parametrize("number", [errno.ESRCH, errno.ENOENT])
@pytest.mark.parametrize("file", ["7", "7/stat"])
def test_a_process_that_dies_while_being_read_is_absent_and_no_error(
    tree: ProcTree, source: ProcfsSource, refuse: Refuse, file: str, number: int
) -> None:
    tree.add(7, fds=CUDA_FDS)
    refuse(f"/{file}", number)
    read = source.read([7])
    assert (read.processes, read.state, read.errors) == ({}, SourceState.OK, 0)


@pytest.mark.parametrize("file", ["7/fd", "7/fd/3", "7/maps", "7/cgroup"])
def test_a_process_that_dies_after_its_stat_was_read_is_absent_too(
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
def test_open_files_of_others_need_a_privilege_and_the_reason_names_it(
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
    assert read.reason == "open files of 2 processes are not readable: run as root with CAP_SYS_PTRACE"
    assert read.errors == 1


def test_the_reason_goes_when_the_privilege_comes(tree: ProcTree, source: ProcfsSource, refuse: Refuse) -> None:
    tree.add(7, fds=CUDA_FDS)
    refuse("/7/fd", errno.EACCES)
    assert source.read([]).reason == "open files of 1 process are not readable: run as root with CAP_SYS_PTRACE"
    refuse("/7/fd", 0)
    read = source.read([])
    assert (read.state, read.reason, set(read.processes)) == (SourceState.OK, None, {7})


def test_descriptors_that_became_unreadable_do_not_count_as_closed(
    tree: ProcTree, source: ProcfsSource, refuse: Refuse
) -> None:
    tree.add(7, fds=CUDA_FDS)
    source.read([])
    refuse("/7/fd", errno.EIO)
    read = source.read([])
    assert read.processes[7].gpu_minors_open == {0}
    assert read.state is SourceState.DEGRADED


def test_mappings_that_are_not_readable_are_absent_not_zero(
    tree: ProcTree, source: ProcfsSource, refuse: Refuse
) -> None:
    tree.add(7, fds=CUDA_FDS, maps=maps_line(0x1000, 4096))
    refuse("/7/maps", errno.EACCES)
    read = source.read([])
    assert read.processes[7].uvm_open
    assert read.processes[7].uvm_mapping_bytes is None
    assert read.state is SourceState.DEGRADED


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL, errno.EMFILE, errno.ENODEV])
def test_a_process_that_fails_to_be_read_is_named_in_the_reason_and_spoils_no_other(
    tree: ProcTree, source: ProcfsSource, refuse: Refuse, number: int
) -> None:
    tree.add(7, fds=CUDA_FDS)
    tree.add(8, fds=CUDA_FDS)
    refuse("/7/stat", number)
    read = source.read([7, 8])
    assert set(read.processes) == {8}
    assert read.state is SourceState.DEGRADED
    assert read.reason == f"1 process under {tree.root} could not be read: {os.strerror(number)}"
    assert read.errors == 1


def test_a_cgroup_that_cannot_be_read_leaves_the_last_known_workload(
    tree: ProcTree, source: ProcfsSource, refuse: Refuse
) -> None:
    tree.add(7, cgroup=f"0::/docker/{CONTAINER}\n")
    source.read([7])
    refuse("/7/cgroup", errno.EIO)
    read = source.read([7])
    assert read.processes[7].workload.id == CONTAINER
    assert read.state is SourceState.DEGRADED


@pytest.mark.parametrize("name", ["stat", "comm", "cgroup", "maps", "status"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"\n\n\n", None])
def test_garbage_in_one_process_never_raises_and_spoils_no_other(
    tree: ProcTree, source: ProcfsSource, name: str, content: bytes | None
) -> None:
    directory = tree.add(7, fds=CUDA_FDS)
    tree.add(8, fds=CUDA_FDS)
    if content is None:
        (directory / name).unlink()
        (directory / name).mkdir()
    else:
        (directory / name).write_bytes(content)
    for _ in range(2):
        read = source.read([7, 8])
        assert 8 in read.processes
        assert read.state is not SourceState.UNAVAILABLE


def test_files_where_directories_should_be_never_raise(tree: ProcTree, source: ProcfsSource) -> None:
    tree.write("9", "not a process")
    directory = tree.add(7)
    (directory / "fd/0").unlink()
    (directory / "fd").rmdir()
    (directory / "fd").write_text("not a directory")
    read = source.read([7, 9])
    assert set(read.processes) == {7}
    assert read.state is SourceState.DEGRADED
    assert read.errors == 1


# ---------------------------------------------------------------------------- no procfs, or not all of it


def test_a_missing_root_is_unavailable_and_the_reason_says_what_to_do(tmp_path: Path, clock: ManualClock) -> None:
    read = ProcfsSource(tmp_path / "missing", clock).read([1])
    assert (read.processes, read.state, read.errors) == ({}, SourceState.UNAVAILABLE, 1)
    assert read.reason is not None
    for part in (str(tmp_path / "missing"), "No such file", "--proc-root", "HOST_PROC"):
        assert part in read.reason
    assert "\n" not in read.reason


@pytest.mark.parametrize("content", [None, "cpu 1 2 3\n", ""])
def test_a_directory_without_a_boot_time_is_no_procfs(tmp_path: Path, clock: ManualClock, content: str | None) -> None:
    if content is not None:
        (tmp_path / "stat").write_text(content)
    assert ProcfsSource(tmp_path, clock).read([]).state is SourceState.UNAVAILABLE


def test_a_file_for_a_root_is_unavailable(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "proc").write_text("")
    assert ProcfsSource(tmp_path / "proc", clock).read([]).state is SourceState.UNAVAILABLE


def test_a_root_that_comes_back_is_read_again(tree: ProcTree, source: ProcfsSource) -> None:
    tree.add(7, fds=CUDA_FDS)
    hidden = tree.root.with_name("elsewhere")
    tree.root.rename(hidden)
    assert source.read([]).state is SourceState.UNAVAILABLE
    hidden.rename(tree.root)
    read = source.read([])
    assert (read.state, set(read.processes)) == (SourceState.OK, {7})


def test_a_mount_that_vanishes_and_leaves_an_empty_directory_is_unavailable(
    tree: ProcTree, source: ProcfsSource
) -> None:
    source.read([])
    tree.root.rename(tree.root.with_name("elsewhere"))
    tree.root.mkdir()
    assert source.read([]).state is SourceState.UNAVAILABLE


def test_a_mount_that_hides_the_processes_of_others_is_named(tree: ProcTree, source: ProcfsSource) -> None:
    tree.remove(1)
    tree.add(7, fds=CUDA_FDS)
    tree.write("mounts", "tmpfs /run tmpfs rw 0 0\nproc /proc proc rw,relatime,hidepid=invisible 0 0\n")
    read = source.read([])
    assert set(read.processes) == {7}
    assert read.state is SourceState.DEGRADED
    assert read.reason is not None
    assert "hidepid" in read.reason


def test_a_missing_process_one_alone_is_not_blamed_on_the_mount(tree: ProcTree, source: ProcfsSource) -> None:
    tree.remove(1)
    tree.write("mounts", "proc /proc proc rw,relatime 0 0\n")
    assert source.read([]).state is SourceState.OK


def test_a_mount_that_lists_processes_but_refuses_to_show_them_is_named_too(
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


def test_processes_that_refuse_everything_stay_within_the_budget(
    tree: ProcTree, clock: ManualClock, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in range(100, 200):
        tree.add(pid)
        refuse(f"/{pid}", errno.EPERM)
    source = ProcfsSource(tree.root, clock, descriptors_per_cycle=20, descriptors_per_process=5)
    reads = Reads(monkeypatch)
    for _ in range(3):
        reads.count.clear()
        source.read([])
        assert reads.count["open"] <= 25


def test_a_private_cgroup_namespace_that_hides_the_workload_is_named(tree: ProcTree, source: ProcfsSource) -> None:
    tree.add(7, fds=CUDA_FDS, cgroup="0::/\n")
    tree.set_namespaces()
    assert source.read([]).state is SourceState.OK
    tree.set_namespaces(cgroup=4026532999)
    read = source.read([])
    assert read.processes[7].workload == HOST_WORKLOAD
    assert read.state is SourceState.DEGRADED
    assert read.reason is not None
    assert "cgroup namespace" in read.reason


def test_no_descriptor_is_left_open(tree: ProcTree, source: ProcfsSource, tmp_path: Path) -> None:
    tree.add(7, fds=CUDA_FDS)
    tree.write("8/stat", b"")
    before = set(Path("/proc/self/fd").iterdir())
    for _ in range(3):
        source.read([7, 8])
        ProcfsSource(tmp_path, ManualClock()).read([])
    assert set(Path("/proc/self/fd").iterdir()) == before
