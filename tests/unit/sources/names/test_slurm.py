from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.clock import ManualClock
from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import SLURM, Claim, NameRead
from otel_gpu.sources.names import slurm
from otel_gpu.sources.names.slurm import SlurmSource, parse_gpus, parse_job, read_environ, read_jobs, read_pids
from otel_gpu.sources.names.untrusted import MAX_TEXT_BYTES
from tests.proc_tree import ProcTree

WAIT_S = 10.0
NODE = {"SLURM_JOB_NUM_NODES": "1"}


def environ(**variables: str | bytes) -> bytes:
    texts = {name: text.encode() if isinstance(text, str) else text for name, text in variables.items()}
    return b"".join(name.encode() + b"=" + text + b"\0" for name, text in texts.items())


def job(id_: str = "7", step: str | None = "0") -> WorkloadRef:
    return WorkloadRef(WorkloadKind.SLURM_JOB, id_, slurm_step=step)


# ---------------------------------------------------------------------------- environments


def test_a_job_has_a_name_user_account_and_partition() -> None:
    found = parse_job(
        b"PATH=/bin\0"
        + environ(
            SLURM_JOB_ID="7",
            SLURM_JOB_NAME="train",
            SLURM_JOB_USER="ada",
            SLURM_JOB_ACCOUNT="physics",
            SLURM_JOB_PARTITION="gpu",
        )
    )
    assert found is not None
    assert (found.id, found.names.title) == ("7", "train")
    assert found.names.declared == (
        ("slurm.job.account", "physics"),
        ("slurm.job.name", "train"),
        ("slurm.job.partition", "gpu"),
        ("slurm.job.user", "ada"),
    )
    assert found.claims == ()
    assert found.changed is None


def test_an_unset_or_empty_variable_is_absent() -> None:
    found = parse_job(environ(SLURM_JOB_ID="7", SLURM_JOB_ACCOUNT=""))
    assert found is not None
    assert (found.names.title, found.names.extra, found.names.declared) == (None, (), ())


@pytest.mark.parametrize("data", [b"", b"\0", b"PATH=/bin\0", b"SLURM_JOB_ID\0", b"SLURM_JOB_ID=\0", b"SLURM_JOB_ID=7"])
def test_an_environment_without_a_job_id_has_no_job(data: bytes) -> None:
    """The last variable was cut: each one ends with a zero."""
    assert parse_job(data) is None


def test_the_first_of_two_equal_variables_counts() -> None:
    found = parse_job(environ(SLURM_JOB_ID="7") + environ(SLURM_JOB_ID="8"))
    assert found is not None
    assert found.id == "7"


@pytest.mark.parametrize("name", [b"\xff\xfe", b"x" * 10_240, "€".encode() * 1024])
def test_a_sanitized_name_is_reported(name: bytes) -> None:
    found = parse_job(environ(SLURM_JOB_ID="7", SLURM_JOB_NAME=name))
    assert found is not None
    assert found.names.title is not None
    assert len(found.names.title.encode("utf-8")) <= MAX_TEXT_BYTES
    assert found.changed == "SLURM_JOB_NAME"


def test_a_job_name_may_have_any_characters() -> None:
    name = 'a"b\nc🚀<script>'
    found = parse_job(environ(SLURM_JOB_ID="7", SLURM_JOB_NAME=name))
    assert found is not None
    assert (found.names.title, found.changed) == (name, None)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0", (0,)), ("2,0", (0, 2)), ("0-3", (0, 1, 2, 3)), ("0-1,4", (0, 1, 4)), ("1,1", (1,)), ("3-1", ())]
    + [
        (text, ()) for text in ("", "NoDevFiles", "GPU-1", "-1", "0,", "a", "0x1", "99999", "0-", "\N{SUPERSCRIPT TWO}")
    ],
)
def test_indices_of_gpus(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_gpus(text) == numbers


def test_the_length_of_a_range_is_bounded() -> None:
    assert len(parse_gpus("0-9999")) == 256


@pytest.mark.parametrize(
    ("variables", "devices"),
    [
        ({**NODE, "SLURM_JOB_GPUS": "0,2"}, ["0", "2"]),
        ({**NODE, "SLURM_STEP_GPUS": "1"}, ["1"]),
        ({**NODE, "SLURM_JOB_GPUS": "0,1", "SLURM_STEP_GPUS": "1"}, ["0", "1"]),
        ({"SLURM_NNODES": "1", "SLURM_JOB_GPUS": "3"}, ["3"]),
        # Of several nodes the batch script's are another's.
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_GPUS": "0,1", "SLURM_STEP_GPUS": "3"}, ["3"]),
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_GPUS": "0,1"}, []),
        # Relative to the cgroup, and so not to be used.
        ({**NODE, "GPU_DEVICE_ORDINAL": "0", "CUDA_VISIBLE_DEVICES": "0"}, []),
        # Instances are counted over all GPUs.
        ({**NODE, "SLURM_JOB_GPUS": "5", "CUDA_VISIBLE_DEVICES": "MIG-11111111-aa,MIG-22222222-bb"},
         ["MIG-11111111-aa", "MIG-22222222-bb"]),
        ({**NODE, "SLURM_JOB_GPUS": "5", "CUDA_VISIBLE_DEVICES": "MIG-1;rm -rf"}, ["5"]),
    ],
)  # fmt: skip
def test_the_gpus_of_a_job_on_this_node(variables: dict[str, str], devices: list[str]) -> None:
    found = parse_job(environ(SLURM_JOB_ID="7", **variables))
    assert found is not None
    assert found.claims == tuple(Claim(device) for device in devices)


# ---------------------------------------------------------------------------- the source


class Node:
    """A node with processes of jobs, and the source that reads them."""

    def __init__(self, root: Path) -> None:
        self.tree = ProcTree(root)
        self.clock = ManualClock()
        self.cgroups = root.parent / "cgroup"
        self.source = SlurmSource(root, self.clock, cgroup_root=self.cgroups)
        self.reads: list[int] = []

    def add(self, pid: int, **variables: str) -> None:
        self.tree.add(pid)
        self.tree.write(f"{pid}/environ", environ(**variables))

    def add_cgroup(self, path: str, *pids: int) -> Path:
        directory = self.cgroups / path
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        return directory

    def later(self, until: Callable[[NameRead], bool]) -> NameRead:
        """The answer without workloads on GPUs, after the next scan of the cgroups."""
        self.clock.advance(15.0)
        self.source._poller.wake()
        return self.read({}, until)

    def read(self, workloads: dict[WorkloadRef, list[int]], until: Callable[[NameRead], bool]) -> NameRead:
        """Read cycle after cycle until the condition holds."""
        for _ in range(500):
            read = self.source.read(workloads)
            if until(read):
                return read
            threading.Event().wait(0.01)
        raise AssertionError(read)

    def settled(self, workloads: dict[WorkloadRef, list[int]]) -> NameRead:
        """The answer when nothing is pending."""
        return self.read(workloads, lambda read: not read.pending)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(tmp_path / "proc")

    def counted(root: Path, pid: int) -> bytes:
        made.reads.append(pid)
        return read_environ(root, pid)

    monkeypatch.setattr(slurm, "read_environ", counted)
    yield made
    made.source.close()


def test_without_jobs_nothing_is_read_and_the_source_is_ok(node: Node) -> None:
    workloads = {WorkloadRef(WorkloadKind.CONTAINER, "a" * 64): [1]}
    node.source.read(workloads)
    assert node.source.wait(WAIT_S)
    assert node.source.read(workloads) == NameRead(speaker=SLURM)
    assert node.reads == []


def test_a_job_is_pending_until_its_environment_is_read(node: Node) -> None:
    node.add(70, SLURM_JOB_ID="7", SLURM_JOB_NAME="train", SLURM_JOB_USER="ada", SLURM_JOB_GPUS="1", **NODE)
    first = node.source.read({job(): [70]})
    assert first.pending | first.known.keys() == {"7"}
    assert node.source.wait(WAIT_S)
    read = node.settled({job(): [70]})
    known = read.known["7"]
    assert (known.ref, known.names.title, known.running, known.since_s) == (job(), "train", True, None)
    assert known.claims == (Claim("1"),)
    assert (read.state, read.errors) == (SourceState.OK, 0)


def test_a_job_is_read_once_and_the_same_object_is_published(node: Node) -> None:
    node.add(70, SLURM_JOB_ID="7")
    node.add(71, SLURM_JOB_ID="7")
    before = node.settled({job(): [71, 70]})
    for _ in range(5):
        assert node.source.read({job(): [70, 71]}).known is before.known
    assert node.reads == [70]


def test_another_process_is_read_if_one_has_ended(node: Node) -> None:
    node.add(71, SLURM_JOB_ID="7", SLURM_JOB_NAME="train")
    assert node.settled({job(): [70, 71]}).known["7"].names.title == "train"


def test_a_job_without_processes_is_not_pending_after_a_few_tries(node: Node) -> None:
    read = node.settled({job(): [70]})
    assert (dict(read.known), read.state, node.source._tries) == ({}, SourceState.OK, {"7": 3})


def test_a_job_that_ended_before_it_was_read_is_not_pending(node: Node) -> None:
    assert not node.settled({job(): []}).known


def test_a_job_that_leaves_is_dropped_and_read_again_when_it_returns(node: Node) -> None:
    node.add(70, SLURM_JOB_ID="7")
    node.settled({job(): [70]})
    node.read({}, lambda read: not read.known)
    assert not node.source._tries
    node.settled({job(): [70]})
    assert node.reads == [70, 70]


def test_the_first_existing_step_represents_the_job(node: Node) -> None:
    node.add(70, SLURM_JOB_ID="7")
    node.add(71, SLURM_JOB_ID="7")
    both = {job(step="1"): [71], job(step="0"): [70]}
    assert node.settled(both).known["7"].ref == job(step="0")
    left = {job(step="1"): [71]}
    assert node.read(left, lambda read: read.known["7"].ref == job(step="1")).pending == frozenset()
    assert node.reads == [70]


def test_an_environment_of_another_job_is_ignored_and_counted_once(node: Node) -> None:
    """A user can set the variable, but not change the cgroup."""
    node.add(70, SLURM_JOB_ID="1", SLURM_JOB_NAME="boss")
    read = node.settled({job(): [70]})
    assert not read.known
    assert read.state is SourceState.DEGRADED
    assert read.reason == "job 7: process 70 claims to be of job '1'; it is ignored"
    assert node.source.read({job(): [70]}).state is SourceState.DEGRADED


def test_a_missing_permission_is_reported_with_the_fix_until_the_job_ends(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_root: Path, _pid: int) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(slurm, "read_environ", denied)
    for pid in (70, 80):
        node.add(pid)
    workloads = {job("7"): [70], job("8"): [80]}
    errors = 0

    def settled(read: NameRead) -> bool:
        nonlocal errors
        errors += read.errors
        return not read.pending and read.state is SourceState.DEGRADED

    read = node.read(workloads, settled)
    assert read.reason is not None
    assert read.reason.startswith(
        f"job 7: no permission to read {node.tree.root}/70/environ; run as root with CAP_SYS_PTR"
    )
    assert read.reason.endswith("(and 1 more)")
    assert errors == 2
    assert node.source.read(workloads).errors == 0
    node.read({}, lambda read: read.state is SourceState.OK)


def test_a_long_name_is_cut_and_counted(node: Node) -> None:
    node.add(70, SLURM_JOB_ID="7", SLURM_JOB_NAME="x" * 5000)
    read = node.settled({job(): [70]})
    assert read.known["7"].names.title == "x" * 125 + "…"
    assert read.reason == "job 7: SLURM_JOB_NAME is too long or not text; only a part is exported"


class Hanging:
    """Reads of these processes return only after ``let_go``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *pids: int) -> None:
        self.pids = set(pids)
        self.let_go = threading.Event()
        self.reads: list[int] = []
        self.threads: set[str | None] = set()
        monkeypatch.setattr(slurm, "READ_S", 0.05)
        monkeypatch.setattr(slurm, "read_environ", self._read)

    def _read(self, root: Path, pid: int) -> bytes:
        self.reads.append(pid)
        if pid in self.pids:
            self.let_go.wait(60)
        return read_environ(root, pid)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Hanging]]:
    made: list[Hanging] = []

    def make(*pids: int) -> Hanging:
        made.append(Hanging(monkeypatch, *pids))
        return made[-1]

    yield make
    for each in made:
        each.let_go.set()


def test_a_process_that_does_not_respond_delays_neither_its_job_nor_the_next_one(
    node: Node, hanging: Callable[..., Hanging]
) -> None:
    reads = hanging(70)
    for pid, job_id in ((70, "7"), (71, "7"), (80, "8")):
        node.add(pid, SLURM_JOB_ID=job_id, SLURM_JOB_NAME=f"of {job_id}")
    read = node.settled({job("7"): [70, 71], job("8"): [80]})
    assert {id_: info.names.title for id_, info in read.known.items()} == {"7": "of 7", "8": "of 8"}
    assert reads.reads == [70, 71, 80]


def test_a_job_is_named_once_its_only_process_responds_and_delays_no_other(
    node: Node, hanging: Callable[..., Hanging]
) -> None:
    reads = hanging(70)
    node.add(70, SLURM_JOB_ID="7", SLURM_JOB_NAME="late")
    node.add(80, SLURM_JOB_ID="8")
    workloads = {job("7"): [70], job("8"): [80]}
    read = node.settled(workloads)
    assert read.known.keys() == {"8"}
    assert (read.state, read.reason) == (
        SourceState.DEGRADED,
        f"job 7: {node.tree.root}/70/environ does not answer",
    )
    for _ in range(3):  # it is quarantined: no second thread waits for it
        node.clock.advance(15.0)
        node.source._poller.wake()
        node.settled(workloads)
    assert reads.reads.count(70) == 1
    reads.let_go.set()

    def named(read: NameRead) -> bool:
        node.source._poller.wake()
        return "7" in read.known

    assert node.read(workloads, named).known["7"].names.title == "late"
    assert node.settled(workloads).state is SourceState.OK


def test_reads_that_are_abandoned_are_bounded_and_one_user_cannot_use_them_up(
    node: Node, hanging: Callable[..., Hanging], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = hanging(*range(100, 200))
    for pid in range(100, 140):
        node.add(pid, SLURM_JOB_ID=str(pid))
    node.add(200, SLURM_JOB_ID="200")
    uids = {pid: pid // 10 for pid in range(100, 200)}
    real_stat = os.stat

    def stat_of_users(path: Path, **named: Any) -> os.stat_result:
        found = real_stat(path, **named)
        uid = uids.get(int(Path(path).name), 0) if Path(path).parent == node.tree.root else found.st_uid
        return os.stat_result((*found[:4], uid, *found[5:]))

    monkeypatch.setattr(os, "stat", stat_of_users)
    read = node.settled({job(str(pid)): [pid] for pid in (*range(100, 120), 200)})
    assert read.known.keys() == {"200"}
    assert reads.reads == [100, 101, 110, 111, 200], "two of each user"
    node.settled({job(str(pid)): [pid] for pid in range(100, 140)})
    assert len([pid for pid in reads.reads if pid < 200]) == 8
    node.add(201, SLURM_JOB_ID="201")
    last = node.settled({job(str(pid)): [pid] for pid in (*range(100, 140), 201)})
    assert "201" not in last.known


# ---------------------------------------------------------------------------- jobs that use no GPU

V2 = "system.slice/slurmstepd.scope"
GIVEN = {**NODE, "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train", "SLURM_JOB_GPUS": "1"}


@pytest.mark.parametrize(
    ("path", "step"),
    [
        (f"{V2}/job_7/step_0/user/task_0", "0"),
        ("system.slice/n1_slurmstepd.scope/job_7/step_batch/user/task_0", "batch"),
        ("freezer/slurm/uid_1000/job_7/step_0", "0"),
        ("cpuset/slurm_n1/uid_1000/job_7/step_batch/task_0", "batch"),
    ],
)
def test_a_job_with_a_grant_and_no_gpu_use_is_found_by_its_cgroup(node: Node, path: str, step: str) -> None:
    node.add(70, **GIVEN)
    node.add_cgroup(path, 0, 70)
    node.source.read({})
    assert node.source.wait(WAIT_S)
    read = node.source.read({})
    assert (read.known["7"].ref, read.known["7"].names.title) == (job(step=step), "train")
    assert read.known["7"].claims == (Claim("1"),)
    assert (read.state, read.pending) == (SourceState.OK, frozenset())


def test_a_job_found_by_its_cgroup_is_read_once_and_dropped_when_it_ends(node: Node) -> None:
    node.add(70, **GIVEN)
    step = node.add_cgroup(f"{V2}/job_7/step_0", 70)
    before = node.later(lambda read: "7" in read.known)
    assert node.later(lambda read: bool(read.known)).known is before.known
    assert not node.source.read({job(): [70]}).pending
    assert node.reads == [70]
    shutil.rmtree(step.parent)
    node.later(lambda read: not read.known)
    assert not node.source._steps_read


def test_a_job_without_processes_is_read_again(node: Node) -> None:
    node.add_cgroup(f"{V2}/job_7/step_extern")
    node.source.read({})
    assert node.source.wait(WAIT_S)
    assert not node.source.read({}).known
    node.add(70, **GIVEN)
    node.add_cgroup(f"{V2}/job_7/step_batch/user/task_0", 70)
    node.later(lambda read: "7" in read.known)


def test_claims_of_a_later_step_are_added_and_names_do_not_change(node: Node) -> None:
    """In a job of several nodes the batch script does not know the GPUs of this node."""
    node.add(70, SLURM_JOB_ID="7", SLURM_JOB_NAME="train", SLURM_JOB_NUM_NODES="2")
    node.add_cgroup(f"{V2}/job_7/step_batch/user/task_0", 70)
    assert node.later(lambda read: "7" in read.known).known["7"].claims == ()
    node.add(71, SLURM_JOB_ID="7", SLURM_JOB_NAME="hostname", SLURM_JOB_NUM_NODES="2", SLURM_STEP_GPUS="3")
    node.add_cgroup(f"{V2}/job_7/step_0/user/task_0", 71)
    known = node.later(lambda read: bool(read.known["7"].claims)).known["7"]
    assert (known.claims, known.names.title) == ((Claim("3"),), "train")


def test_slurms_own_processes_are_not_read(node: Node) -> None:
    node.add(69, SLURM_JOB_ID="1")
    node.add(70, **GIVEN)
    node.add_cgroup(f"{V2}/job_7/step_0/slurm", 69)
    node.add_cgroup(f"{V2}/job_7/step_0/user/task_0", 70)
    node.later(lambda read: "7" in read.known)
    assert node.reads == [70]


def test_a_missing_permission_for_a_job_in_a_cgroup_is_reported(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_root: Path, _pid: int) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(slurm, "read_environ", denied)
    node.add(70)
    node.add_cgroup(f"{V2}/job_7/step_0", 70)
    read = node.later(lambda read: read.reason is not None and "no permission to read" in read.reason)
    assert (read.state, dict(read.known)) == (SourceState.DEGRADED, {})


@pytest.mark.parametrize("path", ["job_x/step_0", "job_7;/step_0", "user.slice/job_7/step_0", "job_" + "7" * 30])
def test_cgroups_of_other_kinds_are_skipped(node: Node, path: str) -> None:
    node.add_cgroup(f"{V2}/{path}", 70)
    assert read_jobs(node.cgroups) == {}


def test_the_number_of_jobs_and_cgroups_is_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "MAX_JOBS", 3)
    monkeypatch.setattr(slurm, "MAX_CGROUPS", 2)
    for number in range(5):
        node.add_cgroup(f"{V2}/job_{number}/step_0/user/task_0", number + 1)
    jobs = read_jobs(node.cgroups)
    assert len(jobs) == 3
    assert read_pids(jobs["0"]["0"], limit=1) == ()  # it is in the third


def test_the_environment_of_a_real_process_is_read() -> None:
    assert b"PATH=" in read_environ(Path("/proc"), os.getpid())
