from __future__ import annotations

import pytest

from otel_gpu.model import MigAccess
from otel_gpu.sources.proc.host import (
    cgroup_namespace_is_initial,
    parse_gpu_information,
    parse_mig_minors,
    parse_namespace_inode,
    parse_nspid,
    pid_namespace_is_initial,
    read_boot_id,
    read_mig_minors,
    read_nvidia_minors,
    shows_own_pids,
)
from tests.proc_tree import ProcTree

UUID_A = "GPU-6d1bcf1a-3d55-4b07-9e0e-0d0f6bfd2f5c"
UUID_B = "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"


def test_the_initial_namespaces_have_fixed_inodes(tree: ProcTree) -> None:
    tree.set_namespaces()
    assert pid_namespace_is_initial(tree.root) is True
    assert cgroup_namespace_is_initial(tree.root) is True


def test_private_namespaces_are_not_the_initial_ones(tree: ProcTree) -> None:
    tree.set_namespaces(pid=4026532178, cgroup=4026532179)
    assert pid_namespace_is_initial(tree.root) is False
    assert cgroup_namespace_is_initial(tree.root) is False


def test_pid_and_cgroup_namespaces_are_independent(tree: ProcTree) -> None:
    tree.set_namespaces(cgroup=4026532179)
    assert (pid_namespace_is_initial(tree.root), cgroup_namespace_is_initial(tree.root)) == (True, False)


def test_an_unreadable_namespace_is_unknown(tree: ProcTree) -> None:
    assert pid_namespace_is_initial(tree.root) is None
    assert cgroup_namespace_is_initial(tree.root / "missing") is None
    tree.set_namespaces()
    (tree.root / "self/ns/pid").unlink()
    (tree.root / "self/ns/pid").symlink_to("elsewhere")
    assert pid_namespace_is_initial(tree.root) is None


@pytest.mark.parametrize("link", ["", "pid:[]", "pid:[x]", "pid:4026531836", "pid:[-1]", "pid:[1] ", "pid:[٣]"])
def test_a_malformed_namespace_link_has_no_inode(link: str) -> None:
    assert parse_namespace_inode(link) is None


@pytest.mark.parametrize(("nspid", "own"), [("7", True), ("4711\t7", False), ("4711\t31\t7", False)])
def test_in_the_procfs_of_its_own_pid_namespace_a_process_has_one_pid(tree: ProcTree, nspid: str, own: bool) -> None:
    tree.set_own_pids(nspid)
    assert shows_own_pids(tree.root) is own


def test_without_nspid_it_is_unknown_whether_pids_are_own(tree: ProcTree) -> None:
    assert shows_own_pids(tree.root) is None
    tree.write("self/status", "Name:\tx\nPid:\t7\n")  # kernels before 4.1
    assert shows_own_pids(tree.root) is None


@pytest.mark.parametrize(
    "line", ["", "NSpid:", "NSpid:\t", "NSpid:\tx", "NSpid:\t-1", "xNSpid:\t1", "NSpid:\t" + "9" * 99]
)
def test_a_malformed_list_of_pids_is_empty(line: str) -> None:
    assert parse_nspid(f"Name:\tx\n{line}\nThreads:\t1\n") == ()


def test_the_boot_id_has_no_newline(tree: ProcTree) -> None:
    tree.write("sys/kernel/random/boot_id", "3b3da65c-edea-439f-be4c-96425d1ab687\n")
    assert read_boot_id(tree.root) == "3b3da65c-edea-439f-be4c-96425d1ab687"


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"not a uuid\n"])
def test_a_malformed_boot_id_is_absent(tree: ProcTree, content: bytes) -> None:
    tree.write("sys/kernel/random/boot_id", content)
    assert read_boot_id(tree.root) is None


def test_a_missing_boot_id_is_absent(tree: ProcTree) -> None:
    assert read_boot_id(tree.root) is None
    (tree.root / "sys/kernel/random/boot_id").mkdir(parents=True)
    assert read_boot_id(tree.root) is None


def test_gpu_uuids_are_returned_by_device_minor(tree: ProcTree) -> None:
    tree.add_gpu("0000:3b:00.0", 1, UUID_A)
    tree.add_gpu("0000:86:00.0", 0, UUID_B)
    assert read_nvidia_minors(tree.root) == {1: UUID_A, 0: UUID_B}


def test_an_unreadable_gpu_does_not_affect_others(tree: ProcTree) -> None:
    tree.add_gpu("0000:3b:00.0", 1, UUID_A)
    (tree.root / "driver/nvidia/gpus/0000:86:00.0").mkdir()
    (tree.root / "driver/nvidia/gpus/0000:87:00.0/information").mkdir(parents=True)
    tree.write("driver/nvidia/gpus/0000:88:00.0/information", b"\xff\x00\xfe")
    assert read_nvidia_minors(tree.root) == {1: UUID_A}


def test_a_gpu_that_was_never_opened_has_no_uuid() -> None:
    text = "GPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 0\n"
    assert parse_gpu_information(text) is None


@pytest.mark.parametrize("minor", ["", "-1", "x", "٣", "9" * 5000])
def test_a_malformed_minor_is_absent(minor: str) -> None:
    assert parse_gpu_information(f"GPU UUID: {UUID_A}\nDevice Minor: {minor}\n") is None


def test_without_a_driver_there_are_no_minors(tree: ProcTree) -> None:
    assert read_nvidia_minors(tree.root) == {}
    assert read_mig_minors(tree.root) == {}


def test_mig_instances_are_returned_by_capability_minor(tree: ProcTree) -> None:
    tree.write(
        "driver/nvidia-caps/mig-minors",
        "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu7/gi14/ci6/access 1214\n",
    )
    assert read_mig_minors(tree.root) == {
        12: (0, 1, None),
        13: (0, 1, 0),
        1214: MigAccess(gpu_minor=7, gpu_instance_id=14, compute_instance_id=6),
    }


def test_lines_without_an_instance_are_skipped() -> None:
    text = "gpu0/gi1/access\ngpu0/gi/access 3\ngpu0/gi1/ci/access 4\ngpux/gi1/access 5\n\n12\ngpu0/gi1/access 6 7\n"
    assert parse_mig_minors(text) == {}
