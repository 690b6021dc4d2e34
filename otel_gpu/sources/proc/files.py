"""Read and parse the files of processes under ``/proc``.

``proc(5)`` and the kernel's ``Documentation/filesystems/proc.rst`` describe the formats. Parsers never raise: they
return ``None`` for text of another format.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from types import TracebackType
from typing import BinaryIO, Final, NamedTuple, Self

DEVICE_DIR: Final = "/dev"
DELETED: Final = " (deleted)"
"""The suffix that the kernel's ``d_path`` adds to the path of an unlinked file."""

_PF_EXITING: Final = 0x00000004  # include/linux/sched.h
_PF_KTHREAD: Final = 0x00200000
_ENDED: Final = frozenset("ZXx")

# O_NONBLOCK: a FIFO in a directory that is not a procfs must not block the agent.
_FILE_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
_FILE_LIMIT_BYTES: Final = 1 << 20
_CHUNK_BYTES: Final = 4096
MAPS_BLOCK_BYTES: Final = 1 << 16
_CONCERNS_ALL: Final = frozenset({errno.EACCES, errno.EPERM, errno.ESRCH})
_THREADS_TRIED: Final = 16
"""Threads of a process whose main thread has exited: another one may end just before it is read."""

_BTIME: Final = re.compile(rb"^btime +([0-9]{1,18})$", re.MULTILINE)
_ROOT_CGROUP: Final = re.compile(r"(?:[0-9]{1,10}:[^:\n]*:/(?:\n|\Z))+")
_FD_SIZE: Final = re.compile(rb"^FDSize:[ \t]*([0-9]{1,10})$", re.MULTILINE)
# start-end permissions offset major:minor inode path
_MAPS_LINE: Final = re.compile(
    rb"([0-9a-f]{1,16})-([0-9a-f]{1,16}) [^ ]+ [^ ]+ ([0-9a-f]{2,8}):([0-9a-f]{2,8}) ([0-9]{1,20}) +/"
)
_NVIDIA_DEVICE: Final = re.compile(r"^ *([0-9]{1,6}) nvidia[!-~]{0,64}$", re.MULTILINE)
_UVM_NAME: Final = "nvidia-uvm"
_GPU_NODE: Final = re.compile(r"nvidia([0-9]{1,6})")
_MIG_CAP_NODE: Final = re.compile(r"nvidia-cap([0-9]{1,6})")


# ---------------------------------------------------------------------------- parsing


@dataclass(frozen=True, slots=True)
class Stat:
    """Fields of ``/proc/<pid>/stat``. ``comm`` is any bytes; the start is in clock ticks since boot."""

    comm: bytes
    state: str
    flags: int
    threads: int
    start_ticks: int

    @property
    def is_kernel_thread(self) -> bool:
        """Whether this is a kernel thread, which has no open files."""
        return bool(self.flags & _PF_KTHREAD)

    @property
    def is_alive(self) -> bool:
        """Whether a thread is running. A main thread that exits before the others is a zombie too."""
        return self.state not in _ENDED or self.threads > 1

    @property
    def is_leader_exiting(self) -> bool:
        """Whether the main thread is exiting while others run. Its files no longer show what the process holds."""
        return self.is_exiting and self.threads > 1

    @property
    def is_exiting(self) -> bool:
        """Whether the main thread has exited or is exiting. Its files are closed, and only root may look.

        fs/proc/base.c, ``task_dump_owner``: a process without an address space belongs to root.
        """
        return self.state in _ENDED or bool(self.flags & _PF_EXITING)


class DeviceKind(StrEnum):
    """What a device node of the NVIDIA driver gives access to."""

    GPU = "gpu"
    CONTROL = "control"
    UVM = "uvm"
    MIG_CAPABILITY = "mig_capability"


class FileId(NamedTuple):
    """What identifies a file: the numbers of its file system, and its inode."""

    major: int
    minor: int
    inode: int


class DeviceNode(NamedTuple):
    """A device node, with its number if the kind has numbers. ``file`` identifies a node that can be mapped."""

    kind: DeviceKind
    number: int | None = None
    file: FileId | None = None


_GPU_MAJOR: Final = (
    195  # nv-linux.h (NV_MAJOR_DEVICE_NUMBER). Other majors of the driver are assigned when it is loaded.
)
_CONTROL_MINOR: Final = 255


def parse_stat(data: bytes) -> Stat | None:
    """Name, state, flags, threads and start (clock ticks since boot) from ``/proc/<pid>/stat``."""
    # The process chooses comm, which may contain parentheses and newlines. No later field contains a parenthesis.
    opening, closing = data.find(b"("), data.rfind(b")")
    if opening < 0 or closing < opening:
        return None
    fields = data[closing + 1 :].split(None, 20)  # fields[0] is field 3 of proc(5); the last one needed is 22
    if len(fields) < 20:
        return None
    flags, threads, start_ticks = _natural(fields[6]), _natural(fields[17]), _natural(fields[19])
    if flags is None or threads is None or start_ticks is None:
        return None
    state = fields[0].decode("ascii", "replace")
    return Stat(data[opening + 1 : closing], state, flags, threads, start_ticks)


def parse_btime(data: bytes) -> int | None:
    """Boot time in Unix seconds from ``/proc/stat``."""
    found = _BTIME.search(data)
    return int(found[1]) if found else None


def is_root_cgroup(text: str) -> bool:
    """Whether ``/proc/<pid>/cgroup`` contains the root of every hierarchy and nothing else."""
    return _ROOT_CGROUP.fullmatch(text) is not None


def parse_fd_size(data: bytes) -> int | None:
    """Size of the descriptor table from ``/proc/<pid>/status``: every open descriptor has a lower number."""
    found = _FD_SIZE.search(data)
    return int(found[1]) if found else None


def parse_device_link(target: str, device_dir: str = DEVICE_DIR) -> DeviceNode | None:
    """The NVIDIA device node that the link of a descriptor names; ``device_dir`` may be below any directory."""
    if "nvidia" not in target:
        return None
    directory, _, name = target.removesuffix(DELETED).rpartition("/")
    if directory.endswith(f"{device_dir}/nvidia-caps"):
        cap = _MIG_CAP_NODE.fullmatch(name)
        return DeviceNode(DeviceKind.MIG_CAPABILITY, int(cap[1])) if cap else None
    if not directory.endswith(device_dir):
        return None
    if name == "nvidiactl":
        return DeviceNode(DeviceKind.CONTROL)
    if name == _UVM_NAME:
        return DeviceNode(DeviceKind.UVM)
    gpu = _GPU_NODE.fullmatch(name)
    return DeviceNode(DeviceKind.GPU, int(gpu[1])) if gpu else None


def parse_majors(text: str) -> frozenset[int]:
    """The major numbers of NVIDIA's character devices in ``/proc/devices``."""
    return frozenset(int(major) for major in _NVIDIA_DEVICE.findall(text.partition("Block devices:")[0]))


def is_device(node: DeviceNode, status: os.stat_result, majors: frozenset[int]) -> bool:
    """Whether an open file is a device of NVIDIA's driver, as its name says. Any file may have such a name."""
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    if not stat.S_ISCHR(status.st_mode) or major not in majors:
        return False
    return major != _GPU_MAJOR or minor == (_CONTROL_MINOR if node.kind is DeviceKind.CONTROL else node.number)


def parse_maps(lines: Iterable[bytes], files: frozenset[FileId]) -> int:
    """Total size of the mappings of these files, from lines of ``/proc/<pid>/maps``."""
    total_bytes = 0
    for line in lines:
        if found := _MAPS_LINE.match(line):
            start, end, major, minor = (int(group, 16) for group in found.groups()[:4])
            if start < end and FileId(major, minor, int(found[5])) in files:
                total_bytes += end - start
    return total_bytes


def _natural(field: bytes) -> int | None:
    # int() alone accepts "1_0", "+1" and thousands of digits. No field of the kernel exceeds 64 bits.
    return int(field) if field.isdigit() and len(field) <= 20 else None


# ---------------------------------------------------------------------------- reading


class DeviceScan(NamedTuple):
    """The device nodes in one slice of a descriptor table, the descriptors read, and the next one (0: none is left)."""

    nodes: frozenset[DeviceNode]
    descriptors: int
    cursor: int


class NamedDevices(NamedTuple):
    """Descriptors of one slice whose links name a device node; how many there are, and the next slice (0: none)."""

    nodes: tuple[tuple[str, DeviceNode], ...]
    descriptors: int
    cursor: int


class MapsRead(NamedTuple):
    """Total size of the mappings of some files, and how much of ``maps`` was read, in bytes.

    ``mapped_bytes`` is ``None`` if that was not all.
    """

    mapped_bytes: int | None
    read_bytes: int


def read_file(path: str, dir_fd: int | None = None) -> bytes:
    """The first MiB of a file. Raises ``OSError``."""
    fd = os.open(path, _FILE_FLAGS, dir_fd=dir_fd)
    try:
        parts: list[bytes] = []
        left = _FILE_LIMIT_BYTES
        while left > 0 and (part := os.read(fd, min(left, _CHUNK_BYTES))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(fd)


class BoundedText:
    """The first ``limit_bytes`` of a text. ``is_cut``: it is longer."""

    def __init__(self, text: BinaryIO, limit_bytes: int) -> None:
        self._text = text
        self._left_bytes = limit_bytes
        self.read_bytes = 0
        self.is_cut = False

    def blocks(self) -> Iterator[bytes]:
        """Blocks that end with a line, except where a line is longer than a block."""
        while block := self._text.read(min(MAPS_BLOCK_BYTES, self._left_bytes)):
            block += self._text.readline(MAPS_BLOCK_BYTES)  # the rest of its last line
            self.read_bytes += len(block)
            self._left_bytes = max(0, self._left_bytes - len(block))
            yield block
            if not self._left_bytes:
                self.is_cut = bool(self._text.read(1))
                return


def lines_containing(word: bytes, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines that contain ``word``. ``maps`` has thousands of lines, of which few do."""
    for block in blocks:
        end = 0
        while (found := block.find(word, end)) >= 0:
            before = block.rfind(b"\n", end, found)
            start, end = end if before < 0 else before + 1, block.find(b"\n", found) + 1 or len(block)
            yield block[start:end]


def list_processes(root_fd: int) -> dict[int, int]:
    """Every listed pid with the inode of its directory. Raises ``OSError``.

    Directories of processes get inode numbers from a counter of the kernel and are dropped when the process ends
    (fs/proc/base.c, ``proc_pid_make_inode``): while a pid has the same inode, it is the same process.
    """
    with os.scandir(root_fd) as entries:
        return {int(entry.name): entry.inode() for entry in entries if entry.name.isdecimal() and entry.name.isascii()}


def name_no_device(root_fd: int, pid: int, limit: int, device_dir: str = DEVICE_DIR) -> int | None:
    """The number of open descriptors of a process if none of them names a device node. Raises ``OSError``.

    ``None`` if one does, or if there are more than ``limit``. It opens one directory, and does not find out which
    process has the pid.
    """
    directory = os.open(f"{pid}/fd", DIRECTORY_FLAGS, dir_fd=root_fd)
    try:
        names = _names(directory, limit + 1)
        if len(names) > limit or next(_named_nodes(directory, names, device_dir), None) is not None:
            return None
        return len(names)
    finally:
        os.close(directory)


def _names(directory: int, limit: int) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in islice(entries, limit)]


def _named_nodes(directory: int, names: Iterable[str], device_dir: str) -> Iterator[tuple[str, DeviceNode]]:
    """The descriptors whose link names a device node."""
    for name in names:
        try:
            target = os.readlink(name, dir_fd=directory)
        except OSError as error:
            # A denial or the end of the process concerns all descriptors. Anything else is about this one: it was
            # closed in between, is not a link (EINVAL), or has a path longer than PATH_MAX (ENAMETOOLONG).
            if error.errno in _CONCERNS_ALL:
                raise
            continue
        if node := parse_device_link(target, device_dir):
            yield name, node


class ProcessDir:
    """The open directory of one process. Every method raises ``OSError``.

    All reads concern the same process: after its end the kernel returns ESRCH, even if the pid is in use again.
    """

    def __init__(self, root_fd: int, pid: int, device_dir: str = DEVICE_DIR) -> None:
        self._fd = os.open(str(pid), DIRECTORY_FLAGS, dir_fd=root_fd)
        self._device_dir = device_dir

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def stat(self) -> Stat:
        """Identity and state. ``OSError`` with EINVAL if the file has another format."""
        stat = parse_stat(read_file("stat", self._fd))
        if stat is None:
            raise OSError(errno.EINVAL, "malformed stat")
        return stat

    def owner_uid(self) -> int:
        """The effective user."""
        return os.fstat(self._fd).st_uid

    def cgroup(self) -> str:
        """The text of the cgroup file; empty if the kernel has no cgroups."""
        try:
            return read_file("cgroup", self._fd).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def named_devices(self, cursor: int, limit: int) -> NamedDevices:
        """Descriptors that name a device node, among at most ``limit`` starting with number ``cursor``.

        Up to ``limit`` descriptors are listed. A list of more has no bound, so a process with more is read by
        descriptor number, one slice per call, up to the size of its descriptor table.
        """
        directory = os.open("fd", DIRECTORY_FLAGS, dir_fd=self._fd)
        try:
            names, next_cursor = self._slice(directory, cursor, limit)
            return NamedDevices(tuple(_named_nodes(directory, names, self._device_dir)), len(names), next_cursor)
        finally:
            os.close(directory)

    def verify(self, descriptor: str, node: DeviceNode, majors: frozenset[int]) -> DeviceNode | None:
        """The node, if the open file is that device. Waits for the file system of the file, which may be a user's."""
        try:
            status = os.stat(f"fd/{descriptor}", dir_fd=self._fd)
        except OSError:  # chosen by the file system: a device node of the driver has none of a user
            return None
        if not is_device(node, status, majors):
            return None
        if node.kind is not DeviceKind.UVM:
            return node
        return node._replace(file=FileId(os.major(status.st_dev), os.minor(status.st_dev), status.st_ino))

    def uvm_mapping_bytes(self, files: frozenset[FileId], limit_bytes: int) -> MapsRead:
        """Total size of the mappings of ``files``, which are nodes of ``nvidia-uvm``."""
        with open("maps", "rb", buffering=MAPS_BLOCK_BYTES, opener=self._open) as file:
            text = BoundedText(file, limit_bytes)
            mapped_bytes = parse_maps(lines_containing(_UVM_NAME.encode(), text.blocks()), files)
            return MapsRead(None if text.is_cut else mapped_bytes, text.read_bytes)

    def living_thread(self, pid: int) -> Self | None:
        """The directory of a thread of the process ``pid`` that still runs, for the caller to close."""
        try:
            tasks = os.open("task", DIRECTORY_FLAGS, dir_fd=self._fd)
        except FileNotFoundError:
            return None  # the directory of a thread has none
        try:
            for name in _names(tasks, _THREADS_TRIED):
                if name != str(pid):  # a thread that has ended is no longer listed, but the main thread is
                    with suppress(FileNotFoundError, ProcessLookupError):
                        return type(self)(tasks, int(name), self._device_dir)
            return None
        finally:
            os.close(tasks)

    def _open(self, name: str, _flags: int = _FILE_FLAGS) -> int:
        return os.open(name, _FILE_FLAGS, dir_fd=self._fd)

    def _slice(self, directory: int, cursor: int, limit: int) -> tuple[list[str], int]:
        if cursor == 0 and len(names := _names(directory, limit + 1)) <= limit:
            return names, 0
        table_size = parse_fd_size(read_file("status", self._fd)) or 0
        end = min(cursor + limit, table_size)
        return [str(number) for number in range(cursor, end)], 0 if end >= table_size else end
