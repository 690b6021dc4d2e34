"""What Slurm jobs are called: from the environment that Slurm gave to their processes. No daemon is asked.

The environment is the job's own, and its user can write into it what he likes: it is believed only where it names the
job that the cgroup names, which a user cannot change.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from otel_gpu.clock import Clock
from otel_gpu.model import SourceState, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import Claim, NameRead, WorkloadInfo
from otel_gpu.sources.beside import Beside, Board
from otel_gpu.sources.outside import told
from otel_gpu.sources.proc.files import read_file
from otel_gpu.sources.slurm_cgroups import read_jobs, read_pids

PRIVILEGE_FIX: Final = (
    "run as root with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH (docker run --user 0 --cap-add SYS_PTRACE "
    "--cap-add DAC_READ_SEARCH)"
)

_TRIES: Final = 3
"""Cycles in which a job's processes are read before it goes by its number: they may have ended meanwhile."""
_PIDS: Final = 8
"""Of a job's processes so many are read in one cycle: one that can be read will do."""
_WALK_S: Final = 15.0
"""How often it looks which jobs there are: one that was given a GPU and does not use it is in no cycle's question."""
_STUCK_S: Final = 5.0
"""A read that takes longer waits for a lock that a process stuck in the driver holds; nobody need wait with it."""

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
    """What a job's environment says of it."""

    id: str
    names: WorkloadNames
    claims: tuple[Claim, ...]
    changed: str | None = None
    """Which variable was too long or broken to be told as it is."""


def read_environ(root: Path, pid: int) -> bytes:
    """A process's environment as it was when it started, at most 1 MiB of it. Raises ``OSError``; may hang."""
    return read_file(os.fspath(root / str(pid) / "environ"))


def parse_job(data: bytes) -> Job | None:
    """The job that an environment tells of; ``None`` if it tells of none."""
    variables = _slurm_variables(data)
    job_id = variables.get("SLURM_JOB_ID", "")
    if not job_id:
        return None
    given = {key: (variable, variables.get(variable)) for key, variable in _EXTRA}
    fit = {key: told(text) for key, (_, text) in given.items()}
    changed = next((variable for key, (variable, text) in given.items() if text and fit[key] != text), None)
    names = WorkloadNames(
        title=fit["slurm.job.name"], extra=tuple((key, text) for key, text in fit.items() if text is not None)
    )
    return Job(job_id, names, _claims(variables), changed)


def _slurm_variables(data: bytes) -> dict[str, str]:
    """The first of each, as getenv(3) finds it. Every one ends with a zero; what follows the last was cut off."""
    found: dict[str, str] = {}
    for entry in data.split(b"\0")[:-1]:
        if entry.startswith((b"SLURM_", b"CUDA_VISIBLE_DEVICES=")):
            name, separator, text = entry.decode("utf-8", "surrogateescape").partition("=")
            if separator:
                found.setdefault(name, text)
    return found


def _claims(variables: Mapping[str, str]) -> tuple[Claim, ...]:
    """The GPUs that were given to the job on this node, as far as its environment tells.

    SLURM_JOB_GPUS and SLURM_STEP_GPUS hold numbers of GPUs as they stand on the PCI bus, whatever the cgroup shows
    (sbatch(1); gres_common.c, common_gres_set_env). Tasks inherit the former from the batch script, which may run on
    another node: in a job of several nodes only the step's own are of this one. Where GPUs are divided (MIG) these
    numbers count instances, of all GPUs in one row; then CUDA_VISIBLE_DEVICES has their UUIDs.
    """
    visible = variables.get("CUDA_VISIBLE_DEVICES", "")
    if _MIG.fullmatch(visible):
        return tuple(Claim(uuid) for uuid in dict.fromkeys(visible.split(",")))
    one_node = variables.get("SLURM_JOB_NUM_NODES", variables.get("SLURM_NNODES")) == "1"
    of_job = variables.get("SLURM_JOB_GPUS", "") if one_node else ""
    return tuple(Claim(str(number)) for number in parse_gpus(of_job or variables.get("SLURM_STEP_GPUS", "")))


def parse_gpus(text: str) -> tuple[int, ...]:
    """Numbers of GPUs from ``0,2`` or ``0-3``; empty if it is neither."""
    if not _GPUS.fullmatch(text):
        return ()
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), min(int(last or first), int(first) + 255) + 1))
    return tuple(sorted(numbers))


# ---------------------------------------------------------------------------- the source


class _Asked(NamedTuple):
    """A job on a GPU: the step that stands for it, and its processes."""

    ref: WorkloadRef
    pids: tuple[int, ...]


class SlurmSource:
    """Reads one environment per job, once, on a thread of its own: reading takes a lock of the process.

    Jobs are those on GPUs, and those that have a cgroup below ``cgroup_root`` as far as that can be seen.
    """

    def __init__(
        self, proc_root: Path, clock: Clock, name: str = "slurm", *, cgroup_root: Path = Path("/sys/fs/cgroup")
    ) -> None:
        self._root = proc_root
        self._cgroup_root = cgroup_root
        self._clock = clock
        self._name = name
        self._board = Board()
        self._beside = Beside(name, self._board, self._follow)
        self._lock = threading.Lock()
        self._asked: Mapping[str, _Asked] = {}
        self._answered: frozenset[str] = frozenset()
        self._reading: tuple[int, int] | None = None  # pid, and since when (monotonic ns)
        # The thread's alone:
        self._known: dict[str, WorkloadInfo] = {}
        self._tries: dict[str, int] = {}
        self._trouble: dict[str, str] = {}
        self._there: Mapping[str, Mapping[str, Path]] = {}  # jobs that have a cgroup, with those of their steps
        self._walked_ns: int | None = None
        self._steps_read: dict[str, tuple[str, ...]] = {}

    @property
    def name(self) -> str:
        """Its name in ``sources`` and in ``otel_gpu.source``."""
        return self._name

    def read(self, workloads: Mapping[WorkloadRef, Collection[int]]) -> NameRead:
        """What is known of the jobs among these by now, and of others."""
        asked = _jobs(workloads)
        with self._lock:
            before, self._asked, answered = self._asked, asked, self._answered
        pending = asked.keys() - answered
        self._beside.start()
        if pending or _refs(asked) != _refs(before):
            self._beside.wake()
        stuck = self._stuck()
        read = self._board.read(frozenset() if stuck else frozenset(pending))
        return read if stuck is None else replace(read, state=SourceState.DEGRADED, reason=stuck)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has looked once."""
        return self._board.wait(timeout_s)

    def close(self) -> None:
        """Read no more."""
        self._beside.stop()

    def _stuck(self) -> str | None:
        reading = self._reading
        if reading is None:
            return None
        pid, since_ns = reading
        waited_s = (self._clock.monotonic_ns() - since_ns) / 1e9
        if waited_s < _STUCK_S:
            return None
        return f"{self._root}/{pid}/environ has not answered for {waited_s:.0f} s; new jobs go by their numbers"

    # -- on the thread ----------------------------------------------------------------

    def _follow(self, beside: Beside) -> None:
        while not beside.stopping:
            self._look()
            beside.well()
            beside.sleep(_WALK_S)

    def _look(self) -> None:
        with self._lock:
            asked = self._asked
        walked = self._walk()
        changed = self._forget(_standing_for(self._there) | {id_: each.ref for id_, each in asked.items()})
        troubles = len(self._trouble)
        for job_id in sorted(asked.keys() - self._answered):
            changed |= self._look_at(asked[job_id])
        for job_id in sorted(self._there) if walked else ():
            if self._may_tell_more(job_id, on_gpu=job_id in asked):
                changed |= self._look_into(job_id)
        if changed:
            self._board.know(MappingProxyType(dict(self._known)))
        if self._trouble:
            more = f" (and {len(self._trouble) - 1} more)" if len(self._trouble) > 1 else ""
            reason = next(iter(self._trouble.values()))
            self._board.degraded(f"{reason}{more}", errors=max(0, len(self._trouble) - troubles))
        else:
            self._board.well()

    def _walk(self) -> bool:
        """See which jobs there are, if that is due; true if so."""
        now_ns = self._clock.monotonic_ns()
        if self._walked_ns is not None and now_ns - self._walked_ns < (_WALK_S - 1.0) * 1e9:
            return False
        self._walked_ns = now_ns
        self._there = read_jobs(self._cgroup_root)
        return True

    def _forget(self, refs: Mapping[str, WorkloadRef]) -> bool:
        """Let go of jobs that are gone, and let another step stand for one whose step has ended."""
        with self._lock:
            self._answered &= refs.keys()
        for by_job in (self._tries, self._trouble, self._steps_read):
            for job_id in by_job.keys() - refs.keys():
                del by_job[job_id]
        kept = {id_: known._replace(ref=refs[id_]) for id_, known in self._known.items() if id_ in refs}
        changed = kept != self._known
        self._known = kept if changed else self._known
        return changed

    def _look_at(self, asked: _Asked) -> bool:
        """Read the environment of a job on a GPU; true if that told something."""
        job_id = asked.ref.id
        tries = self._tries[job_id] = self._tries.get(job_id, 0) + 1
        job, trouble = self._find(job_id, asked.pids[:_PIDS])
        if job is None and trouble is None and tries < _TRIES:
            return False  # nobody was left to ask; there will be others in the next cycle
        if job is not None:
            self._know(asked.ref, job)
        elif trouble is not None:
            self._trouble[job_id] = trouble
        with self._lock:
            self._answered |= {job_id}
        return job is not None

    def _may_tell_more(self, job_id: str, *, on_gpu: bool) -> bool:
        """Whether a job's cgroups may tell what is not known: who it is, or by a new step what it was given."""
        known = self._known.get(job_id)
        if known is None:
            return not on_gpu
        return not known.claims and self._steps_read.get(job_id) != tuple(self._there[job_id])

    def _look_into(self, job_id: str) -> bool:
        """Read environments of a job by its cgroups, one of each step, until one tells of GPUs; true if that is new."""
        steps = self._there[job_id]
        self._steps_read[job_id] = tuple(steps)
        pids = [pid for step in list(steps.values())[:_PIDS] for pid in read_pids(step, most=1)]
        job, trouble = self._find(job_id, pids, giving=True)
        known = self._known.get(job_id)
        if job is None:
            if trouble is not None and known is None:
                self._trouble[job_id] = trouble
            return False
        if known is None:
            self._know(_first_step(job_id, steps), job)
            with self._lock:
                self._answered |= {job_id}
            return True
        self._known[job_id] = known._replace(claims=job.claims)  # its names stay what they were
        return bool(job.claims)

    def _know(self, ref: WorkloadRef, job: Job) -> None:
        self._known[job.id] = WorkloadInfo(ref, job.names, claims=job.claims)
        self._trouble.pop(job.id, None)
        if job.changed is not None:
            self._trouble[job.id] = f"job {job.id}: {job.changed} is too long or no text, and is told in part"

    def _find(self, job_id: str, pids: Iterable[int], *, giving: bool = False) -> tuple[Job | None, str | None]:
        """The first environment that names this job (and GPUs given, if one does), or what stands in the way."""
        found: Job | None = None
        trouble: str | None = None
        for pid in pids:
            try:
                job = parse_job(self._environ(pid))
            except PermissionError:
                trouble = f"job {job_id}: {self._root}/{pid}/environ may not be read; {PRIVILEGE_FIX}"
                continue
            except OSError:  # it has ended
                continue
            if job is not None and job.id == job_id:
                if job.claims or not giving:
                    return job, None
                found = found or job
            elif job is not None:
                trouble = f"job {job_id}: process {pid} says it is of job {told(job.id)!r}, and is not believed"
        return found, trouble

    def _environ(self, pid: int) -> bytes:
        self._reading = pid, self._clock.monotonic_ns()
        try:
            return read_environ(self._root, pid)
        finally:
            self._reading = None


def _standing_for(there: Mapping[str, Mapping[str, Path]]) -> dict[str, WorkloadRef]:
    return {job_id: _first_step(job_id, steps) for job_id, steps in there.items()}


def _first_step(job_id: str, steps: Iterable[str]) -> WorkloadRef:
    """A job as the cgroups of its first step's processes name it."""
    return WorkloadRef(WorkloadKind.SLURM_JOB, job_id, slurm_step=min(steps, default=None))


def _refs(asked: Mapping[str, _Asked]) -> list[WorkloadRef]:
    return [each.ref for each in asked.values()]


def _jobs(workloads: Mapping[WorkloadRef, Collection[int]]) -> dict[str, _Asked]:
    """The jobs by their numbers, with the processes of all their steps; the first step stands for the job."""
    steps: dict[str, list[WorkloadRef]] = {}
    for ref in workloads:
        if ref.kind is WorkloadKind.SLURM_JOB:
            steps.setdefault(ref.id, []).append(ref)
    return {job_id: _asked(refs, workloads) for job_id, refs in steps.items()}


def _asked(refs: Iterable[WorkloadRef], workloads: Mapping[WorkloadRef, Collection[int]]) -> _Asked:
    ordered = sorted(refs, key=lambda ref: ref.slurm_step or "")
    return _Asked(ordered[0], tuple(pid for ref in ordered for pid in sorted(workloads[ref])))
