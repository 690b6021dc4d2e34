"""Names and GPUs of Slurm jobs, from their cgroups and the environment of their processes. No daemon is queried.

A job's user controls the environment of its processes. It is used only if it names the job that the cgroup names, which
the user cannot change. What it says of the job identifies nothing (``WorkloadNames.declared``).

To read an environment takes a lock of the process, and its user can keep that lock, for example with a page of a FUSE
file that never comes. A read that does not return is abandoned.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from otel_gpu.clock import Clock
from otel_gpu.errors import Unavailable
from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import SLURM, Claim, NameRead, WorkloadInfo
from otel_gpu.sources.names.poller import Poller, PublishedNames
from otel_gpu.sources.names.untrusted import sanitize
from otel_gpu.sources.proc.files import read_file
from otel_gpu.sources.workers import Pending, TooLate, Worker

PRIVILEGE_FIX: Final = (
    "run as root with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH (docker run --user 0 --cap-add SYS_PTRACE "
    "--cap-add DAC_READ_SEARCH)"
)

_MAX_TRIES: Final = 3
"""Cycles in which a job's processes are read before the job goes by its id: they may end before they are read."""
_MAX_PIDS: Final = 8
"""Processes of a job that are read in one cycle: one that is readable suffices."""
_SCAN_S: Final = 15.0
"""Interval of scans of the cgroups, for jobs that were granted a GPU and do not use it."""
READ_S: Final = 1.0
"""Time limit of one environment. It takes microseconds."""
MAX_ABANDONED: Final = 8
"""Reads that are abandoned at the same time: each keeps a thread."""
MAX_ABANDONED_OF_USER: Final = 2
"""The same for the processes of one user, so that one user does not use up all of them."""


def read_environ(root: Path, pid: int) -> bytes:
    """The initial environment of a process, at most 1 MiB of it. Raises ``OSError``; may hang."""
    return read_file(os.fspath(root / str(pid) / "environ"))


class _Process(NamedTuple):
    """A process: the inode of its directory tells it from an earlier one with its pid."""

    pid: int
    inode: int
    uid: int


class EnvironReader:
    """Reads environments within ``READ_S``. A process whose read was abandoned is not read until that read returns."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._worker = Worker("otel-gpu-environ")
        self._abandoned: dict[_Process, Pending[bytes | OSError]] = {}

    def read(self, pid: int) -> bytes:
        """The environment of a process. Raises ``OSError``, and ``Unavailable`` if it does not answer."""
        found = os.stat(self._root / str(pid))  # noqa: PTH116 - takes no lock of the process
        process = _Process(pid, found.st_ino, found.st_uid)
        self._abandoned = {each: pending for each, pending in self._abandoned.items() if not pending.finished}
        where = f"{self._root}/{pid}/environ"
        if process in self._abandoned:
            raise Unavailable(f"{where} does not answer")
        of_user = sum(each.uid == process.uid for each in self._abandoned)
        if of_user >= MAX_ABANDONED_OF_USER or len(self._abandoned) >= MAX_ABANDONED:
            others = f"{of_user} processes of user {process.uid}" if of_user else f"{len(self._abandoned)} processes"
            raise Unavailable(f"{where} is not read while {others} do not answer")
        pending = self._worker.start(partial(self._read, pid))
        try:
            result = pending.result(time.monotonic() + READ_S)
        except TooLate:
            self._abandoned[process] = pending
            self._worker.close()
            self._worker = Worker("otel-gpu-environ")
            raise Unavailable(f"{where} does not answer") from None
        if isinstance(result, OSError):
            raise result
        return result

    def close(self) -> None:
        """End the thread, without waiting for it."""
        self._worker.close()

    def _read(self, pid: int) -> bytes | OSError:
        try:
            return read_environ(self._root, pid)
        except OSError as error:  # a worker passes on our own errors only
            return error


class _JobOnGpu(NamedTuple):
    """A job on a GPU: the step that represents it, and its processes."""

    ref: WorkloadRef
    pids: tuple[int, ...]


class _Search(NamedTuple):
    """The job that an environment names, or why there is none. ``is_stuck``: a process may answer later."""

    job: Job | None = None
    problem: str | None = None
    is_stuck: bool = False


class SlurmSource:
    """Reads one environment per job, once, on a thread of its own: the read takes a lock of the process.

    Knows the jobs on GPUs, and those with a cgroup below ``cgroup_root`` if that is visible.
    """

    def __init__(
        self, proc_root: Path, clock: Clock, name: str = "slurm", *, cgroup_root: Path = Path("/sys/fs/cgroup")
    ) -> None:
        self._root = proc_root
        self._cgroup_root = cgroup_root
        self._clock = clock
        self._name = name
        self._published = PublishedNames(SLURM)
        self._poller = Poller(name, self._published, self._poll)
        self._lock = threading.Lock()
        self._on_gpus: Mapping[str, _JobOnGpu] = {}
        self._resolved: frozenset[str] = frozenset()
        self._stuck: frozenset[str] = frozenset()  # jobs that are tried again with the next scan
        # Used by the thread only:
        self._environs = EnvironReader(proc_root)
        self._known: dict[str, WorkloadInfo] = {}
        self._tries: dict[str, int] = {}
        self._problems: dict[str, str] = {}
        self._in_cgroups: Mapping[str, Mapping[str, Path]] = {}  # cgroups of each job's steps
        self._scanned_ns: int | None = None
        self._steps_read: dict[str, tuple[str, ...]] = {}

    @property
    def name(self) -> str:
        """Its name in ``sources`` and in ``otel_gpu.source``."""
        return self._name

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        """The latest answer. New jobs among the workloads are read before the next cycle."""
        on_gpus = _jobs(workloads)
        with self._lock:
            before, self._on_gpus, done = self._on_gpus, on_gpus, self._resolved | self._stuck
        pending = on_gpus.keys() - done
        self._poller.start()
        if pending or _refs(on_gpus) != _refs(before):
            self._poller.wake()
        return self._published.read(frozenset(pending))

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first scan; false if that takes longer than ``timeout_s``."""
        return self._published.wait(timeout_s)

    def close(self) -> None:
        """Stop reading."""
        self._poller.stop()
        self._environs.close()

    # -- on the thread ----------------------------------------------------------------

    def _poll(self, poller: Poller) -> None:
        while not poller.stopping:
            self._update()
            poller.reset_backoff()
            poller.sleep(_SCAN_S)

    def _update(self) -> None:
        with self._lock:
            on_gpus = self._on_gpus
        has_scanned = self._scan()
        refs = {job_id: _first_step(job_id, steps) for job_id, steps in self._in_cgroups.items()}
        changed = self._drop_ended(refs | {job_id: job.ref for job_id, job in on_gpus.items()})
        problems = len(self._problems)
        for job_id in sorted(on_gpus.keys() - self._resolved):
            changed |= self._resolve(on_gpus[job_id])
        for job_id in sorted(self._in_cgroups) if has_scanned else ():
            if self._may_have_news(job_id, on_gpu=job_id in on_gpus):
                changed |= self._resolve_by_cgroup(job_id)
        if changed:
            self._published.publish(MappingProxyType(dict(self._known)))
        new = max(0, len(self._problems) - problems)
        self._published.set_problems(tuple(self._problems.values()), errors=new)

    def _scan(self) -> bool:
        """Scan the cgroups for jobs if that is due; true if so."""
        now_ns = self._clock.monotonic_ns()
        if self._scanned_ns is not None and now_ns - self._scanned_ns < (_SCAN_S - 1.0) * 1e9:
            return False
        self._scanned_ns = now_ns
        self._in_cgroups = read_jobs(self._cgroup_root)
        return True

    def _drop_ended(self, refs: Mapping[str, WorkloadRef]) -> bool:
        """Drop ended jobs, and represent each other job by a step that still exists; true if something changed."""
        with self._lock:
            self._resolved &= refs.keys()
            self._stuck &= refs.keys()
        for by_job in (self._tries, self._problems, self._steps_read):
            for job_id in by_job.keys() - refs.keys():
                del by_job[job_id]
        known = {job_id: info._replace(ref=refs[job_id]) for job_id, info in self._known.items() if job_id in refs}
        changed = known != self._known
        self._known = known if changed else self._known
        return changed

    def _resolve(self, on_gpu: _JobOnGpu) -> bool:
        """Read the environment of a job on a GPU; true if it was found."""
        job_id = on_gpu.ref.id
        tries = self._tries[job_id] = self._tries.get(job_id, 0) + 1
        job, problem, is_stuck = self._find(job_id, on_gpu.pids[:_MAX_PIDS])
        if job is None and problem is None and tries < _MAX_TRIES:
            return False  # its processes have ended; the next cycle may have others
        is_stuck = is_stuck and job is None  # a process may answer later, and the job may start another one
        if job is not None:
            self._add(on_gpu.ref, job)
        elif problem is not None:
            self._problems[job_id] = problem
        with self._lock:
            self._stuck = self._stuck | {job_id} if is_stuck else self._stuck - {job_id}
            self._resolved = self._resolved if is_stuck else self._resolved | {job_id}
        return job is not None

    def _may_have_news(self, job_id: str, *, on_gpu: bool) -> bool:
        """Whether a job's cgroups may give its names, or through a new step its GPUs."""
        known = self._known.get(job_id)
        if known is None:
            return not on_gpu
        return not known.claims and self._steps_read.get(job_id) != tuple(self._in_cgroups[job_id])

    def _resolve_by_cgroup(self, job_id: str) -> bool:
        """Read environments of a job, one of each step, until one has GPUs; true if something is new."""
        steps = self._in_cgroups[job_id]
        self._steps_read[job_id] = tuple(steps)
        pids = [pid for step in list(steps.values())[:_MAX_PIDS] for pid in read_pids(step, limit=1)]
        job, problem, _ = self._find(job_id, pids, with_claims=True)
        known = self._known.get(job_id)
        if job is None:
            if problem is not None and known is None:
                self._problems[job_id] = problem
            return False
        if known is None:
            self._add(_first_step(job_id, steps), job)
            with self._lock:
                self._resolved |= {job_id}
            return True
        self._known[job_id] = known._replace(claims=job.claims)  # names do not change
        return bool(job.claims)

    def _add(self, ref: WorkloadRef, job: Job) -> None:
        self._known[job.id] = WorkloadInfo(ref, job.names, claims=job.claims)
        self._problems.pop(job.id, None)
        if job.changed is not None:
            self._problems[job.id] = f"job {job.id}: {job.changed} is too long or not text; only a part is exported"

    def _find(self, job_id: str, pids: Iterable[int], *, with_claims: bool = False) -> _Search:
        """The first environment that names this job (and its GPUs, if one does), or the reason why there is none."""
        found: Job | None = None
        problem: str | None = None
        is_stuck = False
        for pid in pids:
            try:
                job = parse_job(self._environs.read(pid))
            except Unavailable as error:
                problem, is_stuck = f"job {job_id}: {error}", True
                continue
            except PermissionError:
                problem = f"job {job_id}: no permission to read {self._root}/{pid}/environ; {PRIVILEGE_FIX}"
                continue
            except OSError:  # the process has ended
                continue
            if job is not None and job.id == job_id:
                if job.claims or not with_claims:
                    return _Search(job)
                found = found or job
            elif job is not None:
                problem = f"job {job_id}: process {pid} claims to be of job {sanitize(job.id)!r}; it is ignored"
        return _Search(found, problem, is_stuck)


def _first_step(job_id: str, steps: Iterable[str]) -> WorkloadRef:
    """The reference that the cgroups of a job's first step give."""
    return WorkloadRef(WorkloadKind.SLURM_JOB, job_id, slurm_step=min(steps, default=None))


def _refs(jobs: Mapping[str, _JobOnGpu]) -> list[WorkloadRef]:
    return [job.ref for job in jobs.values()]


def _jobs(workloads: Mapping[WorkloadRef, Collection[int]]) -> dict[str, _JobOnGpu]:
    """The jobs by their ids, with the processes of all their steps. The first step represents the job.

    A job inside a system container is left out: that container can choose the number of its job.
    """
    steps: dict[str, list[WorkloadRef]] = {}
    for ref in workloads:
        if ref.kind is WorkloadKind.SLURM_JOB and ref.outer_id is None:
            steps.setdefault(ref.id, []).append(ref)
    return {job_id: _job(refs, workloads) for job_id, refs in steps.items()}


def _job(refs: Iterable[WorkloadRef], workloads: Mapping[WorkloadRef, Collection[int]]) -> _JobOnGpu:
    ordered = sorted(refs, key=lambda ref: ref.slurm_step or "")
    return _JobOnGpu(ordered[0], tuple(pid for ref in ordered for pid in sorted(workloads[ref])))


# ---------------------------------------------------------------------------- the environment of processes

_EXTRA: Final = (
    ("slurm.job.account", "SLURM_JOB_ACCOUNT"),
    ("slurm.job.name", "SLURM_JOB_NAME"),
    ("slurm.job.partition", "SLURM_JOB_PARTITION"),
    ("slurm.job.user", "SLURM_JOB_USER"),
)
_GPUS: Final = re.compile(r"[0-9]{1,4}(?:-[0-9]{1,4})?(?:,[0-9]{1,4}(?:-[0-9]{1,4})?){0,255}", re.ASCII)
_MIG: Final = re.compile(r"MIG-[0-9A-Za-z/-]{8,80}(?:,MIG-[0-9A-Za-z/-]{8,80}){0,255}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its environment describes it."""

    id: str
    names: WorkloadNames
    claims: tuple[Claim, ...]
    changed: str | None = None
    """A variable that is exported only in part."""


def parse_job(environ: bytes) -> Job | None:
    """The job that an environment names; ``None`` if it names none."""
    variables = _variables(environ)
    job_id = variables.get("SLURM_JOB_ID", "")
    if not job_id:
        return None
    texts = {key: (variable, variables.get(variable)) for key, variable in _EXTRA}
    sanitized = {key: sanitize(text) for key, (_, text) in texts.items()}
    changed = next((variable for key, (variable, text) in texts.items() if text and sanitized[key] != text), None)
    names = WorkloadNames(
        title=sanitized["slurm.job.name"],
        declared=tuple((key, text) for key, text in sanitized.items() if text is not None),
    )
    return Job(job_id, names, _claims(variables), changed)


def _variables(environ: bytes) -> dict[str, str]:
    """Variables of Slurm and CUDA, the first of each name, as in getenv(3). An entry without a final zero was cut."""
    found: dict[str, str] = {}
    for entry in environ.split(b"\0")[:-1]:
        if entry.startswith((b"SLURM_", b"CUDA_VISIBLE_DEVICES=")):
            name, separator, text = entry.decode("utf-8", "surrogateescape").partition("=")
            if separator:
                found.setdefault(name, text)
    return found


def _claims(variables: Mapping[str, str]) -> tuple[Claim, ...]:
    """The GPUs that were granted to the job on this node.

    SLURM_JOB_GPUS and SLURM_STEP_GPUS have indices in PCI order, whatever the cgroup shows (sbatch(1); gres_common.c,
    common_gres_set_env). Tasks inherit the former from the batch script, which may run on another node: in a job of
    several nodes only the step's are of this node. With MIG these indices count instances of all GPUs in one sequence;
    CUDA_VISIBLE_DEVICES then has their UUIDs.
    """
    visible = variables.get("CUDA_VISIBLE_DEVICES", "")
    if _MIG.fullmatch(visible):
        return tuple(Claim(uuid) for uuid in dict.fromkeys(visible.split(",")))
    has_one_node = variables.get("SLURM_JOB_NUM_NODES", variables.get("SLURM_NNODES")) == "1"
    of_job = variables.get("SLURM_JOB_GPUS", "") if has_one_node else ""
    return tuple(Claim(str(index)) for index in parse_gpus(of_job or variables.get("SLURM_STEP_GPUS", "")))


def parse_gpus(text: str) -> tuple[int, ...]:
    """Indices of GPUs from ``0,2`` or ``0-3``; empty if it is neither."""
    if not _GPUS.fullmatch(text):
        return ()
    indices: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        indices.update(range(int(first), min(int(last or first), int(first) + 255) + 1))
    return tuple(sorted(indices))


# ---------------------------------------------------------------------------- the cgroups that slurmstepd creates

MAX_JOBS: Final = 1024
"""Jobs of a node that are read."""
MAX_CGROUPS: Final = 64
"""Cgroups below one step that are read; each task may have one."""

_V1: Final = ("", "freezer", "cpuset", "devices", "memory", "systemd")
"""Hierarchies of cgroup v1 that Slurm may use. Each has all jobs; proctrack/cgroup uses the freezer."""

_JOB: Final = re.compile(r"job_([0-9]{1,20}(?:[_+][0-9]{1,20})?)", re.ASCII)
_STEP: Final = re.compile(r"step_([0-9A-Za-z_.+-]{1,64})", re.ASCII)


def read_jobs(root: Path) -> dict[str, Mapping[str, Path]]:
    """The steps of every job below ``/sys/fs/cgroup``, each with its cgroup; empty if that is not visible."""
    found: dict[str, dict[str, Path]] = {}
    for job_id, cgroup in islice(_job_cgroups(root), MAX_JOBS):
        steps = {match[1]: cgroup / name for name in _names(cgroup) if (match := _STEP.fullmatch(name))}
        found.setdefault(job_id, {}).update(steps)
    return dict(found)


def read_pids(step: Path, limit: int) -> tuple[int, ...]:
    """At most ``limit`` pids of a step in the reader's pid namespace, without slurmstepd's own (cgroup v2)."""
    pids: list[int] = []
    for directory, below, _ in islice(os.walk(step), MAX_CGROUPS):
        below[:] = sorted(name for name in below if directory != str(step) or name != "slurm")
        try:
            text = read_file(f"{directory}/cgroup.procs")
        except OSError:  # it has ended
            continue
        pids += [int(word) for word in text.split() if word.isdigit() and word != b"0"]  # 0: not in this pid namespace
        if len(pids) >= limit:
            break
    return tuple(pids[:limit])


def _job_cgroups(root: Path) -> Iterator[tuple[str, Path]]:
    # v2: system.slice/[<node>_]slurmstepd.scope/job_7/step_0/user/task_0
    for scope in _names(root / "system.slice"):
        if scope.endswith("slurmstepd.scope"):
            yield from _job_cgroups_in(root / "system.slice" / scope)
    # v1: <controller>/slurm[_<node>]/uid_1000/job_7/step_0/task_0
    for top in _V1:
        trees = [root / top / name for name in _names(root / top) if name.startswith("slurm")]
        for tree in trees:
            for user in _names(tree):
                if user.startswith("uid_"):
                    yield from _job_cgroups_in(tree / user)
        if trees:
            return


def _job_cgroups_in(directory: Path) -> Iterator[tuple[str, Path]]:
    for name in _names(directory):
        if match := _JOB.fullmatch(name):
            yield match[1], directory / name


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - iterdir() does not fail before it is iterated
    except OSError:
        return []
