"""What works on this host and what does not, each with the exact fix."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from otel_gpu.directory import Directory
from otel_gpu.environment import Candidate, Kind, Presence
from otel_gpu.export.text import Paint, Style, printable
from otel_gpu.model import GpuHealth, GpuReading, SourceState, WorkloadKind, WorkloadRef
from otel_gpu.settings_names import Environment
from otel_gpu.setup import GpuAccounting, Mode
from otel_gpu.sources.base import GpuRead, NameRead, ProcessRead
from otel_gpu.sources.hostfacts import (
    CGROUP_NAMESPACE_FIX,
    PID_NAMESPACE_FIX,
    cgroup_namespace_is_initial,
    pid_namespace_is_initial,
)

_FLAGS: Final = {
    Kind.DOCKER: "--docker-host",
    Kind.PODMAN: "--podman-host",
    Kind.CRI: "--cri-socket",
    Kind.POD_RESOURCES: "--pod-resources-socket",
}
_NVML_FIX: Final = (
    "make nvidia-smi work here first; in a container: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=utility …, "
    "in Kubernetes runtimeClassName: nvidia"
)
_ACCOUNTING_FIX: Final = "as root: otel-gpu setup accounting, or nvidia-smi -am 1"
_PERSISTENCE_FIX: Final = "as root: nvidia-smi -pm 1"
_SLURM_FIX: Final = (
    "run as root with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH: docker run --user 0 --pid=host --cap-add SYS_PTRACE "
    "--cap-add DAC_READ_SEARCH …, in a unit AmbientCapabilities=CAP_SYS_PTRACE CAP_DAC_READ_SEARCH"
)
_API_FIX: Final = (
    "docs/names.md has the ClusterRole; with it this says yes: kubectl auth can-i watch pods --all-namespaces "
    "--as system:serviceaccount:NAMESPACE:otel-gpu"
)
_MISSING_FIXES: Final = {
    Kind.DOCKER: "systemctl start docker; in a container: -v /var/run/docker.sock:/var/run/docker.sock:ro",
    Kind.PODMAN: "systemctl enable --now podman.socket; in a container: -v /run/podman:/run/podman:ro",
    Kind.CRI: "in a container, mount the directory of the runtime's socket (docs/names.md)",
    Kind.POD_RESOURCES: "in a container, mount the kubelet's directory pod-resources (docs/names.md)",
}
_ENGINES: Final = {
    "docker": "--docker-host unix:///var/run/docker.sock",
    "podman": "--podman-host unix:///run/podman/podman.sock",
}
_CRI_SOCKETS: Final[Mapping[str | None, str]] = {
    "containerd": "/run/containerd/containerd.sock",
    "cri-o": "/run/crio/crio.sock",
    "docker": "/run/cri-dockerd.sock",
}
_MOST_IDS: Final = 3
_SHORT_ID: Final = 12
"""So many characters of an id are enough for docker, podman and crictl."""


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


def examine_accounting(read: GpuRead, accounting: Sequence[GpuAccounting]) -> list[Finding]:
    """Judge accounting on the GPUs that answer, all in one: without it nobody sees who comes and goes between looks."""
    answering = {gpu.identity.index for gpu in read.gpus if gpu.health is not GpuHealth.FAILED}
    asked = [gpu for gpu in accounting if gpu.index in answering]
    on, off, unsupported, unknown = (
        [gpu for gpu in asked if gpu.mode is mode] for mode in (Mode.ON, Mode.OFF, Mode.UNSUPPORTED, Mode.UNKNOWN)
    )
    lost = [gpu for gpu in on if gpu.is_lost_on_unload]
    found = []
    if on:
        found.append(f"on for {len(on)} of {_counted(len(asked), 'GPU')}")
    if lost:
        found.append(f"persistence mode is off on {_indices(lost)}: it is lost there when the driver unloads")
    if off:
        found.append(f"off on {_indices(off)}: who comes and goes there between two looks is not seen")
    reasons = dict.fromkeys(gpu.reason for gpu in (*unsupported, *unknown))
    found += [f"{reason}: {_indices([gpu for gpu in asked if gpu.reason == reason])}" for reason in reasons]
    if not found:
        return []
    verdict = Verdict.DEGRADED if off or unknown else Verdict.OK if on else Verdict.UNUSED
    fix = _ACCOUNTING_FIX if off else _PERSISTENCE_FIX if lost else None
    return [Finding("accounting", verdict, "; ".join(found), fix)]


def judged(asked: Sequence[Asked], workloads: Collection[WorkloadRef], gpus: Sequence[GpuReading]) -> list[Asked]:
    """Everybody with what is wrong with his answer beside the others' or on this host, as the agent finds it."""
    directory = Directory()
    reads = [each.read for each in asked if each.read is not None]
    directory.update(reads, workloads, gpus)
    answers = iter([directory.judged(number, read) for number, read in enumerate(reads)])
    return [each if each.read is None else replace(each, read=next(answers)) for each in asked]


def examine_names(
    environment: Environment, asked: Sequence[Asked], workloads: Collection[WorkloadRef]
) -> list[Finding]:
    """Judge who knows names: of everybody in general, and of these workloads, which are on GPUs."""
    used = [each for each in asked if each.candidate.used]
    names = ", ".join(each.candidate.name for each in used) or "nobody"
    return [
        Finding("environment", Verdict.OK, f"{environment}: asked for names: {names}"),
        *map(_source, used),
        *_nameless(asked, workloads),
        *(
            Finding(each.candidate.name, Verdict.UNUSED, each.candidate.why, each.candidate.fix)
            for each in asked
            if not each.candidate.used and environment is Environment.AUTO
        ),
    ]


def listed_pids(read: GpuRead) -> set[int]:
    """Every pid that stands in one of the driver's lists, those of MIG instances included."""
    lists = [processes for gpu in read.gpus for processes in (gpu.processes, *(mig.processes for mig in gpu.mig or ()))]
    return {process.pid for processes in lists for process in processes or ()}


def is_blind(findings: list[Finding]) -> bool:
    """Whether attribution as a whole cannot work."""
    return any(finding.verdict is Verdict.BLIND for finding in findings)


def report(findings: list[Finding], paint: Paint, width: int | None = None) -> str:
    """The findings as lines, the fix under each that needs one; wrapped to a width, where there is one.

    A fix stays on a line of its own: it is there to be copied.
    """
    styles = {
        Verdict.OK: Style.GREEN,
        Verdict.UNUSED: Style.DIM,
        Verdict.DEGRADED: Style.YELLOW,
        Verdict.BLIND: Style.RED,
    }
    subjects = max(len(finding.subject) for finding in findings)
    indent = len(Verdict.DEGRADED) + 2 + subjects + 2
    lines = []
    for finding in findings:
        verdict = paint(finding.verdict.value.ljust(len(Verdict.DEGRADED)), styles[finding.verdict])
        first, *more = _wrapped(printable(finding.found), None if width is None else width - indent)
        faint = [Style.DIM] if finding.verdict is Verdict.UNUSED else []
        lines.append(f"{verdict}  {paint(f'{finding.subject.ljust(subjects)}  {first}', *faint)}")
        lines += [" " * indent + paint(line, *faint) for line in more]
        if finding.fix is not None:
            lines.append(f"{' ' * indent}{paint('fix:', Style.BOLD)} {printable(finding.fix)}")
    return "\n".join(lines) + "\n"


def _wrapped(text: str, width: int | None) -> list[str]:
    if width is None:
        return [text]
    return textwrap.wrap(text, max(width, 40), break_long_words=False, break_on_hyphens=False) or [""]


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _indices(gpus: Sequence[GpuAccounting]) -> str:
    return f"GPU {', '.join(str(gpu.index) for gpu in gpus)}"


# ---------------------------------------------------------------------------- checks


def _nvml(read: GpuRead) -> Iterator[Finding]:
    if not read.gpus:
        yield Finding("nvml", Verdict.BLIND, read.reason or "no GPU", _NVML_FIX)
        return
    driver = read.driver.driver_version if read.driver is not None else None
    failed = [gpu for gpu in read.gpus if gpu.health is GpuHealth.FAILED]
    answering = f"{len(read.gpus) - len(failed)} of {_counted(len(read.gpus), 'GPU')} answering"
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
    candidate, read = asked.candidate, asked.read
    if candidate.lacks is not None:
        return Finding(candidate.name, Verdict.DEGRADED, f"unavailable: {candidate.lacks}", candidate.fix)
    if read is None:
        fix = _fix(candidate, SourceState.UNAVAILABLE)
        return Finding(candidate.name, Verdict.DEGRADED, f"{candidate.why}: no answer in time", fix)
    if read.state is not SourceState.OK:
        fix = _fix(candidate, read.state)
        return Finding(candidate.name, Verdict.DEGRADED, f"{read.state.value}: {read.reason}", fix)
    told = f"{_counted(len(read.known), 'workload')} known"
    if candidate.kind is Kind.POD_RESOURCES:
        told = f"{_counted(len(read.pods), 'container')} of pods given a GPU"
    return Finding(candidate.name, Verdict.OK, f"{candidate.why}: {told}")


def _nameless(asked: Sequence[Asked], workloads: Collection[WorkloadRef]) -> Iterator[Finding]:
    named = {known.ref.key for each in asked if each.read is not None for known in each.read.known.values()}
    could = {ref.key: ref for ref in workloads if ref.kind in {WorkloadKind.CONTAINER, WorkloadKind.SLURM_JOB}}
    nameless = [could[key] for key in sorted(could.keys() - named)]
    what = "container or job on a GPU" if len(could) == 1 else "containers and jobs on GPUs"
    if nameless:
        first = ", ".join(f"{ref.id[:_SHORT_ID]} ({_runtime(ref)})" for ref in nameless[:_MOST_IDS])
        more = f" and {len(nameless) - _MOST_IDS} more" if len(nameless) > _MOST_IDS else ""
        found = f"missing for {len(nameless)} of {len(could)} {what}: {first}{more}"
        yield Finding("names", Verdict.DEGRADED, found, "; ".join(dict.fromkeys(map(_name_fix, nameless))))
    elif could:
        yield Finding("names", Verdict.OK, f"known for {len(could)} of {len(could)} {what}")


# ---------------------------------------------------------------------------- fixes of names


def _fix(candidate: Candidate, state: SourceState) -> str:
    """What to do about somebody who is asked and does not tell, or does not tell all. A command ends the line."""
    if candidate.kind is Kind.SLURM:
        return _SLURM_FIX
    if candidate.kind is Kind.KUBERNETES:
        return _API_FIX
    if candidate.socket is None:
        option = "--host" if candidate.kind is Kind.DOCKER else "--url"
        return f"this must answer: {candidate.kind} {option} {shlex.quote(str(candidate.daemon))} version"
    path = shlex.quote(str(candidate.socket.path))
    if candidate.socket.presence in {Presence.SOCKET, Presence.DEAD}:
        return _check(candidate.kind, path, state)
    return _access(candidate.kind, path, candidate.socket.presence)


def _access(kind: Kind, path: str, presence: Presence) -> str:
    """How a socket comes there."""
    if presence is Presence.MISSING:
        return f"{_MISSING_FIXES[kind]}; if it is elsewhere: {_FLAGS[kind]} unix:///PATH"
    if presence is Presence.OTHER:
        return f"remove it, start anew who should listen there, then the agent's container; what it is: ls -ld {path}"
    if kind in {Kind.DOCKER, Kind.PODMAN}:
        return f"run as root, or log in anew after: usermod -aG $(stat -c %G {path}) USER"
    return "run as root; in Kubernetes securityContext: {runAsUser: 0}"


def _check(kind: Kind, path: str, state: SourceState) -> str:
    """A command that asks what the agent asked."""
    if kind is Kind.CRI:
        return f"this must answer: crictl --runtime-endpoint unix://{path} ps"
    if kind is Kind.POD_RESOURCES and state is SourceState.DEGRADED:
        return "docs/names.md says what to mount; these must list the containers and the GPUs: crictl ps; nvidia-smi -L"
    if kind is Kind.POD_RESOURCES:
        return f"this must show the kubelet: ss -xlp | grep {path}"
    asked = "containers/json" if state is SourceState.DEGRADED else "version"
    return f"this must answer: curl --unix-socket {path} http://localhost/{asked}"


def _runtime(ref: WorkloadRef) -> str:
    if ref.kind is WorkloadKind.SLURM_JOB:
        return "slurm"
    return f"{ref.runtime or 'runtime unknown'}{', a pod' if ref.pod_uid is not None else ''}"


def _name_fix(ref: WorkloadRef) -> str:
    """Who would know its name, and how he is asked."""
    if ref.kind is WorkloadKind.SLURM_JOB:
        return "--environment slurm, as root"
    if ref.pod_uid is not None:
        return f"--cri-socket {_CRI_SOCKETS.get(ref.runtime, 'PATH')}"
    if ref.runtime in _ENGINES:
        return _ENGINES[ref.runtime]
    if ref.runtime is None:
        return " or ".join(_ENGINES.values())
    return f"nobody who is asked here knows containers of {ref.runtime}"
