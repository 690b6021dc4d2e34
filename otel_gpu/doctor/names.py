"""Checks of name sources: which are used, what they answer, and which workloads have no name."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from otel_gpu.config.groups import Environment
from otel_gpu.doctor.findings import Finding, degraded, ok, unused
from otel_gpu.model import NAMEABLE_KINDS, GpuReading, SourceState, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import NameRead
from otel_gpu.sources.names.candidates import Kind, Presence, SourceCandidate
from otel_gpu.sources.names.resolver import NameResolver
from otel_gpu.view.text import plural

_ENGINES: Final = {
    "docker": "--docker-host unix:///var/run/docker.sock",
    "podman": "--podman-host unix:///run/podman/podman.sock",
}
_CRI_SOCKETS: Final[Mapping[str | None, str]] = {
    "containerd": "/run/containerd/containerd.sock",
    "cri-o": "/run/crio/crio.sock",
    "docker": "/run/cri-dockerd.sock",
}
_MAX_IDS: Final = 3
_SHORT_ID: Final = 12
"""The length of an id as docker, podman and crictl print it."""


@dataclass(frozen=True, slots=True)
class SourceAnswer:
    """A possible name source and its answer; ``None`` if it is not used or did not answer in time."""

    candidate: SourceCandidate
    read: NameRead | None


def with_conflicts(
    answers: Sequence[SourceAnswer], workloads: Collection[WorkloadRef], gpus: Sequence[GpuReading]
) -> list[SourceAnswer]:
    """The answers, with the problems that the agent finds when it combines them."""
    reads = [each.read for each in answers if each.read is not None]
    resolved = iter(NameResolver().resolve(reads, workloads, gpus).reads)
    return [each if each.read is None else replace(each, read=next(resolved)) for each in answers]


def check_names(
    environment: Environment, answers: Sequence[SourceAnswer], workloads: Collection[WorkloadRef]
) -> list[Finding]:
    """Check each name source, and that every workload on a GPU has a name."""
    used = [each for each in answers if each.candidate.used]
    none = "no name source found" if environment is Environment.AUTO else "no name source used"
    names = ", ".join(each.candidate.name for each in used)
    return [
        ok("environment", f"{environment}: {f'names from {names}' if names else none}"),
        *map(_source, used),
        *_nameless(answers, workloads),
        *(
            unused(each.candidate.name, each.candidate.why, each.candidate.fix)
            for each in answers
            if not each.candidate.used and environment is Environment.AUTO
        ),
    ]


def _source(answer: SourceAnswer) -> Finding:
    candidate, read = answer.candidate, answer.read
    if candidate.lacks is not None:
        fix = candidate.fix or _fix(candidate, SourceState.UNAVAILABLE)
        return degraded(candidate.name, f"unavailable: {candidate.lacks}", fix)
    if read is None:
        fix = _fix(candidate, SourceState.UNAVAILABLE)
        return degraded(candidate.name, f"{candidate.why}: no answer in time", fix)
    if read.state is not SourceState.OK:
        fix = _fix(candidate, read.state)
        return degraded(candidate.name, f"{read.state.value}: {read.reason}", fix)
    found = f"{plural(len(read.known), 'workload')} known"
    if candidate.kind is Kind.POD_RESOURCES:
        found = f"{plural(len(read.pods), 'pod container')} with a GPU"
    return ok(candidate.name, f"{candidate.why}: {found}")


def _nameless(answers: Sequence[SourceAnswer], workloads: Collection[WorkloadRef]) -> Iterator[Finding]:
    names = NameResolver().resolve([each.read for each in answers if each.read is not None], workloads, ()).names
    named = {key for key, known in names.items() if known != WorkloadNames()}
    nameable = {ref.key: ref for ref in workloads if ref.kind in NAMEABLE_KINDS}
    nameless = [ref for _, ref in sorted(nameable.items()) if ref.key not in named]
    what = "container or job on a GPU" if len(nameable) == 1 else "containers and jobs on GPUs"
    if nameless:
        first = ", ".join(f"{_short(ref)} ({_runtime(ref)})" for ref in nameless[:_MAX_IDS])
        more = f" and {len(nameless) - _MAX_IDS} more" if len(nameless) > _MAX_IDS else ""
        found = f"missing for {len(nameless)} of {len(nameable)} {what}: {first}{more}"
        yield degraded("names", found, "; ".join(dict.fromkeys(map(_name_fix, nameless))))
    elif nameable:
        yield ok("names", f"known for {len(nameable)} of {len(nameable)} {what}")


def _short(ref: WorkloadRef) -> str:
    return ref.id[:_SHORT_ID] if ref.outer_container_id is None else ref.id_label


# ---------------------------------------------------------------------------- fixes of names


@dataclass(frozen=True, slots=True)
class _Fixes:
    """How to get the answer of a kind of source. ``{place}`` is its socket or URL; a command ends the line."""

    unavailable: str
    """A command that makes the same request as the agent."""
    degraded: str
    """The same for an incomplete answer."""
    missing: str = ""
    """No socket is there."""
    denied: str = ""
    """The agent may not use the socket."""
    remote: str = ""
    """A command for a source at a URL."""


def _engine_fixes(flag: str, missing: str, remote: str) -> _Fixes:
    return _Fixes(
        unavailable="this command must answer: curl --unix-socket {place} http://localhost/version",
        degraded="this command must answer: curl --unix-socket {place} http://localhost/containers/json",
        missing=f"{missing}; if it is at another path: {flag} unix:///PATH",
        denied="run as root; or run this command and log in again: usermod -aG $(stat -c %G {place}) USER",
        remote=f"this command must answer: {remote}",
    )


_AS_ROOT: Final = "run as root; in Kubernetes securityContext: {runAsUser: 0}"
_SLURM_FIX: Final = (
    "run as root with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH: docker run --user 0 --pid=host --cap-add SYS_PTRACE "
    "--cap-add DAC_READ_SEARCH …, in a systemd unit AmbientCapabilities=CAP_SYS_PTRACE CAP_DAC_READ_SEARCH"
)
_API_FIX: Final = (
    "docs/names.md has the ClusterRole; with it this prints yes: kubectl auth can-i watch pods --all-namespaces "
    "--as system:serviceaccount:NAMESPACE:otel-gpu"
)
_CRI_FIX: Final = "this command must answer: crictl --runtime-endpoint unix://{place} ps"
_FIXES: Final[Mapping[Kind, _Fixes]] = {
    Kind.DOCKER: _engine_fixes(
        "--docker-host",
        "systemctl start docker; in a container: -v /var/run/docker.sock:/var/run/docker.sock:ro",
        "docker --host {place} version",
    ),
    Kind.PODMAN: _engine_fixes(
        "--podman-host",
        "systemctl enable --now podman.socket; in a container: -v /run/podman:/run/podman:ro",
        "podman --url {place} version",
    ),
    Kind.CRI: _Fixes(
        unavailable=_CRI_FIX,
        degraded=_CRI_FIX,
        missing="in a container, mount the directory of the runtime's socket (docs/names.md); if it is at another "
        "path: --cri-socket unix:///PATH",
        denied=_AS_ROOT,
    ),
    Kind.POD_RESOURCES: _Fixes(
        unavailable="this command must show the kubelet: ss -xlp | grep {place}",
        degraded="docs/names.md says what to mount; these commands must list containers and GPUs: crictl ps; "
        "nvidia-smi -L",
        missing="in a container, mount the kubelet's directory pod-resources (docs/names.md); if it is at another "
        "path: --pod-resources-socket unix:///PATH",
        denied=_AS_ROOT,
    ),
    Kind.KUBERNETES: _Fixes(unavailable=_API_FIX, degraded=_API_FIX),
    Kind.SLURM: _Fixes(unavailable=_SLURM_FIX, degraded=_SLURM_FIX),
}
_NOT_A_SOCKET: Final = "remove it, restart the runtime, then the agent's container; to inspect: ls -ld {place}"


def _fix(candidate: SourceCandidate, state: SourceState) -> str:
    """The fix for a source without a complete answer."""
    fixes = _FIXES[candidate.kind]
    request = fixes.degraded if state is SourceState.DEGRADED else fixes.unavailable
    if candidate.socket is None:
        return _at(candidate.url, fixes.remote or request)
    unusable = {
        Presence.MISSING: fixes.missing,
        Presence.DENIED: fixes.denied,
        Presence.OTHER: _NOT_A_SOCKET,
    }
    return _at(candidate.socket.path, unusable.get(candidate.socket.presence, request))


def _at(place: object, fix: str) -> str:
    return fix.replace("{place}", shlex.quote(str(place)))


def _runtime(ref: WorkloadRef) -> str:
    if ref.kind is WorkloadKind.SLURM_JOB:
        return "slurm"
    return f"{ref.runtime or 'runtime unknown'}{', a pod' if ref.pod_uid is not None else ''}"


def _name_fix(ref: WorkloadRef) -> str:
    """The flag for the source that has the name."""
    if ref.kind is WorkloadKind.SLURM_JOB:
        return "--environment slurm, as root"
    if ref.pod_uid is not None:
        return f"--cri-socket {_CRI_SOCKETS.get(ref.runtime, 'PATH')}"
    if ref.runtime in _ENGINES:
        return _ENGINES[ref.runtime]
    if ref.runtime is None:
        return " or ".join(_ENGINES.values())
    return f"no name source supports containers of {ref.runtime}"
