from __future__ import annotations

from pathlib import Path

import pytest

from otel_gpu.model import MigAccess
from otel_gpu.sources.hostfacts import (
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
from tests.procfs_tree import ProcTree

UUID_A = "GPU-6d1bcf1a-3d55-4b07-9e0e-0d0f6bfd2f5c"
UUID_B = "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path / "proc")


def test_the_initial_namespaces_are_known_by_their_fixed_inodes(tree: ProcTree) -> None:
    tree.set_namespaces()
    assert pid_namespace_is_initial(tree.root) is True
    assert cgroup_namespace_is_initial(tree.root) is True


def test_a_container_of_its_own_is_not_in_the_initial_namespaces(tree: ProcTree) -> None:
    tree.set_namespaces(pid=4026532178, cgroup=4026532179)
    assert pid_namespace_is_initial(tree.root) is False
    assert cgroup_namespace_is_initial(tree.root) is False


def test_the_two_namespaces_are_told_apart(tree: ProcTree) -> None:
    tree.set_namespaces(cgroup=4026532179)
    assert (pid_namespace_is_initial(tree.root), cgroup_namespace_is_initial(tree.root)) == (True, False)


def test_a_tree_that_cannot_tell_the_namespace_is_not_taken_for_either(tree: ProcTree) -> None:
    assert pid_namespace_is_initial(tree.root) is None
    assert cgroup_namespace_is_initial(tree.root / "missing") is None
    tree.set_namespaces()
    (tree.root / "self/ns/pid").unlink()
    (tree.root / "self/ns/pid").symlink_to("elsewhere")
    assert pid_namespace_is_initial(tree.root) is None


@pytest.mark.parametrize("link", ["", "pid:[]", "pid:[x]", "pid:4026531836", "pid:[-1]", "pid:[1] ", "pid:[٣]"])
def test_what_is_no_namespace_link_has_no_inode(link: str) -> None:
    assert parse_namespace_inode(link) is None


@pytest.mark.parametrize(("nspid", "own"), [("7", True), ("4711\t7", False), ("4711\t31\t7", False)])
def test_a_procfs_of_the_readers_own_pid_namespace_knows_it_by_one_pid_only(
    tree: ProcTree, nspid: str, own: bool
) -> None:
    tree.set_own_pids(nspid)
    assert shows_own_pids(tree.root) is own


def test_a_tree_without_the_reader_in_it_cannot_tell_whose_pids_it_shows(tree: ProcTree) -> None:
    assert shows_own_pids(tree.root) is None
    tree.write("self/status", "Name:\tx\nPid:\t7\n")  # kernels before 4.1
    assert shows_own_pids(tree.root) is None


@pytest.mark.parametrize(
    "line", ["", "NSpid:", "NSpid:\t", "NSpid:\tx", "NSpid:\t-1", "xNSpid:\t1", "NSpid:\t" + "9" * 99]
)
def test_what_is_no_list_of_pids_has_none(line: str) -> None:
    assert parse_nspid(f"Name:\tx\n{line}\nThreads:\t1\n") == ()


def test_the_boot_id_is_read_without_its_newline(tree: ProcTree) -> None:
    tree.write("sys/kernel/random/boot_id", "3b3da65c-edea-439f-be4c-96425d1ab687\n")
    assert read_boot_id(tree.root) == "3b3da65c-edea-439f-be4c-96425d1ab687"


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"not a uuid\n"])
def test_a_boot_id_that_is_none_is_absent(tree: ProcTree, content: bytes) -> None:
    tree.write("sys/kernel/random/boot_id", content)
    assert read_boot_id(tree.root) is None


def test_without_the_file_there_is_no_boot_id(tree: ProcTree) -> None:
    assert read_boot_id(tree.root) is None
    (tree.root / "sys/kernel/random/boot_id").mkdir(parents=True)
    assert read_boot_id(tree.root) is None


def test_device_minors_lead_to_gpu_uuids(tree: ProcTree) -> None:
    tree.add_gpu("0000:3b:00.0", 1, UUID_A)
    tree.add_gpu("0000:86:00.0", 0, UUID_B)
    assert read_nvidia_minors(tree.root) == {1: UUID_A, 0: UUID_B}


def test_one_unreadable_gpu_does_not_hide_the_others(tree: ProcTree) -> None:
    tree.add_gpu("0000:3b:00.0", 1, UUID_A)
    (tree.root / "driver/nvidia/gpus/0000:86:00.0").mkdir()
    (tree.root / "driver/nvidia/gpus/0000:87:00.0/information").mkdir(parents=True)
    tree.write("driver/nvidia/gpus/0000:88:00.0/information", b"\xff\x00\xfe")
    assert read_nvidia_minors(tree.root) == {1: UUID_A}


def test_a_gpu_that_nobody_has_opened_yet_has_no_uuid_to_tell() -> None:
    text = "GPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 0\n"
    assert parse_gpu_information(text) is None


@pytest.mark.parametrize("minor", ["", "-1", "x", "٣", "9" * 5000])
def test_a_minor_that_is_no_number_is_absent(minor: str) -> None:
    assert parse_gpu_information(f"GPU UUID: {UUID_A}\nDevice Minor: {minor}\n") is None


def test_without_the_nvidia_driver_there_are_no_minors(tree: ProcTree) -> None:
    assert read_nvidia_minors(tree.root) == {}
    assert read_mig_minors(tree.root) == {}


def test_capability_minors_lead_to_mig_instances(tree: ProcTree) -> None:
    tree.write(
        "driver/nvidia-caps/mig-minors",
        "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu7/gi14/ci6/access 1214\n",
    )
    assert read_mig_minors(tree.root) == {
        12: (0, 1, None),
        13: (0, 1, 0),
        1214: MigAccess(gpu_minor=7, gpu_instance_id=14, compute_instance_id=6),
    }


def test_lines_that_name_no_instance_are_passed_over() -> None:
    text = "gpu0/gi1/access\ngpu0/gi/access 3\ngpu0/gi1/ci/access 4\ngpux/gi1/access 5\n\n12\ngpu0/gi1/access 6 7\n"
    assert parse_mig_minors(text) == {}
