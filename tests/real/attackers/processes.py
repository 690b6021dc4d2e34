"""Start hostile processes, each as a user without privileges in a mount namespace of its own, and end them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

ATTACKER_UID: Final = 65_531
NEWCOMER_UID: Final = 65_530
_FUSE_NUMBER: Final = os.makedev(10, 229)

_PREAMBLE: Final = """
import ctypes, mmap, os, sys, threading, time
place = sys.argv[1]
def ready():
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
"""

LONG_MAPS: Final = """
os.chdir(place)
for _ in range(800):  # a path of 200 kB, which no line of maps is expected to have
    os.mkdir("x" * 250)
    os.chdir("x" * 250)
with open("mapped", "wb") as file:
    file.truncate(4096)
file = os.open("mapped", os.O_RDONLY)
nodes = [os.open(name, os.O_RDWR) for name in sys.argv[2:]]
held = []
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
for node in nodes:
    libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_PRIVATE, node, 0)
while libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_PRIVATE, file, 0) != ctypes.c_void_p(-1).value:
    pass  # up to vm.max_map_count
ready()
"""
"""Maps a file with a very long path as often as the kernel allows; the nodes named on the command line are open."""

PLAIN_FILES: Final = """
os.makedirs(f"{place}/dev/nvidia-caps")
for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap3"):
    held = open(f"{place}/dev/{name}", "wb+")
    held.truncate(1 << 20)
    globals()[name] = held, mmap.mmap(held.fileno(), 1 << 20)
ready()
"""
"""Opens and maps plain files with the names of device nodes."""

LONG_PATH: Final = """
os.chdir(place)
for _ in range(40):
    os.mkdir("y" * 250)
    os.chdir("y" * 250)
held = [open(name, "wb") for name in ("1", "2", "3")]
held += [os.open(name, os.O_RDWR) for name in sys.argv[2:]]
ready()
"""
"""Opens files whose paths are longer than PATH_MAX, and then the nodes named on the command line."""

EXITED_LEADER: Final = """
held = [os.open(name, os.O_RDWR) for name in sys.argv[2:]]
mapping = mmap.mmap(held[-1], 1 << 20, mmap.MAP_PRIVATE)
def work():
    time.sleep(0.5)
    ready()
threading.Thread(target=work).start()
ctypes.CDLL(None).syscall(60, 0)  # exit of this thread alone, on x86-64
"""
"""Its main thread ends, and another thread keeps the GPU open."""

NEWCOMER: Final = """
held = [os.open(name, os.O_RDWR) for name in sys.argv[2:]]
mapping = mmap.mmap(held[-1], 1 << 20, mmap.MAP_PRIVATE)
ready()
"""
"""An ordinary process on a GPU."""


class Attackers:
    """A directory with device nodes of a driver, and the processes of a test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.devices_file = directory / "devices"
        self.devices_file.write_text("Character devices:\n  1 nvidia\n  1 nvidia-uvm\n\nBlock devices:\n  7 loop\n")
        (directory / "dev").mkdir()
        self.gpu, self.uvm = (self._node(f"dev/{name}", os.makedev(1, 5)) for name in ("nvidia0", "nvidia-uvm"))
        self._fuse = self._node("fuse", _FUSE_NUMBER)
        self._place = directory / "place"
        self._place.mkdir()

    def _node(self, name: str, number: int) -> Path:
        """A device node that every user may open. 1:5 is /dev/zero, which can be mapped."""
        path = self.directory / name
        os.mknod(path, stat.S_IFCHR | 0o666, number)
        path.chmod(0o666)
        return path

    @contextmanager
    def python(self, code: str, *words: str | Path, uid: int = ATTACKER_UID) -> Iterator[int]:
        """Run ``code`` as this user; it calls ``ready()``. ``place`` is a file system of its own, gone with it."""
        with self._process([sys.executable, "-c", _PREAMBLE + code, str(self._place), *map(str, words)], uid) as pid:
            yield pid

    @contextmanager
    def fuse(self, mode: str, uid: int = ATTACKER_UID, environment: dict[str, str] | None = None) -> Iterator[int]:
        """A process with an open file whose file system stops to answer (see fuse.c)."""
        program = self.directory / "fuse-attacker"
        if not program.exists():
            compiler = shutil.which("cc")
            if compiler is None:
                pytest.skip("needs a C compiler")
            source = Path(__file__).with_name("fuse.c")
            subprocess.run([compiler, "-O1", "-o", program, source, "-lpthread"], check=True)
        command = [str(program), mode, str(self._place), str(self._fuse), str(uid)]
        with self._process(command, 0, environment) as pid:
            yield pid

    @contextmanager
    def _process(self, command: list[str], uid: int, environment: dict[str, str] | None = None) -> Iterator[int]:
        drop = f"setpriv --reuid {uid} --regid {uid} --clear-groups"
        script = f'mount -t tmpfs -o mode=1777,size=64m tmpfs "$0" && exec {drop} "$@"'
        place = str(self._place)
        with subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, place, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd="/",
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                yield process.pid
            finally:
                assert process.stdin is not None
                process.stdin.close()
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()


@contextmanager
def attackers() -> Iterator[Attackers]:
    """A directory that all users may enter, removed afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="og-attack-", dir="/tmp"))
    directory.chmod(0o755)
    try:
        yield Attackers(directory)
    finally:
        shutil.rmtree(directory)
