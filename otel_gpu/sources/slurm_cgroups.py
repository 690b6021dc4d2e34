"""Which Slurm jobs are on this node, and their processes: from the cgroups that slurmstepd makes for them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from otel_gpu.sources.proc.files import read_file

MOST_JOBS: Final = 1024
MOST_CGROUPS: Final = 64
"""So many are looked at: jobs of a node, and cgroups below one step (each task may have one)."""

_V1: Final = ("", "freezer", "cpuset", "devices", "memory", "systemd")
"""Hierarchies of cgroup v1 that Slurm may use, each with all jobs; proctrack/cgroup uses the freezer."""

_JOB: Final = re.compile(r"job_([0-9]{1,20}(?:[_+][0-9]{1,20})?)", re.ASCII)
_STEP: Final = re.compile(r"step_([0-9A-Za-z_.+-]{1,64})", re.ASCII)


def read_jobs(root: Path) -> dict[str, Mapping[str, Path]]:
    """The steps of every job below ``/sys/fs/cgroup``, each with its cgroup; nobody where that cannot be seen."""
    found: dict[str, dict[str, Path]] = {}
    for job_id, cgroup in islice(_jobs(root), MOST_JOBS):
        steps = {match[1]: cgroup / name for name in _names(cgroup) if (match := _STEP.fullmatch(name))}
        found.setdefault(job_id, {}).update(steps)
    return dict(found)


def read_pids(step: Path, most: int) -> tuple[int, ...]:
    """Some processes of a step, as the reader's pid namespace numbers them. Without slurmstepd's own (cgroup v2)."""
    pids: list[int] = []
    for directory, below, _ in islice(os.walk(step), MOST_CGROUPS):
        below[:] = sorted(name for name in below if directory != str(step) or name != "slurm")
        try:
            text = read_file(f"{directory}/cgroup.procs")
        except OSError:  # it has ended
            continue
        pids += [int(word) for word in text.split() if word.isdigit() and word != b"0"]  # 0: not seen from here
        if len(pids) >= most:
            break
    return tuple(pids[:most])


def _jobs(root: Path) -> Iterator[tuple[str, Path]]:
    # v2: system.slice/[<node>_]slurmstepd.scope/job_7/step_0/user/task_0
    for scope in _names(root / "system.slice"):
        if scope.endswith("slurmstepd.scope"):
            yield from _jobs_in(root / "system.slice" / scope)
    # v1: <controller>/slurm[_<node>]/uid_1000/job_7/step_0/task_0
    for top in _V1:
        slurms = [root / top / name for name in _names(root / top) if name.startswith("slurm")]
        for slurm in slurms:
            for user in _names(slurm):
                if user.startswith("uid_"):
                    yield from _jobs_in(slurm / user)
        if slurms:
            return


def _jobs_in(directory: Path) -> Iterator[tuple[str, Path]]:
    for name in _names(directory):
        if match := _JOB.fullmatch(name):
            yield match[1], directory / name


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - iterdir() does not fail before it is iterated
    except OSError:
        return []
