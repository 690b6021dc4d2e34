"""The files of one process under ``/proc``: what they say (``parse_*``) and how they are read (``ProcessDir``).

``proc(5)`` and the kernel's ``Documentation/filesystems/proc.rst`` describe the formats. Every parser is total:
what it cannot make sense of is ``None``.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from operator import attrgetter
from types import TracebackType
from typing import BinaryIO, Final, NamedTuple, Self

DEVICE_DIR: Final = "/dev"
DELETED: Final = " (deleted)"
"""What the kernel's ``d_path`` appends to the path of an unlinked file."""

_PF_EXITING: Final = 0x00000004  # include/linux/sched.h
_PF_KTHREAD: Final = 0x00200000
_ENDED: Final = frozenset("ZXx")

# O_NONBLOCK: a FIFO in a tree that only pretends to be procfs must not hang the agent.
_FILE_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
_FILE_LIMIT_BYTES: Final = 1 << 20
_RECORD_BYTES: Final = 4096
_MAPS_BUFFER_BYTES: Final = 1 << 16  # no line is longer: a path is at most PATH_MAX, escaped

_BTIME: Final = re.compile(rb"^btime +([0-9]{1,18})$", re.MULTILINE)
_ROOT_CGROUP: Final = re.compile(r"(?:[0-9]{1,10}:[^:\n]*:/(?:\n|\Z))+")
_FD_SIZE: Final = re.compile(rb"^FDSize:[ \t]*([0-9]{1,10})$", re.MULTILINE)
_MAPS_LINE: Final = re.compile(rb"([0-9a-f]{1,16})-([0-9a-f]{1,16}) [^ ]+ [^ ]+ [^ ]+ [^ ]+ +/")
_UVM_NAME: Final = "nvidia-uvm"
_NAME: Final[Callable[[os.DirEntry[str]], str]] = attrgetter("name")
_INODE: Final[Callable[[os.DirEntry[str]], int]] = os.DirEntry.inode
_GPU_NODE: Final = re.compile(r"nvidia([0-9]{1,6})")
_MIG_CAP_NODE: Final = re.compile(r"nvidia-cap([0-9]{1,6})")


# ---------------------------------------------------------------------------- what the files say


@dataclass(frozen=True, slots=True)
class Stat:
    """What ``/proc/<pid>/stat`` says: ``comm`` as the raw bytes it may be, start in clock ticks since boot."""

    comm: bytes
    state: str
    flags: int
    threads: int
    start_ticks: int

    @property
    def is_kernel_thread(self) -> bool:
        """Whether it runs in the kernel only, and so can have no file open."""
        return bool(self.flags & _PF_KTHREAD)

    @property
    def is_alive(self) -> bool:
        """Whether any of its threads still runs: a main thread that ended before the others is a zombie too."""
        return self.state not in _ENDED or self.threads > 1

    @property
    def is_exiting(self) -> bool:
        """Whether its main thread has ended or is about to: then its files are closed, and nobody's but root's to see.

        fs/proc/base.c, ``task_dump_owner``: without memory of its own a process belongs to root.
        """
        return self.state in _ENDED or bool(self.flags & _PF_EXITING)


class FileMark(NamedTuple):
    """A file, told from another of the same name.

    Inodes of procfs live as long as their process at most, get numbers that nobody had before, and are as old as
    their first look-up (fs/proc/base.c, ``proc_pid_make_inode``): the same mark, the same process.
    """

    inode: int
    modified_ns: int


class DeviceKind(StrEnum):
    """What a device node of the NVIDIA driver gives access to."""

    GPU = "gpu"
    CONTROL = "control"
    UVM = "uvm"
    MIG_CAPABILITY = "mig_capability"


class DeviceNode(NamedTuple):
    """A device node: of which kind, and its number where the kind has one."""

    kind: DeviceKind
    number: int | None = None


def parse_stat(data: bytes) -> Stat | None:
    """Name, state, flags, threads and start (clock ticks since boot) from ``/proc/<pid>/stat``."""
    # comm is whatever the process calls itself, parentheses and newlines included; no field after it has any.
    opening, closing = data.find(b"("), data.rfind(b")")
    if opening < 0 or closing < opening:
        return None
    fields = data[closing + 1 :].split(None, 20)  # fields[0] is field 3 of proc(5); nothing after field 22 is wanted
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
    """Whether ``/proc/<pid>/cgroup`` names the root of every hierarchy, and nothing else."""
    return _ROOT_CGROUP.fullmatch(text) is not None


def parse_fd_size(data: bytes) -> int | None:
    """Slots of the descriptor table from ``/proc/<pid>/status``: every open descriptor is below this."""
    found = _FD_SIZE.search(data)
    return int(found[1]) if found else None


def parse_device_link(target: str, device_dir: str = DEVICE_DIR) -> DeviceNode | None:
    """The NVIDIA device node that an open descriptor's link names, wherever its container has ``device_dir``."""
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


def parse_maps(lines: Iterable[bytes], device_dir: str = DEVICE_DIR) -> int:
    """Bytes of ``nvidia-uvm`` mapped in total, over the lines of ``/proc/<pid>/maps``."""
    # Most of what a cycle costs is spent in this loop: a process has thousands of lines, and CUDA many mappings.
    node = os.fsencode(f"{device_dir}/{_UVM_NAME}")
    ends = tuple(node + deleted + newline for deleted in (b"", DELETED.encode()) for newline in (b"", b"\n"))
    total_bytes = 0
    for line in lines:
        if line.endswith(ends) and (found := _MAPS_LINE.match(line)):
            start, end = int(found[1], 16), int(found[2], 16)
            if start < end:
                total_bytes += end - start
    return total_bytes


def _natural(field: bytes) -> int | None:
    # int() alone would also take "1_0", "+1" and thousands of digits; no field of the kernel exceeds 64 bits.
    return int(field) if field.isdigit() and len(field) <= 20 else None


# ---------------------------------------------------------------------------- how they are read


class DeviceScan(NamedTuple):
    """One look at descriptors: the nodes found, descriptors read, and where to go on (0: all were seen)."""

    nodes: frozenset[DeviceNode]
    descriptors: int
    cursor: int


def read_file(path: str, dir_fd: int | None = None) -> bytes:
    """The bytes of a small file, at most 1 MiB of them. Raises ``OSError``."""
    fd = os.open(path, _FILE_FLAGS, dir_fd=dir_fd)
    try:
        parts: list[bytes] = []
        left = _FILE_LIMIT_BYTES
        while left > 0 and (part := os.read(fd, left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def _read_record(fd: int) -> bytes:
    """The bytes of a file that the kernel writes as one (fs/proc/base.c, ``ONE``): what is not full is its end."""
    record = os.read(fd, _RECORD_BYTES)
    while len(record) % _RECORD_BYTES == 0 and 0 < len(record) < _FILE_LIMIT_BYTES:
        part = os.read(fd, _RECORD_BYTES)
        if not part:
            break
        record += part
    return record


def _lines_with(word: bytes, text: BinaryIO) -> Iterator[bytes]:
    """The lines of a text that have a word in them: few of thousands, so the others are not even taken apart."""
    while block := text.read(_MAPS_BUFFER_BYTES):
        block += text.readline(_MAPS_BUFFER_BYTES)  # the rest of its last line
        end = 0
        while (found := block.find(word, end)) >= 0:
            before = block.rfind(b"\n", end, found)
            start, end = end if before < 0 else before + 1, block.find(b"\n", found) + 1 or len(block)
            yield block[start:end]


class Listing:
    """Every process listed under ``/proc``, in cycle after cycle. What says the same is the same object."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._inodes: list[int] = []
        self._listed: Mapping[int, int] = {}

    def read(self, root_fd: int) -> Mapping[int, int]:
        """Pid to the inode of its directory. Raises ``OSError``."""
        with os.scandir(root_fd) as entries:
            found = list(entries)
        names, inodes = list(map(_NAME, found)), list(map(_INODE, found))
        if names != self._names or inodes != self._inodes:
            self._names, self._inodes = names, inodes
            self._listed = {
                int(name): inode
                for name, inode in zip(names, inodes, strict=True)
                if name.isdecimal() and name.isascii()
            }
        return self._listed


def read_stat(path: str, dir_fd: int) -> tuple[FileMark, bytes]:
    """The text of the stat file of a process, and which file that is. Raises ``OSError``."""
    fd = os.open(path, _FILE_FLAGS, dir_fd=dir_fd)
    try:
        return _mark(os.fstat(fd)), _read_record(fd)
    finally:
        os.close(fd)


def checked_stat(text: bytes) -> Stat:
    """What a stat file says. Raises ``OSError``: EINVAL if it is none."""
    stat = parse_stat(text)
    if stat is None:
        raise OSError(errno.EINVAL, "malformed stat")
    return stat


def stat_mark(path: str, dir_fd: int) -> FileMark:
    """Which file the stat of whoever has the pid now is. Raises ``OSError``."""
    return _mark(os.stat(path, dir_fd=dir_fd))


def _mark(found: os.stat_result) -> FileMark:
    return FileMark(found.st_ino, found.st_mtime_ns)


def read_cgroup(path: str, dir_fd: int) -> str:
    """The text of the cgroup file of a process. Raises ``OSError``."""
    fd = os.open(path, _FILE_FLAGS, dir_fd=dir_fd)
    try:
        return _read_record(fd).decode("utf-8", "replace")
    finally:
        os.close(fd)


def few_devices(root_fd: int, pid: int, limit: int, device_dir: str = DEVICE_DIR) -> DeviceScan | None:
    """Device nodes that whoever has the pid now has open; ``None`` for more descriptors than ``limit``.

    Raises ``OSError``.
    """
    directory = os.open(f"{pid}/fd", DIRECTORY_FLAGS, dir_fd=root_fd)
    try:
        names = _names(directory, limit + 1)
        if len(names) > limit:
            return None
        return DeviceScan(frozenset(_nodes(directory, names, device_dir)), len(names), 0)
    finally:
        os.close(directory)


def _names(directory: int, most: int) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in islice(entries, most)]


def _nodes(directory: int, names: Iterable[str], device_dir: str) -> Iterator[DeviceNode]:
    for name in names:
        try:
            target = os.readlink(name, dir_fd=directory)
        except OSError as error:
            # Closed meanwhile, or (EINVAL) no link at all: that entry says nothing. Anything else concerns all.
            if error.errno in {errno.ENOENT, errno.EINVAL}:
                continue
            raise
        if node := parse_device_link(target, device_dir):
            yield node


class ProcessDir:
    """One process's directory, held open; every method raises ``OSError``.

    What is read through it belongs to one process: once that has ended, the kernel answers ESRCH, even if the
    pid is in use again.
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

    def stat(self) -> tuple[FileMark, bytes]:
        """The text that has its identity and state, and which file that is."""
        return read_stat("stat", self._fd)

    def owner_uid(self) -> int:
        """The effective user."""
        return os.fstat(self._fd).st_uid

    def cgroup(self) -> str:
        """The cgroup file; empty in a kernel without cgroups."""
        try:
            return read_cgroup("cgroup", self._fd)
        except FileNotFoundError:
            return ""

    def devices(self, cursor: int, limit: int) -> DeviceScan:
        """Device nodes open in at most ``limit`` descriptors, from ``cursor`` on.

        Few descriptors are listed. Where there are more than ``limit``, listing them all would cost without
        bound, so they are tried by number, a slice per call, up to the size of the descriptor table.
        """
        directory = os.open("fd", DIRECTORY_FLAGS, dir_fd=self._fd)
        try:
            names, following = self._slice(directory, cursor, limit)
            return DeviceScan(frozenset(_nodes(directory, names, self._device_dir)), len(names), following)
        finally:
            os.close(directory)

    def uvm_mapping_bytes(self) -> tuple[int, int]:
        """Bytes of ``nvidia-uvm`` mapped, and how long in bytes the text was that said so."""
        with open("maps", "rb", buffering=_MAPS_BUFFER_BYTES, opener=self._open) as text:
            return parse_maps(_lines_with(_UVM_NAME.encode(), text), self._device_dir), text.tell()

    def _open(self, name: str, _flags: int = _FILE_FLAGS) -> int:
        return os.open(name, _FILE_FLAGS, dir_fd=self._fd)

    def _slice(self, directory: int, cursor: int, limit: int) -> tuple[list[str], int]:
        if cursor == 0 and len(names := _names(directory, limit + 1)) <= limit:
            return names, 0
        table_size = parse_fd_size(read_file("status", self._fd)) or 0
        end = min(cursor + limit, table_size)
        return [str(number) for number in range(cursor, end)], 0 if end >= table_size else end
