"""A fake ``/proc`` with processes that tests choose."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from otel_gpu.model import MigAccess

USER_FLAGS: Final = 0x00400000  # PF_RANDOMIZE, as an ordinary process has it
KERNEL_THREAD_FLAGS: Final = 0x00208040
UVM: Final = "/dev/nvidia-uvm"
UVM_FILE: Final = "00:05 512"
"""File system and inode of ``nvidia-uvm`` in lines of ``maps``; a tree replaces them by those of its node."""


def stat_text(
    pid: int,
    comm: bytes = b"python3",
    *,
    start_ticks: int = 1_000,
    state: str = "S",
    ppid: int = 1,
    flags: int = USER_FLAGS,
    threads: int = 1,
    size_bytes: int = 0,
) -> bytes:
    """A ``/proc/<pid>/stat`` with all 52 fields of proc(5)."""
    fields = ["0"] * 50
    fields[0], fields[1], fields[6] = state, str(ppid), str(flags)
    fields[17], fields[19], fields[20] = str(threads), str(start_ticks), str(size_bytes)
    return b"%d (%s) %s\n" % (pid, comm, " ".join(fields).encode())


def maps_line(start: int, size_bytes: int, path: str = UVM) -> str:
    """A line of ``/proc/<pid>/maps``."""
    file = UVM_FILE if path.removesuffix(" (deleted)").endswith(UVM) else "fe:01 99"
    return f"{start:08x}-{start + size_bytes:08x} rw-s {start:08x} {file}                        {path}\n"


def mig_minor(access: MigAccess) -> int:
    """The minor of a capability node: from 3 on, 15 GPU instances a GPU with 8 compute instances each (nv-caps.c)."""
    gpu_minor, gpu_instance_id, compute_instance_id = access
    in_instance = 0 if compute_instance_id is None else 1 + compute_instance_id
    return 3 + 135 * gpu_minor + 9 * gpu_instance_id + in_instance


def mig_nodes(*instances: tuple[int, int, int]) -> list[str]:
    """The nodes open in users of these compute instances (GPU minor, GPU instance, compute instance): two for each."""
    minors = {mig_minor(MigAccess(gpu, gi, id_)) for gpu, gi, ci in instances for id_ in (None, ci)}
    return [f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in sorted(minors)]


_NODE: Final = Path("/dev/null")
"""A character device that every machine has and every user can open. In a tree it stands for those of the driver."""


class ProcTree:
    """Builds and changes a fake ``/proc`` under ``root``, which begins with process 1.

    Its driver has the major number of ``/dev/null``. A descriptor of a process with the target ``/dev/nvidia…`` leads
    to that device by a path that ends so, and a mapping of ``/dev/nvidia-uvm`` is one of that device.
    """

    def __init__(self, root: Path, *, btime_s: int = 1_700_000_000) -> None:
        self.root = root
        self._released = 0
        root.mkdir(parents=True, exist_ok=True)
        self._nodes = root / "nodes"
        node = _NODE.stat()
        self._major = os.major(node.st_rdev)
        self._node_id = f"{os.major(node.st_dev):02x}:{os.minor(node.st_dev):02x} {node.st_ino}"
        self.set_majors(self._major)
        self.set_btime(btime_s)
        self.add(1, comm=b"systemd", start_ticks=1, cgroup="0::/init.scope\n")

    def set_majors(self, *majors: int) -> None:
        """Set the major numbers of NVIDIA's driver; none: it is not loaded."""
        lines = ["Character devices:", "  4 tty", *(f"{major:3d} nvidia" for major in majors), "", "Block devices:"]
        self.write("devices", "\n".join([*lines, "  7 loop", ""]))

    def set_btime(self, btime_s: int) -> None:
        """Set the boot time (Unix seconds)."""
        self.write("stat", f"cpu  1 2 3 4\ncpu0 1 2 3 4\nintr 5\nctxt 6\nbtime {btime_s}\nprocesses 7\n")

    def add(
        self,
        pid: int,
        *,
        comm: bytes = b"python3",
        start_ticks: int = 1_000,
        state: str = "S",
        ppid: int = 1,
        flags: int = USER_FLAGS,
        threads: int = 1,
        size_bytes: int = 0,
        cgroup: str | bytes = "0::/\n",
        fds: Iterable[str] | Mapping[int, str] = ("/dev/null",),
        maps: str | bytes = "",
    ) -> Path:
        """Start a process, or change an existing one; ``fds`` are link targets, numbered from 0 or by key."""
        directory = self.root / str(pid)
        directory.mkdir(exist_ok=True)
        stat = stat_text(
            pid,
            comm,
            start_ticks=start_ticks,
            state=state,
            ppid=ppid,
            flags=flags,
            threads=threads,
            size_bytes=size_bytes,
        )
        (directory / "stat").write_bytes(stat)
        (directory / "comm").write_bytes(comm + b"\n")
        self.write(f"{pid}/cgroup", cgroup)
        self.set_maps(pid, maps)
        self.set_fds(pid, fds)
        return directory

    def add_kernel_thread(self, pid: int, comm: bytes = b"kworker/0:1") -> Path:
        """Start a kernel thread."""
        return self.add(pid, comm=comm, ppid=2, flags=KERNEL_THREAD_FLAGS, fds=())

    def set_maps(self, pid: int, maps: str | bytes) -> None:
        """Replace the mappings."""
        text = maps if isinstance(maps, bytes) else maps.encode()
        self.write(f"{pid}/maps", text.replace(UVM_FILE.encode(), self._node_id.encode()))

    def _target(self, target: str) -> str:
        """Where a descriptor leads: for a node of the driver, a path that ends so and leads to a device."""
        if not target.startswith("/dev/nvidia"):
            return target
        deleted = " (deleted)" if target.endswith(" (deleted)") else ""
        node = self._nodes / target.removesuffix(deleted).lstrip("/")
        named = node.with_name(node.name + deleted)
        if not named.is_symlink():
            named.parent.mkdir(parents=True, exist_ok=True)
            named.symlink_to(_NODE)
        return str(named)

    def set_fds(self, pid: int, fds: Iterable[str] | Mapping[int, str]) -> None:
        """Replace the open descriptors. The descriptor table has the size that the kernel would give it."""
        links = fds if isinstance(fds, Mapping) else dict(enumerate(fds))
        directory = self.root / str(pid) / "fd"
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir()
        for number, target in links.items():
            (directory / str(number)).symlink_to(self._target(target))
        table_size = 64
        while table_size <= max(links, default=0):
            table_size *= 2
        self.write(f"{pid}/status", f"Name:\tpython3\nFDSize:\t{table_size}\nThreads:\t1\n")

    def remove(self, pid: int) -> None:
        """End a process."""
        shutil.rmtree(self.root / str(pid))

    def release(self, pid: int) -> None:
        """End a process so that its pid can be reused: as in procfs, the next process gets a directory of its own."""
        self._released += 1
        (self.root / str(pid)).rename(self.root / f"released-{self._released}")  # so that its inode is not reused

    def set_namespaces(self, *, pid: int = 4026531836, cgroup: int = 4026531835) -> None:
        """Set the namespaces of the reader by inode number; the defaults are the initial ones."""
        directory = self.root / "self/ns"
        directory.mkdir(parents=True, exist_ok=True)
        for kind, inode in (("pid", pid), ("cgroup", cgroup)):
            (directory / kind).unlink(missing_ok=True)
            (directory / kind).symlink_to(f"{kind}:[{inode}]")

    def set_own_pids(self, nspid: str = "7") -> None:
        """Set the pids of the reader: in the namespace of this tree, then, after tabs, in nested ones."""
        self.write("self/status", f"Name:\tpython3\nPid:\t{nspid.split(maxsplit=1)[0]}\nNSpid:\t{nspid}\nThreads:\t1\n")

    def add_gpu(self, bus_id: str, minor: int, uuid: str) -> None:
        """Add a GPU of the NVIDIA driver."""
        self.write(
            f"driver/nvidia/gpus/{bus_id}/information",
            f"Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 42\nGPU UUID: \t {uuid}\nVideo BIOS: \t 92.00.19.00.01\n"
            f"Bus Type: \t PCIe\nBus Location: \t {bus_id}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n",
        )

    def set_mig_minors(self, gpus: int = 2) -> None:
        """Add the capability nodes of the NVIDIA driver for this many GPUs."""
        lines = ["config 1", "monitor 2"]
        for gpu, gi, ci in product(range(gpus), range(15), (None, *range(8))):
            name = f"gpu{gpu}/gi{gi}/access" if ci is None else f"gpu{gpu}/gi{gi}/ci{ci}/access"
            lines.append(f"{name} {mig_minor(MigAccess(gpu, gi, ci))}")
        self.write("driver/nvidia-caps/mig-minors", "\n".join(lines) + "\n")

    def write(self, path: str, content: str | bytes) -> None:
        """Write a file of the tree."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)


class Reads:
    """Counts system calls from its creation to the end of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count: Counter[str] = Counter()
        for name in ("open", "scandir", "readlink"):
            monkeypatch.setattr(os, name, self._counting(name, getattr(os, name)))

    def _counting(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **kwargs: object) -> object:
            self.count[name] += 1
            return call(*args, **kwargs)

        return counted
