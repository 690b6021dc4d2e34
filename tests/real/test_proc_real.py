"""The process source on the real ``/proc``, with real device nodes and namespaces."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_gpu.clock import SystemClock
from otel_gpu.model import SourceState
from otel_gpu.sources.proc.host import cgroup_namespace_is_initial, pid_namespace_is_initial, read_boot_id
from otel_gpu.sources.proc.source import ProcfsSource

PROC = Path("/proc")
REPOSITORY = Path(__file__).parents[2]

pytestmark = pytest.mark.real

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes device nodes, mounts and namespaces")


def needs(*tools: str) -> pytest.MarkDecorator:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


@contextmanager
def child(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs ``code`` and ends with the test."""
    command = [sys.executable, "-c", code + "\nprint('ready', flush=True)\nsys.stdin.read()\n", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def devices_file(directory: Path) -> Path:
    """A list of devices in which those of ``make_device`` are NVIDIA's."""
    path = directory / "devices"
    path.write_text("Character devices:\n  1 nvidia\n")
    return path


def make_device(directory: Path, name: str) -> Path:
    """A node with the driver's name that behaves like /dev/zero, which can be mapped."""
    path = directory / name
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
        with path.open("rb"):
            pass
    except OSError as error:
        pytest.skip(f"no device nodes here: {error.strerror}")
    return path


def test_facts_of_a_child_have_its_name_start_time_and_owner() -> None:
    source = ProcfsSource(PROC, SystemClock())
    before_s = time.time()
    with child("import sys, ctypes; ctypes.CDLL(None).prctl(15, b'odd) name (\\n')") as process:
        facts = source.read([process.pid, os.getpid()]).processes
        assert facts.keys() >= {process.pid, os.getpid()}
        seen = facts[process.pid]
        assert seen.name == "odd) name (\n"
        assert seen.owner_uid == os.geteuid()
        assert seen.start_time_s is not None
        assert before_s - 2 < seen.start_time_s < time.time() + 2
        assert seen.alive
        assert not seen.uvm_open
        assert source.read([process.pid]).processes[process.pid] == seen
    assert process.pid not in source.read([process.pid]).processes


def test_a_zombie_is_not_alive() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert ProcfsSource(PROC, SystemClock()).read([process.pid]).processes[process.pid].alive is False


def test_the_inode_of_a_process_is_the_same_in_every_listing() -> None:
    def inode() -> int:
        with os.scandir(PROC) as entries:
            return next(entry.inode() for entry in entries if entry.name == str(os.getpid()))

    assert inode() == inode()


def test_kthreadd_is_a_kernel_thread() -> None:
    if not (PROC / "2/stat").exists() or (PROC / "2/comm").read_text() != "kthreadd\n":
        pytest.skip("no kernel threads in this pid namespace")
    source = ProcfsSource(PROC, SystemClock())
    source.read([2])
    [kthreadd] = [process for process in source._table if process.pid == 2]
    assert kthreadd.is_kernel_thread


@needs_root
def test_open_device_nodes_and_the_size_of_their_mappings_are_found(tmp_path: Path) -> None:
    gpu, uvm = make_device(tmp_path, "nvidia0"), make_device(tmp_path, "nvidia-uvm")
    source = ProcfsSource(
        PROC, SystemClock(), device_dir=str(tmp_path), devices_file=devices_file(tmp_path), processes_per_cycle=100_000
    )
    code = (
        "import mmap, os, sys\n"
        "gpu, uvm = (os.open(path, os.O_RDWR) for path in sys.argv[1:])\n"
        "held = [mmap.mmap(uvm, size, mmap.MAP_PRIVATE) for size in (1 << 20, 3 << 20)]\n"
    )
    with child(code, str(gpu), str(uvm)) as process:
        facts = source.read([]).processes[process.pid]
        assert facts.gpu_minors_open == {0}
        assert facts.uvm_open
        assert facts.uvm_mapping_bytes == 4 << 20
        gpu.unlink()
        uvm.unlink()
        deleted = source.read([]).processes[process.pid]
        assert deleted.gpu_minors_open == {0}
        assert deleted.uvm_mapping_bytes == 4 << 20
    assert process.pid not in source.read([]).processes


@needs_root
def test_a_device_that_an_existing_process_opens_is_found(tmp_path: Path) -> None:
    uvm = make_device(tmp_path, "nvidia-uvm")
    source = ProcfsSource(
        PROC, SystemClock(), device_dir=str(tmp_path), devices_file=devices_file(tmp_path), processes_per_cycle=100_000
    )
    assert os.getpid() not in source.read([]).processes
    fd = os.open(uvm, os.O_RDWR)
    try:
        with mmap.mmap(fd, 1 << 16, mmap.MAP_PRIVATE):
            assert source.read([]).processes[os.getpid()].uvm_mapping_bytes == 1 << 16
    finally:
        os.close(fd)
    assert os.getpid() not in source.read([]).processes


@needs_root
def test_a_process_with_many_descriptors_is_read_in_slices(tmp_path: Path) -> None:
    gpu = make_device(tmp_path, "nvidia7")
    source = ProcfsSource(
        PROC, SystemClock(), device_dir=str(tmp_path), devices_file=devices_file(tmp_path), descriptors_per_process=100
    )
    code = "import os, sys\nfor _ in range(450): os.dup(0)\nos.open(sys.argv[1], os.O_RDWR)\n"
    with child(code, str(gpu)) as process:
        found = [source.read([process.pid]).processes[process.pid].gpu_minors_open for _ in range(8)]
        assert found[0] == frozenset()
        assert found[-1] == {7}


_READ = """
import os, sys
from pathlib import Path
from otel_gpu.clock import SystemClock
from otel_gpu.sources.proc.host import cgroup_namespace_is_initial, pid_namespace_is_initial
from otel_gpu.sources.proc.source import ProcfsSource

root, user = Path(sys.argv[1]), int(sys.argv[2])
source = ProcfsSource(root, SystemClock())
if user:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
read = source.read([1])
print("state", read.state)
print("reason", read.reason)
print("errors", read.errors)
print("seen", sorted(read.processes))
print("pid", pid_namespace_is_initial(root))
print("cgroup", cgroup_namespace_is_initial(root))
print("complete", read.pids_complete)
print("own", read.pids_are_own)
"""
UNPRIVILEGED_UID = 65534


def read_in(*command: str, root: Path = PROC, user: int = 0, code: str = _READ) -> dict[str, str]:
    """The output of ``code``, run by ``command``; by default it reads process 1 and its own namespaces."""
    result = subprocess.run(
        [*command, sys.executable, "-c", code, str(root), str(user)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    if "Operation not permitted" in result.stderr and "Traceback" not in result.stderr:
        pytest.skip(f"not permitted: {result.stderr.strip()}")
    assert result.returncode == 0, result.stderr
    return dict(line.split(" ", 1) for line in result.stdout.splitlines())


@needs_root
@needs("unshare")
def test_a_private_pid_namespace_is_detected() -> None:
    seen = read_in("unshare", "--pid", "--fork", "--mount-proc")
    assert seen["pid"] == "False"
    assert seen["seen"] == "[1]"
    assert seen["state"] == SourceState.DEGRADED
    assert "--pid=host" in seen["reason"]
    assert (seen["complete"], seen["own"]) == ("False", "True")


@needs_root
@needs("unshare")
def test_a_private_cgroup_namespace_is_detected() -> None:
    seen = read_in("unshare", "--cgroup")
    assert seen["cgroup"] == "False"
    assert seen["pid"] == str(pid_namespace_is_initial(PROC))


@needs_root
@needs("unshare", "mount")
def test_a_procfs_mounted_elsewhere_shows_the_readers_namespaces(tmp_path: Path) -> None:
    mount = f'mount --rbind /proc "{tmp_path}" && exec "$0" "$@"'
    assert read_in("unshare", "--mount", "sh", "-c", mount, root=tmp_path)["pid"] == str(pid_namespace_is_initial(PROC))
    private = read_in("unshare", "--mount", "--pid", "--fork", "sh", "-c", mount, root=tmp_path)
    assert private["pid"] == "False"
    assert (private["complete"], private["own"]) == ("False", "False")


@needs_root
def test_without_capabilities_facts_of_other_users_lack_open_files() -> None:
    seen = read_in(user=UNPRIVILEGED_UID)
    assert seen["seen"] == "[1]"
    assert seen["state"] == SourceState.DEGRADED
    assert seen["reason"].startswith("open files of ")
    assert "CAP_SYS_PTRACE" in seen["reason"]
    assert seen["errors"] == "1"


_CHURN = """
import ctypes, os, sys, time
from pathlib import Path
from otel_gpu.clock import SystemClock
from otel_gpu.sources.proc.source import ProcfsSource

user, nowhere = int(sys.argv[2]), Path(sys.argv[1]) / "nowhere"
source = ProcfsSource(Path("/proc"), SystemClock(), own_proc=nowhere)
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, cleared by setresuid: files in /proc belong to root
reasons = []
for _ in range(30):
    for number in range(40):  # they end while they are read, and are zombies for some time
        if os.fork() == 0:
            time.sleep(number / 2000)
            os._exit(0)
    for _ in range(10):
        reasons.append(str(source.read([]).reason))
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            break
print("reasons", ";".join(sorted(set(reasons))))
print("reads", len(reasons))
"""


@needs_root
@needs("unshare")
def test_short_lived_processes_give_no_reason(tmp_path: Path) -> None:
    # A user cannot read its own exiting processes, because their files belong to root.
    seen = read_in("unshare", "--pid", "--fork", "--mount-proc", root=tmp_path, user=UNPRIVILEGED_UID, code=_CHURN)
    assert seen == {"reasons": "None", "reads": "300"}


_REUSE = """
import os, sys, time
from pathlib import Path
from otel_gpu.clock import ManualClock
from otel_gpu.sources.proc.source import ProcfsSource
from otel_gpu.sources.proc.table import STEADY

def sleeper():
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    return pid

opened, real_open = [], os.open
def recording(path, *arguments, **options):
    opened.append(str(path))
    return real_open(path, *arguments, **options)

device = Path(sys.argv[1]) / "dev/nvidia0"
device.parent.mkdir()
os.mknod(device, 0o20666, os.makedev(1, 5))
held = device.open("rb")  # in forked processes too
devices = device.with_name("devices")
devices.write_text("Character devices:\\n  1 nvidia\\n")
first = sleeper()
source = ProcfsSource(
    Path("/proc"), ManualClock(), own_proc=device / "nowhere", device_dir=str(device.parent), devices_file=devices,
    intervals=STEADY,
)
for _ in range(3):
    before = source.read([first]).processes[first]  # the manual clock stands still: no file is due
os.open = recording
same = source.read([first]).processes[first]
print("opened", *opened)
os.kill(first, 9)
os.waitpid(first, 0)
time.sleep(0.1)  # start times have a resolution of 10 ms
Path("/proc/sys/kernel/ns_last_pid").write_text(str(first - 1))
second = sleeper()
after = source.read([second]).processes[second]
print("pid", "again" if second == first else "another")
print("facts", same is before, after.key.start_ticks > before.key.start_ticks)
os.kill(second, 9)
"""


@needs_root
@needs("unshare")
def test_a_reused_pid_is_noticed_without_opening_files_of_settled_processes(tmp_path: Path) -> None:
    seen = read_in("unshare", "--pid", "--fork", "--mount-proc", root=tmp_path, code=_REUSE)
    assert seen == {"opened": "/proc", "pid": "again", "facts": "True True"}


@needs_root
@needs("unshare", "mount")
@pytest.mark.parametrize("hidepid", ["1", "2"])
def test_the_reason_names_a_mount_with_hidepid(hidepid: str) -> None:
    mount = f'mount -t proc -o hidepid={hidepid} proc /proc && exec "$0" "$@"'
    seen = read_in("unshare", "--mount", "sh", "-c", mount, user=UNPRIVILEGED_UID)
    assert seen["seen"] == "[]"
    assert seen["state"] == SourceState.DEGRADED
    assert "hidepid" in seen["reason"]


@needs_root
@needs("unshare", "mount")
def test_a_mount_with_hidepid_hides_nothing_from_root() -> None:
    mount = 'mount -t proc -o hidepid=2 proc /proc && exec "$0" "$@"'
    seen = read_in("unshare", "--mount", "sh", "-c", mount)
    assert 1 in json.loads(seen["seen"])  # and other processes that have a GPU open
    assert "hidepid" not in seen["reason"]


def test_namespaces_and_boot_id_of_this_process_are_known() -> None:
    assert isinstance(pid_namespace_is_initial(PROC), bool)
    assert isinstance(cgroup_namespace_is_initial(PROC), bool)
    assert read_boot_id(PROC) == (PROC / "sys/kernel/random/boot_id").read_text().strip()
