"""Parse the environment that Slurm gives to a job's processes. Pure; accepts any content."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from otel_gpu.model import WorkloadNames
from otel_gpu.sources.base import Claim
from otel_gpu.sources.names.untrusted_text import sanitize

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
        extra=tuple((key, text) for key, text in sanitized.items() if text is not None),
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
