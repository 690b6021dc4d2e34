"""Names and grants of a Slurm job from a real process with Slurm's environment, in a real cgroup with Slurm's path."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.bounded_io import printable
from otel_gpu.clock import ManualClock, SystemClock
from otel_gpu.model import WorkloadKind, WorkloadRef
from otel_gpu.sources.base import Claim, NameRead
from otel_gpu.sources.names.slurm import PRIVILEGE_FIX, SlurmSource, read_pids
from tests.cli import clean_environment, otel_gpu
from tests.nvml_stub.world import World
from tests.real.attackers.processes import attackers
from tests.real.otlp_points import points_of, resource_attributes

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes cgroups"),
]

GIB = 1 << 30
JOB = "184219"
VARIABLES = {
    "SLURM_JOB_ID": JOB,
    "SLURM_JOB_NAME": 'train "7b"\n🚀',
    "SLURM_JOB_USER": "ada",
    "SLURM_JOB_ACCOUNT": "physics",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_JOB_GPUS": "0",
}
# A shell joins the cgroup and executes the job, so that no other process has to be moved.
JOINING = 'echo $$ > "$1/cgroup.procs" && echo ready && exec sleep 60'


@contextmanager
def made_cgroups() -> Iterator[list[Path]]:
    """Create the cgroups of a step, below a controller (cgroup v1) or at the top (v2); the innermost is last.

    Their top directory has a name of its own, so that other agents on this machine do not find them.
    """
    freezer = Path("/sys/fs/cgroup/freezer")
    made: list[Path] = []
    directory = freezer if freezer.is_dir() else Path("/sys/fs/cgroup")
    try:
        for name in (f"og-jobs-{os.getpid()}", "slurm", "uid_0", f"job_{JOB}", "step_0"):
            directory /= name
            try:
                directory.mkdir()
            except OSError as error:
                pytest.skip(f"no cgroups here: {error.strerror}")
            made.append(directory)
        yield made
    finally:
        for each in reversed(made):
            each.rmdir()


@contextmanager
def running_job(variables: Mapping[str, str]) -> Iterator[int]:
    """The pid of a process of the job."""
    with cgroups_and_job(variables) as (_, pid):
        yield pid


@contextmanager
def cgroups_and_job(variables: Mapping[str, str]) -> Iterator[tuple[Path, int]]:
    """The top of the job's cgroups, and the pid of a process in them."""
    with (
        made_cgroups() as made,
        subprocess.Popen(
            ["/bin/sh", "-c", JOINING, "sh", str(made[-1])], env=dict(variables), stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield made[0], process.pid
        finally:
            process.kill()


def ask(stub_dir: Path, tmp_path: Path, pid: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command on a driver that lists this pid."""
    world = World()
    world.a100({pid: 2 * GIB})
    return otel_gpu(*arguments, environment=world.environment(stub_dir, tmp_path))


def identity(result: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The Resource of the job in OTLP."""
    assert result.returncode == 0, result.stderr
    resources: list[Any] = json.loads(result.stdout)["resourceMetrics"]
    found = map(resource_attributes, resources)
    return next(each for each in found if each.get("slurm.job.id") == JOB)


DECLARED = {
    f"slurm.job.{key}": VARIABLES[f"SLURM_JOB_{key.upper()}"] for key in ("name", "user", "account", "partition")
}


def test_what_a_job_says_of_itself_is_on_one_metric_and_in_the_views(stub_dir: Path, tmp_path: Path) -> None:
    with running_job(VARIABLES) as pid:
        result = ask(stub_dir, tmp_path, pid, "once", "--format", "otlp")
        resource, exported = identity(result), json.loads(result.stdout)["resourceMetrics"]
        shown = ask(stub_dir, tmp_path, pid, "once", "--format", "json").stdout
        doctor = ask(stub_dir, tmp_path, pid, "doctor").stdout
    assert resource["gpu.workload.name"] == JOB
    assert not DECLARED.keys() & resource.keys()
    points = [point for point in points_of(exported) if point.get("slurm.job.id") == JOB]
    assert {point.name for point in points if "slurm.job.name" in dict(point.attributes)} == {"gpu.workload.info"}
    [info] = [point for point in points if point.name == "gpu.workload.info"]
    assert {key: printable(text) for key, text in DECLARED.items()}.items() <= dict(info.attributes).items()
    assert f'"name":{json.dumps(VARIABLES["SLURM_JOB_NAME"])}' in shown.replace(": ", ":")
    [slurm] = [line for line in doctor.splitlines() if line.split()[1] == "slurm"]
    assert slurm.startswith("ok ")
    assert slurm.endswith(": 1 workload known")


def test_the_variables_of_another_job_are_ignored(stub_dir: Path, tmp_path: Path) -> None:
    with running_job(VARIABLES | {"SLURM_JOB_ID": "1"}) as pid:
        resource = identity(ask(stub_dir, tmp_path, pid, "once", "--format", "otlp", "--environment", "slurm"))
        doctor = ask(stub_dir, tmp_path, pid, "doctor", "--environment", "slurm").stdout
    assert f"job {JOB}: process {pid} claims to be of job '1'; it is ignored" in doctor
    assert resource["gpu.workload.name"] == JOB
    assert "ada" not in resource.values()


def test_a_job_with_a_gpu_and_no_process_on_it_is_known_until_it_ends() -> None:
    clock = ManualClock()

    def until(source: SlurmSource, condition: Callable[[NameRead], bool]) -> NameRead:
        """Poll until the condition holds: during execve a process has no environment."""
        end_s = time.monotonic() + 30
        while not condition(read := source.read({})):
            assert time.monotonic() < end_s, read
            clock.advance(60.0)
            source._poller.wake()
            time.sleep(0.01)
        return read

    with cgroups_and_job(VARIABLES) as (top, pid):
        source = SlurmSource(Path("/proc"), clock, cgroup_root=top)
        known = until(source, lambda read: JOB in read.known).known[JOB]
        assert read_pids(top / "slurm/uid_0" / f"job_{JOB}" / "step_0", limit=8) == (pid,)
    assert (known.names.title, known.claims) == (VARIABLES["SLURM_JOB_NAME"], (Claim("0"),))
    until(source, lambda read: not read.known)
    source.close()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs cc")
def test_a_process_that_keeps_the_lock_of_its_memory_costs_neither_its_job_nor_others_their_names() -> None:
    """A process of an unprivileged user waits for a page of its own FUSE file system: its environ does not answer."""
    with attackers() as attack, attack.fuse("fault") as hostile, running_job(VARIABLES) as pid:
        source = SlurmSource(Path("/proc"), SystemClock(), cgroup_root=Path("/nonexistent"))
        jobs = {
            WorkloadRef(WorkloadKind.SLURM_JOB, "1"): [hostile],
            WorkloadRef(WorkloadKind.SLURM_JOB, JOB): [hostile, pid],
        }
        try:
            end_s = time.monotonic() + 30
            while JOB not in (read := source.read(jobs)).known or read.pending or read.reason is None:
                assert time.monotonic() < end_s, read
                time.sleep(0.01)
        finally:
            source.close()
    assert read.known.keys() == {JOB}
    assert read.known[JOB].names.title == VARIABLES["SLURM_JOB_NAME"]
    assert read.reason == f"job 1: /proc/{hostile}/environ does not answer"


UNPRIVILEGED = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
LOOK_UP = """
import sys
from pathlib import Path
from otel_gpu.clock import SystemClock
from otel_gpu.model import WorkloadKind, WorkloadRef
from otel_gpu.sources.names.slurm import SlurmSource
source = SlurmSource(Path("/proc"), SystemClock())
workloads = {WorkloadRef(WorkloadKind.SLURM_JOB, sys.argv[1]): [int(sys.argv[2])]}
source.read(workloads)
source.wait(30)
read = source.read(workloads)
print(read.state, len(read.known), sorted(read.pending), read.reason, sep="|")
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_without_the_privilege_a_job_has_no_name_and_the_reason_has_a_fix() -> None:
    with running_job(VARIABLES) as pid:
        result = subprocess.run(
            [*UNPRIVILEGED, sys.executable, "-B", "-c", LOOK_UP, JOB, str(pid)],
            env=clean_environment(),
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )
    assert result.returncode == 0, result.stderr
    state, known, pending, reason = result.stdout.strip().split("|")
    assert (state, known, pending) == ("degraded", "0", "[]")
    assert reason == f"job {JOB}: no permission to read /proc/{pid}/environ; {PRIVILEGE_FIX}"
