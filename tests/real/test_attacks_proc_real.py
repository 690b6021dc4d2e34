"""Hostile processes of unprivileged users, on the real ``/proc``: others are read on time, and figures stay theirs."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from otel_gpu.clock import SystemClock
from otel_gpu.model import SourceState
from otel_gpu.sources.base import ProcessRead
from otel_gpu.sources.proc.reader import STALL_S
from otel_gpu.sources.proc.source import ProcfsSource
from otel_gpu.sources.proc.table import STEADY
from tests.real.attackers.processes import (
    EXITED_LEADER,
    LONG_MAPS,
    LONG_PATH,
    NEWCOMER,
    NEWCOMER_UID,
    PLAIN_FILES,
    Attackers,
    attackers,
)

PROC: Final = Path("/proc")
REPOSITORY: Final = Path(__file__).parents[2]
CYCLE_S: Final = 2.0
"""The deadline of a cycle. An attacked cycle is well below it; on a loaded machine it may come near."""

_missing = [tool for tool in ("unshare", "setpriv", "mount", "cc") if shutil.which(tool) is None]
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes device nodes, users and namespaces"),
    pytest.mark.skipif(bool(_missing), reason=f"needs {', '.join(_missing)}"),
]


@pytest.fixture
def attack() -> Iterator[Attackers]:
    with attackers() as started:
        yield started


def source_of(attack: Attackers) -> ProcfsSource:
    """The process source of an agent, on a host whose driver has the device nodes of the attackers' directory."""
    return ProcfsSource(PROC, SystemClock(), devices_file=attack.devices_file, intervals=STEADY)


def timed_read(source: ProcfsSource, pids: tuple[int, ...] = ()) -> tuple[ProcessRead, float]:
    started_s = time.monotonic()
    read = source.read(pids)
    return read, time.monotonic() - started_s


def reasons_of(read: ProcessRead, pid: int) -> set[str]:
    return {process.reason for process in read.unreadable_processes if process.pid == pid}


# ---------------------------------------------------------------------------- mappings without end


def test_mappings_of_thirteen_gigabytes_are_not_read_to_their_end(attack: Attackers) -> None:
    with attack.python(LONG_MAPS, attack.gpu, attack.uvm) as pid:
        source = source_of(attack)
        read, seconds = timed_read(source, (pid,))
        assert seconds < CYCLE_S + 1
        facts = read.processes[pid]
        assert facts.gpu_minors_open == {0}
        assert facts.uvm_mapping_bytes is None
        assert reasons_of(read, pid) & {"too_large", "timed_out"}
        assert read.state is SourceState.OK
        _, again_s = timed_read(source, (pid,))
        assert again_s < CYCLE_S


def test_mappings_of_plain_files_are_not_read_at_all(attack: Attackers) -> None:
    with attack.python(PLAIN_FILES) as pid:
        facts = source_of(attack).read([pid]).processes[pid]
        assert (facts.gpu_minors_open, facts.mig_access) == (frozenset(), frozenset())
        assert (facts.uvm_open, facts.uvm_mapping_bytes) == (False, None)


# ---------------------------------------------------------------------------- reads that do not return


def test_a_file_whose_server_does_not_answer_stops_no_cycle(attack: Attackers) -> None:
    with attack.fuse("stat") as pid:
        source = source_of(attack)
        read, seconds = timed_read(source, (pid, os.getpid()))
        assert STALL_S <= seconds < CYCLE_S
        assert {pid, os.getpid()} <= read.processes.keys()
        assert read.processes[pid].gpu_minors_open == frozenset()
        assert reasons_of(read, pid) == {"timed_out"}
        assert (read.state, read.all_visible) == (SourceState.OK, True)
        _, again_s = timed_read(source, (pid, os.getpid()))
        assert again_s < STALL_S  # it is left alone


def test_a_process_whose_memory_map_is_locked_is_read_all_the_same(attack: Attackers) -> None:
    with attack.fuse("fault") as pid:
        read, seconds = timed_read(source_of(attack), (pid,))
        assert seconds < CYCLE_S
        assert pid in read.processes
        assert read.state is SourceState.OK


# ---------------------------------------------------------------------------- devices


def test_a_path_over_the_limit_hides_no_other_descriptor(attack: Attackers) -> None:
    with attack.python(LONG_PATH, attack.gpu) as pid:
        assert source_of(attack).read([]).processes[pid].gpu_minors_open == {0}


_OPEN_GPUS = """
import sys
from pathlib import Path
from otel_gpu.clock import SystemClock
from otel_gpu.sources.proc.source import ProcfsSource
processes = ProcfsSource(Path("/proc"), SystemClock(), processes_per_cycle=100_000).read([]).processes
print(*(pid for pid in map(int, sys.argv[1:]) if pid in processes and processes[pid].gpu_minors_open))
"""


@pytest.mark.parametrize(("majors", "counts"), [("  1 nvidia\n", True), ("195 nvidia\n", False), ("", False)])
def test_only_nodes_with_a_major_number_of_the_driver_are_gpus(attack: Attackers, majors: str, counts: bool) -> None:
    listing = attack.directory / "bound"
    listing.write_text(f"Character devices:\n{majors}\nBlock devices:\n")
    with attack.python(PLAIN_FILES) as plain, attack.python(NEWCOMER, attack.gpu, attack.uvm) as node:
        bind = 'mount --bind "$0" /proc/devices && exec "$@"'
        shown = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", bind, str(listing),
             sys.executable, "-c", _OPEN_GPUS, str(plain), str(node)],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert shown.stdout.split() == ([str(node)] if counts else [])


# ---------------------------------------------------------------------------- a main thread that has exited


@contextmanager
def own_cgroup(name: str) -> Iterator[list[Path]]:
    """A cgroup of this name in the memory hierarchy and, where there is one, the unified one."""
    roots = [Path("/sys/fs/cgroup") / each for each in ("memory", "unified", ".")]
    directories = [root / name for root in roots if (root / "cgroup.procs").exists()]
    try:
        for directory in directories:
            directory.mkdir(parents=True)
        yield directories
    finally:
        for directory in directories:
            for _ in range(100):
                try:
                    directory.rmdir()
                    directory.parent.rmdir()
                    break
                except OSError:  # the process is still ending
                    time.sleep(0.05)


def test_a_process_belongs_to_its_container_after_its_main_thread_has_exited(attack: Attackers) -> None:
    container_id = secrets.token_hex(32)
    with ExitStack() as stack:
        directories = stack.enter_context(own_cgroup(f"og-test-{os.getpid()}/docker-{container_id}.scope"))
        if not directories:
            pytest.skip("no cgroup file system is writable here")
        pid = stack.enter_context(attack.python(
            f"[open(path, 'w').write('0') for path in {[str(each / 'cgroup.procs') for each in directories]!r}]\n"
            "os.setgid(65531), os.setuid(65531)\n" + EXITED_LEADER, attack.gpu, attack.uvm, uid=0,
        ))  # fmt: skip
        assert (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        facts = source_of(attack).read([pid]).processes[pid]
        assert facts.workload.id == container_id
        assert facts.gpu_minors_open == {0}
        assert (facts.uvm_mapping_bytes, facts.alive) == (1 << 20, True)


# ---------------------------------------------------------------------------- all together


def test_a_newcomer_is_identified_within_two_cycles_while_all_attack(attack: Attackers) -> None:
    with ExitStack() as stack:
        hostile = [
            stack.enter_context(attack.python(LONG_MAPS, attack.gpu, attack.uvm)),
            *(stack.enter_context(attack.fuse("stat")) for _ in range(6)),
            stack.enter_context(attack.fuse("fault")),
            stack.enter_context(attack.python(PLAIN_FILES)),
            stack.enter_context(attack.python(LONG_PATH)),
        ]
        source = source_of(attack)
        source.read(hostile)
        newcomer = stack.enter_context(attack.python(NEWCOMER, attack.gpu, attack.uvm, uid=NEWCOMER_UID))
        for _ in range(2):
            read, seconds = timed_read(source, (*hostile, newcomer))
            assert seconds < CYCLE_S + 1
        facts = read.processes[newcomer]
        assert facts.gpu_minors_open == {0}
        assert (facts.owner_uid, facts.uvm_mapping_bytes) == (NEWCOMER_UID, 1 << 20)
        assert (read.state, read.all_visible) == (SourceState.OK, True)
