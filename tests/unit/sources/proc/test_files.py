from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from otel_gpu.sources.proc.files import (
    DIRECTORY_FLAGS,
    DeviceKind,
    DeviceNode,
    FileId,
    MapsRead,
    ProcessDir,
    is_device,
    is_root_cgroup,
    list_processes,
    parse_btime,
    parse_device_link,
    parse_fd_size,
    parse_majors,
    parse_maps,
    parse_stat,
    read_file,
)
from tests.proc_tree import UVM as UVM_PATH
from tests.proc_tree import ProcTree, maps_line, stat_text

GPU0 = DeviceNode(DeviceKind.GPU, 0)
UVM = DeviceNode(DeviceKind.UVM)


@pytest.fixture
def root_fd(tree: ProcTree) -> Iterator[int]:
    fd = os.open(tree.root, DIRECTORY_FLAGS)
    yield fd
    os.close(fd)


# ---------------------------------------------------------------------------- stat


def test_stat_has_name_state_flags_threads_and_start() -> None:
    stat = parse_stat(stat_text(7, b"train", start_ticks=89812, state="D", threads=12, flags=0x400000))
    assert stat is not None
    assert (stat.comm, stat.state, stat.threads, stat.flags, stat.start_ticks) == (b"train", "D", 12, 0x400000, 89812)


@pytest.mark.parametrize(
    "comm", [b"", b"a b", b"(sd-pam)", b") R 1 2 3", b"a\nb", b"((", b"))", b"\xff\xfe", b"7 (x) S"]
)
def test_any_bytes_are_a_valid_name(comm: bytes) -> None:
    stat = parse_stat(stat_text(7, comm, start_ticks=42))
    assert stat is not None
    assert (stat.comm, stat.start_ticks) == (comm, 42)


@pytest.mark.parametrize(
    "data",
    [b"", b"7", b"7 (a", b"7 a) S", b")(", b"7 (a) S 1 2", stat_text(7).replace(b" 1000 ", b" -5 "), b"\x00" * 100],
)
def test_malformed_stat_is_absent(data: bytes) -> None:
    assert parse_stat(data) is None


def test_a_truncated_stat_is_absent_and_not_wrong() -> None:
    whole = stat_text(7, start_ticks=1000)
    assert parse_stat(whole[: whole.index(b"1000")]) is None


def test_kernel_threads_have_a_flag() -> None:
    kernel, user = parse_stat(stat_text(7, flags=0x00208040)), parse_stat(stat_text(7, flags=0x00400000))
    assert kernel is not None
    assert user is not None
    assert (kernel.is_kernel_thread, user.is_kernel_thread) == (True, False)


@pytest.mark.parametrize(
    ("state", "threads", "alive"),
    [("S", 1, True), ("R", 4, True), ("Z", 1, False), ("X", 1, False), ("x", 1, False), ("Z", 2, True)],
)
def test_a_zombie_is_alive_while_other_threads_run(state: str, threads: int, alive: bool) -> None:
    stat = parse_stat(stat_text(7, state=state, threads=threads))
    assert stat is not None
    assert stat.is_alive is alive


# ---------------------------------------------------------------------------- btime, status


def test_the_boot_time_is_found_among_other_lines() -> None:
    assert parse_btime(b"cpu  1 2\nintr 5 6 7\nctxt 9\nbtime 1794804972\nprocesses 3\n") == 1794804972


@pytest.mark.parametrize("data", [b"", b"btime\n", b"btime x\n", b"xbtime 5\n", b"btime -5\n", b"btime " + b"9" * 5000])
def test_a_malformed_boot_time_is_absent(data: bytes) -> None:
    assert parse_btime(data) is None


def test_the_size_of_the_descriptor_table_is_found_in_status() -> None:
    assert parse_fd_size(b"Name:\tx\nFDSize:\t256\nGroups:\t0\n") == 256
    assert parse_fd_size(b"Name:\tx\n") is None


# ---------------------------------------------------------------------------- device links


@pytest.mark.parametrize(
    ("target", "node"),
    [
        ("/dev/nvidia0", GPU0),
        ("/dev/nvidia15", DeviceNode(DeviceKind.GPU, 15)),
        ("/dev/nvidia0 (deleted)", GPU0),
        ("/var/lib/docker/overlay2/abc/merged/dev/nvidia0", GPU0),
        ("/dev/nvidiactl", DeviceNode(DeviceKind.CONTROL)),
        ("/dev/nvidia-uvm", UVM),
        ("/dev/nvidia-uvm (deleted)", UVM),
        ("/dev/nvidia-caps/nvidia-cap12", DeviceNode(DeviceKind.MIG_CAPABILITY, 12)),
        ("/rootfs/dev/nvidia-caps/nvidia-cap2 (deleted)", DeviceNode(DeviceKind.MIG_CAPABILITY, 2)),
    ],
)
def test_a_device_node_is_identified_by_its_path(target: str, node: DeviceNode) -> None:
    assert parse_device_link(target) == node


@pytest.mark.parametrize(
    "target",
    [
        "",
        "/dev/null",
        "socket:[1234]",
        "anon_inode:[eventfd]",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
        "/dev/nvidia",
        "/dev/nvidia0x",
        "/dev/nvidia٣",
        "/dev/nvidia-caps/nvidia-cap",
        "/dev/nvidia-caps/nvidia0",
        "/dev/nvidia-cap1",
        "/dev/nvidia-caps-imex-channels/channel0",
        "/home/someone/nvidia0",
        "/mydev/nvidia0",
        "nvidia0",
        "/dev/nvidia0 (deleted) ",
        "/dev/nvidia" + "9" * 5000,
    ],
)
def test_other_paths_are_not_device_nodes(target: str) -> None:
    assert parse_device_link(target) is None


def test_device_nodes_may_be_in_another_directory() -> None:
    assert parse_device_link("/tmp/x/nvidia0", "/tmp/x") == GPU0
    assert parse_device_link("/dev/nvidia0", "/tmp/x") is None


# ---------------------------------------------------------------------------- cgroup


@pytest.mark.parametrize(
    ("text", "is_root"),
    [
        ("0::/\n", True),
        ("0::/", True),
        ("12:name=systemd:/\n4:cpu,cpuacct:/\n0::/\n", True),
        ("", False),
        ("\n", False),
        ("0::/\n\n", False),
        ("0::/..\n", False),
        ("0::/init.scope\n", False),
        ("4:memory:/docker\n0::/\n", False),
        ("::/\n", False),
        ("0:/\n", False),
        ("0::/ (deleted)\n", False),
        ("\ufffd\ufffd", False),
    ],
)
def test_a_root_cgroup_file_contains_nothing_but_roots(text: str, is_root: bool) -> None:
    assert is_root_cgroup(text) is is_root


# ---------------------------------------------------------------------------- maps


UVM_FILE = FileId(0, 5, 512)


@pytest.mark.parametrize(
    "line",
    [
        b"200000000-200200000 rw-s 200000000 00:05 512      /dev/nvidia-uvm\n",
        b"200000000-200200000 rw-s 200000000 00:05 512      /dev/nvidia-uvm",
        b"200000000-200200000 rw-s 200000000 00:05 512      /dev/nvidia-uvm (deleted)\n",
        b"200000000-200200000 rw-s 200000000 00:05 512      /any/\xff/path\n",
    ],
)
def test_a_mapping_of_the_uvm_node_counts_by_its_size(line: bytes) -> None:
    assert parse_maps([line], frozenset({UVM_FILE})) == 0x200000
    assert parse_maps([line], frozenset({FileId(1, 5, 512), UVM_FILE._replace(inode=513)})) == 0
    assert parse_maps([line], frozenset()) == 0


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"1000-2000 rw-p 00000000 00:00 0 \n",
        b"1000-2000 rw-p 00000000 00:05 512          [heap]\n",
        b"1000-2000 rw-s 00000000 00:05 9            /dev/nvidia-uvm\n",
        b"1000-2000 rw-s 00000000 fe:01 512          /dev/nvidia-uvm\n",
        b"2000-1000 rw-s 00000000 00:05 512          /dev/nvidia-uvm\n",
        b"xyz-2000 rw-s 00000000 00:05 512           /dev/nvidia-uvm\n",
        b"1000 rw-s 00000000 00:05 512               /dev/nvidia-uvm\n",
        b"/dev/nvidia-uvm\n",
    ],
)
def test_other_lines_of_maps_do_not_count(line: bytes) -> None:
    assert parse_maps([line], frozenset({UVM_FILE})) == 0


# ---------------------------------------------------------------------------- devices

DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
195 nvidiactl
234 nvidia-caps
511 nvidia-uvm

Block devices:
  7 loop
260 nvidia-block
"""


def test_majors_come_from_the_drivers_character_devices() -> None:
    assert parse_majors(DEVICES) == {195, 234, 511}
    assert parse_majors("Character devices:\n195 nvidia-frontend\n") == {195}
    for text in ("", "nvidia 195\n", "195  nvidia\n", "195 xnvidia\n", "٣ nvidia\n", "Block devices:\n195 nvidia\n"):
        assert parse_majors(text) == frozenset()


def status(mode: int, major: int, minor: int) -> os.stat_result:
    """A ``stat`` of a file of this type."""
    fields = [0] * 19
    fields[0] = mode
    fields[14 + 4] = os.makedev(major, minor)
    return os.stat_result(fields, {"st_rdev": os.makedev(major, minor)})


@pytest.mark.parametrize(
    ("node", "major", "minor", "expected"),
    [
        (GPU0, 195, 0, True),
        (GPU0, 195, 1, False),  # another GPU under this name
        (GPU0, 195, 255, False),
        (GPU0, 1, 0, False),
        (DeviceNode(DeviceKind.CONTROL), 195, 255, True),
        (DeviceNode(DeviceKind.CONTROL), 195, 0, False),
        (UVM, 511, 0, True),
        (UVM, 510, 0, False),
        (DeviceNode(DeviceKind.MIG_CAPABILITY, 12), 234, 12, True),
    ],
)
def test_a_node_is_a_device_by_its_numbers(node: DeviceNode, major: int, minor: int, expected: bool) -> None:
    majors = frozenset({195, 234, 511})
    assert is_device(node, status(stat.S_IFCHR, major, minor), majors) is expected
    for kind in (stat.S_IFREG, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFDIR):
        assert not is_device(node, status(kind, major, minor), majors)
    assert not is_device(node, status(stat.S_IFCHR, major, minor), frozenset())


# ---------------------------------------------------------------------------- reading


def test_only_decimal_names_are_processes(tree: ProcTree, root_fd: int) -> None:
    tree.add(7)
    for name in ("self", "sys", "7x", "-3", "٣", "1.5"):
        (tree.root / name).mkdir()
    assert set(list_processes(root_fd)) == {1, 7}


def test_a_listing_has_the_inode_of_each_process(tree: ProcTree, root_fd: int) -> None:
    tree.add(7)
    before = list_processes(root_fd)
    assert before[7] == (tree.root / "7").stat().st_ino
    tree.release(7)
    tree.add(7)
    assert list_processes(root_fd)[7] == (tree.root / "7").stat().st_ino != before[7]


def test_an_endless_file_is_read_up_to_the_limit() -> None:
    assert len(read_file("/dev/zero")) == 1 << 20


def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stat")
    assert read_file(str(tmp_path / "stat")) == b""


def test_device_nodes_are_found_among_the_descriptors(tree: ProcTree, root_fd: int) -> None:
    tree.add(7, fds=["/dev/null", "socket:[5]", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"])
    with ProcessDir(root_fd, 7) as directory:
        found = directory.named_devices(cursor=0, limit=100)
    assert {node for _, node in found.nodes} == {GPU0, UVM, DeviceNode(DeviceKind.CONTROL)}
    assert (found.descriptors, found.cursor) == (5, 0)


def test_many_descriptors_are_read_in_slices(tree: ProcTree, root_fd: int) -> None:
    tree.add(7, fds={**dict.fromkeys(range(100), "/dev/null"), 99: "/dev/nvidia0"})
    found: set[DeviceNode] = set()
    cursors = [0]
    with ProcessDir(root_fd, 7) as directory:
        while len(cursors) < 2 or cursors[-1] != 0:
            part = directory.named_devices(cursors[-1], limit=30)
            assert part.descriptors <= 30
            found |= {node for _, node in part.nodes}
            cursors.append(part.cursor)
    assert cursors == [0, 30, 60, 90, 120, 0]  # a table of 128 slots
    assert found == {GPU0}


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENAMETOOLONG, errno.EIO])
def test_a_descriptor_without_a_readable_link_is_skipped(
    tree: ProcTree, root_fd: int, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    tree.add(7, fds=["/dev/null", "/dev/nvidia0"])
    readlink = os.readlink

    def failing(path: str, *, dir_fd: int | None = None) -> str:
        if path == "0":
            raise OSError(number, os.strerror(number))
        return readlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "readlink", failing)
    with ProcessDir(root_fd, 7) as directory:
        assert directory.named_devices(0, 100).nodes == (("1", GPU0),)


def test_only_a_node_of_the_driver_is_verified(tree: ProcTree, root_fd: int, tmp_path: Path) -> None:
    plain = tmp_path / "dev/nvidia0"
    plain.parent.mkdir()
    plain.write_text("not a device")
    tree.add(7, fds=["/dev/nvidia0", UVM_PATH, str(plain), str(tmp_path / "dev/nvidia1")])
    null = Path("/dev/null").stat()
    majors = frozenset({os.major(null.st_rdev)})
    with ProcessDir(root_fd, 7) as directory:
        verified = [
            directory.verify(descriptor, node, majors) for descriptor, node in directory.named_devices(0, 100).nodes
        ]
        without_driver = [
            directory.verify(descriptor, node, frozenset())
            for descriptor, node in directory.named_devices(0, 100).nodes
        ]
    file = FileId(os.major(null.st_dev), os.minor(null.st_dev), null.st_ino)
    assert sorted(filter(None, verified)) == sorted([GPU0, DeviceNode(DeviceKind.UVM, file=file)])
    assert without_driver == [None] * 4


def test_a_file_among_the_descriptors_is_skipped(tree: ProcTree, root_fd: int) -> None:
    tree.add(7, fds=["/dev/nvidia0"])
    tree.write("7/fd/9", "not a link")
    with ProcessDir(root_fd, 7) as directory:
        assert [node for _, node in directory.named_devices(0, 100).nodes] == [GPU0]


def maps_of(root_fd: int, limit_bytes: int) -> MapsRead:
    null = Path("/dev/null").stat()
    file = FileId(os.major(null.st_dev), os.minor(null.st_dev), null.st_ino)
    with ProcessDir(root_fd, 7) as directory:
        return directory.uvm_mapping_bytes(frozenset({file}), limit_bytes)


def test_the_length_of_maps_is_returned(tree: ProcTree, root_fd: int) -> None:
    tree.add(7, maps=maps_line(0x1000, 4096, "/lib/libc.so.6") * 5_000 + maps_line(0x200000000, 1 << 30))
    length = (tree.root / "7/maps").stat().st_size
    assert maps_of(root_fd, 1 << 24) == MapsRead(1 << 30, length)


def test_long_maps_are_read_up_to_the_limit_and_have_no_sum(tree: ProcTree, root_fd: int) -> None:
    tree.add(7, maps=maps_line(0x200000000, 1 << 30) + maps_line(0x1000, 4096, "/lib/libc.so.6") * 50_000)
    read = maps_of(root_fd, 200_000)
    assert read.mapped_bytes is None
    assert 200_000 <= read.read_bytes <= 200_000 + (1 << 16)


def test_maps_without_a_line_end_do_not_count(tree: ProcTree, root_fd: int) -> None:
    tree.add(7, maps=b"\xff" * 1_000_000)
    assert maps_of(root_fd, 1 << 24) == MapsRead(0, 1_000_000)


def test_without_a_cgroup_file_the_cgroup_is_empty(tree: ProcTree, root_fd: int) -> None:
    (tree.add(7) / "cgroup").unlink()
    with ProcessDir(root_fd, 7) as directory:
        assert directory.cgroup() == ""


def test_the_owner_of_a_process_is_the_owner_of_its_directory(tree: ProcTree, root_fd: int) -> None:
    directory_path = tree.add(7)
    with ProcessDir(root_fd, 7) as directory:
        assert directory.owner_uid() == directory_path.stat().st_uid


def test_no_descriptor_is_left_open_after_errors(tree: ProcTree, root_fd: int) -> None:
    process = tree.add(7)
    for name in ("stat", "cgroup", "maps"):
        (process / name).unlink()
        (process / name).mkdir()
    before = set(Path("/proc/self/fd").iterdir())
    with ProcessDir(root_fd, 7) as directory:
        for read in (directory.stat, directory.cgroup, partial(directory.uvm_mapping_bytes, frozenset(), 100)):
            with pytest.raises(OSError, match="directory"):
                read()
    assert set(Path("/proc/self/fd").iterdir()) == before
