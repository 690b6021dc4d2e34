"""A real process in a real cgroup such as Slurm makes, with the environment that Slurm gives: its job has a name."""

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

from otel_gpu.clock import ManualClock
from otel_gpu.sources.base import Claim, NameRead
from otel_gpu.sources.names.slurm import PRIVILEGE_FIX, SlurmSource, read_pids
from tests.cli import clean_environment, command
from tests.nvml_stub.world import Listed, World

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes cgroups"),
]

GIB = 1 << 30
JOB = "184219"
GIVEN = {
    "SLURM_JOB_ID": JOB,
    "SLURM_JOB_NAME": 'train "7b"\n🚀',
    "SLURM_JOB_USER": "ada",
    "SLURM_JOB_ACCOUNT": "physics",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_JOB_GPUS": "0",
}
# A shell joins the cgroup and becomes the job, so that no other process is ever moved.
JOINING = 'echo $$ > "$1/cgroup.procs" && echo ready && exec sleep 60'


@contextmanager
def made_cgroups() -> Iterator[list[Path]]:
    """Directories of a step, the innermost last: below a controller (cgroup v1), or at the top (v2).

    Their top is no name of Slurm's, so that nobody else who looks for Slurm meanwhile finds it.
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
    """A process of the job, by its pid; its cgroup is gone after it."""
    with cgroups_and_job(variables) as (_, pid):
        yield pid


@contextmanager
def cgroups_and_job(variables: Mapping[str, str]) -> Iterator[tuple[Path, int]]:
    """The top of a job's cgroups, and a process in them."""
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
    """Run a command where the driver lists this pid."""
    world = World()
    gpu = world.gpu("GPU-one")
    gpu.typical()
    gpu.memory(0, total_bytes=80 * GIB, reserved_bytes=GIB, used_bytes=2 * GIB)
    gpu.compute(0, [Listed(pid, 2 * GIB)])
    stub = {"LD_LIBRARY_PATH": str(stub_dir), "NVML_STUB_WORLD": str(world.write(tmp_path / "world.txt"))}
    return subprocess.run(
        command(*arguments),
        env=clean_environment(stub),
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def identity(result: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The Resource of the job in what would be exported."""
    assert result.returncode == 0, result.stderr
    resources: list[Any] = json.loads(result.stdout)["resourceMetrics"]
    told = [{one["key"]: one["value"]["stringValue"] for one in each["resource"]["attributes"]} for each in resources]
    return next(each for each in told if each.get("slurm.job.id") == JOB)


def test_a_job_is_told_by_its_name_and_whose_it_is(stub_dir: Path, tmp_path: Path) -> None:
    with running_job(GIVEN) as pid:
        told = identity(ask(stub_dir, tmp_path, pid, "once", "--format", "otlp"))
        doctor = ask(stub_dir, tmp_path, pid, "doctor").stdout
    assert told["gpu.workload.name"] == told["slurm.job.name"] == GIVEN["SLURM_JOB_NAME"]
    assert (told["slurm.job.user"], told["slurm.job.account"], told["slurm.job.partition"]) == ("ada", "physics", "gpu")
    [slurm] = [line for line in doctor.splitlines() if line.split()[1] == "slurm"]
    assert slurm.startswith("ok ")
    assert slurm.endswith(": 1 workload known")


def test_a_process_that_claims_another_job_is_not_believed(stub_dir: Path, tmp_path: Path) -> None:
    with running_job(GIVEN | {"SLURM_JOB_ID": "1"}) as pid:
        told = identity(ask(stub_dir, tmp_path, pid, "once", "--format", "otlp", "--environment", "slurm"))
        doctor = ask(stub_dir, tmp_path, pid, "doctor", "--environment", "slurm").stdout
    assert f"job {JOB}: process {pid} claims to be of job '1'; it is ignored" in doctor
    assert told["gpu.workload.name"] == JOB
    assert "slurm.job.user" not in told


def test_a_job_that_was_given_a_gpu_and_uses_none_is_known_until_it_has_gone() -> None:
    clock = ManualClock()

    def until(source: SlurmSource, happens: Callable[[NameRead], bool]) -> NameRead:
        """Look at the cgroups again and again: while a process begins another program, it has no environment."""
        end_s = time.monotonic() + 30
        while not happens(read := source.read({})):
            assert time.monotonic() < end_s, read
            clock.advance(60.0)
            source._poller.wake()
            time.sleep(0.01)
        return read

    with cgroups_and_job(GIVEN) as (top, pid):
        source = SlurmSource(Path("/proc"), clock, cgroup_root=top)
        known = until(source, lambda read: JOB in read.known).known[JOB]
        assert read_pids(top / "slurm/uid_0" / f"job_{JOB}" / "step_0", limit=8) == (pid,)
    assert (known.names.title, known.claims) == (GIVEN["SLURM_JOB_NAME"], (Claim("0"),))
    until(source, lambda read: not read.known)
    source.close()


AS_NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
ASKING = """
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
def test_without_the_privilege_the_job_goes_by_its_number_and_the_fix_is_told() -> None:
    with running_job(GIVEN) as pid:
        result = subprocess.run(
            [*AS_NOBODY, sys.executable, "-B", "-c", ASKING, JOB, str(pid)],
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
