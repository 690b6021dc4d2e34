"""What works on this host and what does not, each with the exact fix."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from otel_gpu.environment import Candidate, Kind
from otel_gpu.export.text import Paint, Style, printable
from otel_gpu.model import GpuHealth, GpuReading, SourceState, WorkloadKind, WorkloadRef
from otel_gpu.settings_names import Environment
from otel_gpu.sources.base import GpuRead, NameRead, ProcessRead
from otel_gpu.sources.hostfacts import (
    CGROUP_NAMESPACE_FIX,
    PID_NAMESPACE_FIX,
    cgroup_namespace_is_initial,
    pid_namespace_is_initial,
)

_SETTINGS: Final = {
    Kind.DOCKER: "--docker-host",
    Kind.PODMAN: "--podman-host",
    Kind.CRI: "--cri-socket",
    Kind.POD_RESOURCES: "--pod-resources-socket",
}


class Verdict(StrEnum):
    """Blind: attribution as a whole cannot work like this. Degraded: parts of it are missing. Unused: not asked."""

    OK = "ok"
    UNUSED = "unused"
    DEGRADED = "degraded"
    BLIND = "blind"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report."""

    subject: str
    verdict: Verdict
    found: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """Somebody who could tell names, and what he told; ``None`` if he is not asked, or did not answer in time."""

    candidate: Candidate
    read: NameRead | None


def examine(gpus: GpuRead, processes: ProcessRead, own_proc: Path = Path("/proc")) -> list[Finding]:
    """Judge one reading of the sources and the namespaces this process lives in."""
    return [*_nvml(gpus), *_namespaces(own_proc), *_proc(gpus, processes)]


def examine_names(
    environment: Environment, asked: Sequence[Asked], workloads: Collection[WorkloadRef]
) -> list[Finding]:
    """Judge who knows names: of everybody in general, and of these workloads, which are on GPUs."""
    used = [each.candidate.name for each in asked if each.candidate.used]
    by = f"{environment}: asked for names: {', '.join(used) or 'nobody'}"
    return [
        Finding("environment", Verdict.OK, by),
        *(_source(each) for each in asked if each.candidate.used or environment is Environment.AUTO),
        *_nameless(asked, workloads),
    ]


def listed_pids(read: GpuRead) -> set[int]:
    """Every pid that stands in one of the driver's lists, those of MIG instances included."""
    lists = [processes for gpu in read.gpus for processes in (gpu.processes, *(mig.processes for mig in gpu.mig or ()))]
    return {process.pid for processes in lists for process in processes or ()}


def is_blind(findings: list[Finding]) -> bool:
    """Whether attribution as a whole cannot work."""
    return any(finding.verdict is Verdict.BLIND for finding in findings)


def report(findings: list[Finding], paint: Paint) -> str:
    """The findings as lines, the fix under each that needs one."""
    styles = {
        Verdict.OK: Style.GREEN,
        Verdict.UNUSED: Style.DIM,
        Verdict.DEGRADED: Style.YELLOW,
        Verdict.BLIND: Style.RED,
    }
    width = max(len(finding.subject) for finding in findings)
    lines = []
    for finding in findings:
        verdict = paint(finding.verdict.value.ljust(8), styles[finding.verdict])
        lines.append(f"{verdict}  {finding.subject.ljust(width)}  {printable(finding.found)}")
        if finding.fix is not None:
            lines.append(f"{' ' * (10 + width)}  fix: {finding.fix}")
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------------------- checks


def _nvml(read: GpuRead) -> Iterator[Finding]:
    if not read.gpus:
        yield Finding("nvml", Verdict.BLIND, read.reason or "no GPU", "see the line itself; nvidia-smi must work first")
        return
    driver = read.driver.driver_version if read.driver is not None else None
    failed = [gpu for gpu in read.gpus if gpu.health is GpuHealth.FAILED]
    answering = f"{len(read.gpus) - len(failed)} of {len(read.gpus)} GPUs answer"
    yield Finding(
        "nvml",
        Verdict.BLIND if len(failed) == len(read.gpus) else Verdict.DEGRADED if failed or read.reason else Verdict.OK,
        f"driver {driver or 'of unknown version'}, {answering}" + (f"; {read.reason}" if read.reason else ""),
        "nvidia-smi -q tells more; a lost GPU needs a reset or a reboot" if failed else None,
    )
    for gpu in read.gpus:
        if gpu.health is not GpuHealth.FAILED:
            yield from _gpu(gpu)


def _gpu(gpu: GpuReading) -> Iterator[Finding]:
    subject = f"gpu {gpu.identity.index}"
    lacking = [
        what
        for what, figure in (
            ("device memory", gpu.memory),
            ("process lists", gpu.processes if gpu.mig is None else ()),
            ("utilisation per process", gpu.utilization),
            ("power", gpu.power_w),
        )
        if figure is None
    ]
    if gpu.memory is not None and gpu.memory.reserved_bytes is None:
        lacking.append("the driver's own memory apart from what is used (driver before 510)")
    if gpu.energy_mj is None:
        lacking.append("an energy counter (Volta and later have one): energy will be integrated from power")
    if not lacking:
        yield Finding(
            subject, Verdict.OK, f"{gpu.identity.name}: memory, processes, utilisation, power and energy are told"
        )
        return
    reason = "; MIG gives no utilisation per process" if gpu.mig is not None and gpu.utilization is None else ""
    yield Finding(subject, Verdict.DEGRADED, f"{gpu.identity.name} lacks {', '.join(lacking)}{reason}")


def _namespaces(own_proc: Path) -> Iterator[Finding]:
    initial = pid_namespace_is_initial(own_proc)
    if initial:
        yield Finding("pid namespace", Verdict.OK, "the host's: NVML shows every process")
    elif initial is None:
        yield Finding(
            "pid namespace", Verdict.DEGRADED, f"unknown: {own_proc}/self/ns/pid is not readable", "mount /proc"
        )
    else:
        yield Finding(
            "pid namespace",
            Verdict.BLIND,
            "the agent's own: NVML hides others' processes, or names pids that mean nothing here",
            PID_NAMESPACE_FIX,
        )
    initial = cgroup_namespace_is_initial(own_proc)
    if initial:
        yield Finding("cgroup namespace", Verdict.OK, "the host's")
    elif initial is None:
        yield Finding(
            "cgroup namespace", Verdict.DEGRADED, f"unknown: {own_proc}/self/ns/cgroup is not readable", "mount /proc"
        )
    else:
        yield Finding(
            "cgroup namespace",
            Verdict.DEGRADED,
            "the agent's own: pods and containers are told from their cgroup all the same, services, jobs and the "
            "agent's own container may not be",
            CGROUP_NAMESPACE_FIX,
        )


def _proc(gpus: GpuRead, read: ProcessRead) -> Iterator[Finding]:
    if read.state is SourceState.OK:
        yield Finding("proc", Verdict.OK, "processes, cgroups and open device files are readable")
    else:
        verdict = Verdict.BLIND if read.state is SourceState.UNAVAILABLE else Verdict.DEGRADED
        yield Finding("proc", verdict, read.reason or read.state.value)
    if not read.pids_complete:
        return  # told above; in another pid namespace a pid that is there may be somebody else's
    listed = listed_pids(gpus)
    unseen = sorted(listed - read.processes.keys())
    if unseen:
        all_unseen = len(unseen) == len(listed)
        yield Finding(
            "processes",
            Verdict.BLIND if all_unseen else Verdict.DEGRADED,
            f"{len(unseen)} of {len(listed)} pids that NVML lists are not in /proc (first: {unseen[0]})",
            "run in the host's pid namespace, or point --proc-root (HOST_PROC) to the host's /proc",
        )


def _source(asked: Asked) -> Finding:
    name, why = asked.candidate.name, asked.candidate.why
    if not asked.candidate.used:
        return Finding(name, Verdict.UNUSED, why)
    if asked.read is None:
        return Finding(name, Verdict.DEGRADED, f"{why}: no answer in time", "see whether it answers others")
    if asked.read.state is not SourceState.OK:
        found = f"{asked.read.state.value}: {asked.read.reason}"
        missing = asked.candidate.socket is not None and not asked.candidate.socket.there
        setting = _SETTINGS.get(asked.candidate.kind)
        return Finding(name, Verdict.DEGRADED, found, f"if it is elsewhere, {setting} says where" if missing else None)
    known = len(asked.read.known)
    told = f"{known} workload{'' if known == 1 else 's'} known"
    if asked.candidate.kind is Kind.POD_RESOURCES:
        told = f"{len(asked.read.pods)} containers of pods were given a GPU"
    return Finding(name, Verdict.OK, f"{why}: {told}")


def _nameless(asked: Sequence[Asked], workloads: Collection[WorkloadRef]) -> Iterator[Finding]:
    named = set().union(*(each.read.known for each in asked if each.read is not None))
    could = {ref.id for ref in workloads if ref.kind in {WorkloadKind.CONTAINER, WorkloadKind.SLURM_JOB}}
    nameless = sorted(could - named)
    if nameless:
        yield Finding(
            "names",
            Verdict.DEGRADED,
            f"{len(nameless)} of {len(could)} containers and jobs on GPUs go by their ids (first: {nameless[0]})",
            "docs/names.md says what has to be mounted for whom",
        )
    elif could:
        yield Finding("names", Verdict.OK, f"all of {len(could)} containers and jobs on GPUs have one")
