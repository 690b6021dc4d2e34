"""The Slurm jobs of this node and their processes, from the cgroups that slurmstepd creates."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from otel_gpu.sources.proc.files import read_file

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
    for job_id, cgroup in islice(_jobs(root), MAX_JOBS):
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


def _jobs(root: Path) -> Iterator[tuple[str, Path]]:
    # v2: system.slice/[<node>_]slurmstepd.scope/job_7/step_0/user/task_0
    for scope in _names(root / "system.slice"):
        if scope.endswith("slurmstepd.scope"):
            yield from _jobs_in(root / "system.slice" / scope)
    # v1: <controller>/slurm[_<node>]/uid_1000/job_7/step_0/task_0
    for top in _V1:
        trees = [root / top / name for name in _names(root / top) if name.startswith("slurm")]
        for tree in trees:
            for user in _names(tree):
                if user.startswith("uid_"):
                    yield from _jobs_in(tree / user)
        if trees:
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
