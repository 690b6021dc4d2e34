"""From the text of ``/proc/<pid>/cgroup`` to the workload a process belongs to. Pure, total, linear in the text.

One line per hierarchy, ``id:controllers:path`` (cgroups(7)). Container runtimes, Slurm, LXC and systemd each
write their ids into the path in a few forms. The tables below hold those forms, an example beside each; every
form is matched wherever it stands in the path, on whole segments, and captures only printable ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from otel_gpu.model import HOST_WORKLOAD, WorkloadKind, WorkloadRef

# The kernel formats a path into one PATH_MAX buffer (cgroup.c, proc_cgroup_show): nothing real is longer.
_MAX_PATH: Final = 4096

# ---------------------------------------------------------------------------- the forms


class _Form(NamedTuple):
    """A piece of path and the runtime that writes it; ``None`` where several do."""

    pattern: re.Pattern[str]
    runtime: str | None


_END: Final = r"(?![^/])"  # the next segment or the end of the path
_HEX64: Final = r"[0-9a-f]{64}"
_UUID_GROUPS: Final = tuple(f"[0-9a-f]{{{digits}}}" for digits in (8, 4, 4, 4, 12))
_UUID: Final = "-".join(_UUID_GROUPS)
_UUID_IN_SLICE: Final = "_".join(_UUID_GROUPS)
_CHOSEN_ID: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,75}"  # an id that a person may choose; containerd allows 76

# The names that runtimes put before their ids. What follows decides: crio-conmon-<64>.scope and
# libpod-conmon-<64>.scope are the monitors beside a container, and match nothing here.
_DOCKER: Final = r"docker|cri-dockerd"
_CONTAINERD: Final = r"cri-containerd|containerd|nerdctl"
_CRIO: Final = r"crio"
_PODMAN: Final = r"libpod|libpod-payload"


def _form(pattern: str, runtime: str | None) -> _Form:
    return _Form(re.compile(pattern + _END), runtime)


def _named(names: str, runtime: str | None) -> _Form:
    # /docker/<64>             cgroupfs driver       /libpod-<64>   cgroupfs driver of Podman and CRI-O
    # /docker-<64>.scope       systemd driver        /kata_<64>     the VM of a Kata sandbox
    # /x.slice:docker:<64>     systemd's notation taken for a plain name: kubelet and runtime disagree on the driver
    return _form(rf"[/:](?:{names})[-/:_](?P<id>{_HEX64})(?:\.scope)?", runtime)


# Of two forms that find the same id the earlier row counts: it knows the runtime.
_CONTAINER_FORMS: Final = (
    _named(_DOCKER, "docker"),
    _named(_CONTAINERD, "containerd"),
    _named(_CRIO, "cri-o"),
    _named(_PODMAN, "podman"),
    _named("kata", None),
    # /ecs/<task>/<64>   /ecs/<cluster>/<task>/<64>   /ecs/<task>/<task id>-<number> on Fargate
    _form(rf"/ecs/(?:[^/]+/){{1,2}}(?P<id>{_HEX64}|[0-9a-f]{{32}}-[0-9]{{1,20}})", "ecs"),
    # /docker/buildkit/<25 of base 36>   /system.slice/docker-<25>.scope   a step of `docker build`
    _form(r"/(?:buildkit/|docker-)(?P<id>[0-9a-z]{25})(?:\.scope)?", "buildkit"),
    # /system.slice/garden.service/garden/<id>   /garden/good/<id>   Cloud Foundry, Concourse
    _form(r"/garden/(?:good/|bad/)?(?P<id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{4,12})", "garden"),
    # /mesos/<uuid>   /mesos/<uuid>/mesos/<uuid>
    _form(rf"/mesos/(?P<id>{_UUID})", "mesos"),
    # /system.slice/runc-<any id>.scope   /user.slice/…/crun-<any id>.scope   called without a manager
    _form(rf"/runc-(?P<id>{_CHOSEN_ID})\.scope", "runc"),
    _form(rf"/crun-(?P<id>{_CHOSEN_ID})\.scope", "crun"),
    # /default/<any id>   containerd through ctr: /<namespace>/<id>, at the top only
    _form(rf"\A/(?:default|k8s\.io|moby)/(?P<id>{_CHOSEN_ID})", "containerd"),
    # /kubepods/burstable/pod<uid>/<64>   /<--cgroup-parent>/<64>   /../<64>
    # but /libpod_parent/<64>/libpod-<64> is a pod of Podman around a container
    _form(rf"(?<!/libpod_parent)/(?P<id>{_HEX64})", None),
)

# /kubepods/burstable/pod<uuid>/…   /kubepods.slice/kubepods-pod<uuid with _>.slice/…   …-pod<32 hex>.slice:…
_POD: Final = re.compile(rf"[/-]pod(?P<uid>{_UUID}|{_UUID_IN_SLICE}|[0-9a-f]{{32}})(?:\.slice)?(?![^/:])")

_JOB: Final = r"/job_(?P<id>[0-9]{1,20}(?:[_+][0-9]{1,20})?)"
_STEP: Final = r"/step_(?P<step>[0-9A-Za-z_.+-]{1,64})"
_SLURM_FORMS: Final = (
    # /slurm/uid_1000/job_7/step_0/task_0   /slurm_node1/uid_1000/job_7/step_batch   cgroup/v1
    # /system.slice/slurmstepd.scope/job_7/step_0/user/task_0   /…/node1_slurmstepd.scope/job_7/…   cgroup/v2
    re.compile(rf"(?:/uid_[0-9]+|[/_]slurmstepd\.scope){_JOB}(?:{_STEP})?{_END}"),
    # /../../job_8/step_0/user/task_0   another job, seen from inside one
    re.compile(rf"\A{_JOB}{_STEP}{_END}"),
)

# /lxc/<name>   /lxc.payload/<name>   /lxc.payload.<name>   /lxc/lxc.payload.<name>
# but not lxc.monitor.<name> or lxc.pivot, which stand beside the container
_LXC: Final = re.compile(rf"/lxc(?:/(?!lxc\.)|\.payload[/.])(?P<id>[0-9A-Za-z_][!-.0-~]{{0,254}}){_END}")

_UNIT_NAME: Final = r"[0-9A-Za-z:_.\\@-]{1,248}"  # systemd.unit(5), escapes such as \x2d as they stand
# /machine.slice/systemd-nspawn@<name>.service/payload/…   /machine.slice/machine-qemu\x2d1\x2d<vm>.scope/libvirt/…
_MACHINE: Final = re.compile(rf"/(?P<id>systemd-nspawn@{_UNIT_NAME}\.service|machine-{_UNIT_NAME}\.scope){_END}")
# /system.slice/ollama.service   /system.slice/system-vllm.slice/vllm@7b.service   /system.slice/run-r1.scope
# systemd puts one "_" before names that could be the kernel's own files: _cpu.service (cgroup-util.c, cg_escape)
_UNIT: Final = re.compile(rf"/_?(?P<id>{_UNIT_NAME}\.(?:service|scope)){_END}")
# A login session is people at work on the host, not a workload; nor is a runtime's scope without a container's id.
_NOT_A_WORKLOAD: Final = re.compile(
    rf"user@[0-9]+\.service|session-.*\.scope|init\.scope|(?:{_DOCKER}|{_CONTAINERD}|{_CRIO}|{_PODMAN})-.*\.scope"
)

# ---------------------------------------------------------------------------- reading a path


def _container(path: str) -> WorkloadRef | None:
    """The innermost container, its pod, and the outermost container around it."""
    found: dict[int, tuple[str, str | None]] = {}
    for form in _CONTAINER_FORMS:
        for match in form.pattern.finditer(path):
            found.setdefault(match.start("id"), (match["id"], form.runtime))
    if not found:
        return None
    innermost, outermost = max(found), min(found)
    container_id, runtime = found[innermost]
    outermost, outer_id = _system_container(path, outermost) or (outermost, found[outermost][0])
    return WorkloadRef(
        WorkloadKind.CONTAINER,
        container_id,
        runtime=runtime,
        # What a container makes below its own cgroup is its own word: it is in the pod that the host put it in.
        pod_uid=_pod_uid(path, outermost) or _pod_uid(path, innermost),
        outer_container_id=outer_id if outer_id != container_id else None,
    )


def _system_container(path: str, end: int) -> tuple[int, str] | None:
    """Where the outermost system container (LXC, nspawn) before this place stands, and its name."""
    first = (form.search(path) for form in (_LXC, _MACHINE))
    around = [(match.start("id"), match["id"]) for match in first if match is not None and match.start("id") < end]
    return min(around, default=None)


def _pod_uid(path: str, end: int) -> str | None:
    """The innermost pod before this place."""
    pods = [match["uid"] for match in _POD.finditer(path, 0, end)]
    # The kubelet writes "_" for "-" in slice names, where "-" separates levels (ToSystemd in kubelet/cm).
    return pods[-1].replace("_", "-") if pods else None


def _slurm_job(path: str) -> WorkloadRef | None:
    for form in _SLURM_FORMS:
        if (job := _last(form, path)) is not None:
            return WorkloadRef(WorkloadKind.SLURM_JOB, job["id"], slurm_step=job["step"])
    return None


def _lxc(path: str) -> WorkloadRef | None:
    if (name := _last(_LXC, path)) is None:
        return None
    _, outer_id = _system_container(path, name.end("id")) or (0, name["id"])
    return WorkloadRef(WorkloadKind.LXC, name["id"], outer_container_id=outer_id if outer_id != name["id"] else None)


def _systemd_unit(path: str) -> WorkloadRef | None:
    """The outermost machine, since the units inside are its own affair; else the innermost unit."""
    if (machine := _MACHINE.search(path)) is not None:
        return WorkloadRef(WorkloadKind.SYSTEMD_UNIT, machine["id"])
    # Scopes of a user are the windows and terminals of a desktop; services of a user are meant as services.
    of_a_user = path.startswith("/user.slice/")
    units = [
        unit
        for unit in (match["id"] for match in _UNIT.finditer(path))
        if not _NOT_A_WORKLOAD.fullmatch(unit) and not (of_a_user and unit.endswith(".scope"))
    ]
    return WorkloadRef(WorkloadKind.SYSTEMD_UNIT, units[-1]) if units else None


def _last(pattern: re.Pattern[str], path: str) -> re.Match[str] | None:
    matches = list(pattern.finditer(path))
    return matches[-1] if matches else None


# ---------------------------------------------------------------------------- reading the file

_ABOVE_THE_NAMESPACE: Final = re.compile(r"\A(?:/\.\.)+(?![^/])")
# /../cri-containerd-<64>.scope   /../<64>   /../../crio-<64>.scope/container   beside the reader's own container, which
# crun may put one level further down. What is in another pod begins with that pod's name.
_BESIDE: Final = re.compile(rf"\A(?:/\.\.){{1,2}}/(?:[a-z][a-z-]{{0,31}}[-_])?{_HEX64}(?:\.scope)?{_END}")
_LEAST_TO_MOST_SPECIFIC: Final = (
    WorkloadKind.HOST,
    WorkloadKind.SYSTEMD_UNIT,
    WorkloadKind.LXC,
    WorkloadKind.SLURM_JOB,
    WorkloadKind.CONTAINER,
)


def _paths(text: str) -> Iterator[str]:
    # Only "\n" ends a line: the kernel refuses it in a cgroup's name and allows every other character
    # (cgroup.c, cgroup_mkdir), colons too, so only the first two colons separate.
    for line in text.split("\n"):
        hierarchy, _, rest = line.partition(":")
        _, _, path = rest.partition(":")
        if hierarchy.isascii() and hierarchy.isdigit() and path.startswith("/") and len(path) <= _MAX_PATH:
            yield path.removesuffix(" (deleted)")  # appended to a removed cgroup's path (cgroup-v2.rst)


def _workload(path: str) -> WorkloadRef | None:
    # From inside a cgroup namespace, cgroups outside of it begin with "/.." (cgroup_namespaces(7)).
    visible = _ABOVE_THE_NAMESPACE.sub("", path)
    for find in (_container, _slurm_job, _lxc, _systemd_unit):
        if (found := find(visible)) is not None:
            return found
    return HOST_WORKLOAD if visible == path != "/" else None


def _specificity(workload: WorkloadRef, path: str) -> tuple[int, bool, bool, bool, int, str]:
    """Orders what the lines say, whatever order they stand in; the path itself breaks ties."""
    return (
        _LEAST_TO_MOST_SPECIFIC.index(workload.kind),
        workload.outer_container_id is not None,
        workload.pod_uid is not None,
        workload.runtime is not None,
        path.count("/"),
        path,
    )


def parse_cgroup(text: str) -> WorkloadRef | None:
    """The most specific workload that any line of ``/proc/<pid>/cgroup`` names; ``HOST_WORKLOAD`` if none does.

    ``None`` if the text does not tell: no line is usable, or every path is ``/`` (the host's root, or the root
    of the reader's own cgroup namespace) or names nothing known below ``/..`` (outside of that namespace).
    """
    # Under cgroup v1 a dozen lines mostly repeat one path.
    told = ((path, _workload(path)) for path in frozenset(_paths(text)))
    named = ((_specificity(workload, path), workload) for path, workload in told if workload is not None)
    best = max(named, key=lambda ranked: ranked[0], default=None)
    return None if best is None else best[1]


def parse_cgroup_in_pod(text: str, pod_uid: str) -> WorkloadRef | None:
    """The same, read in a cgroup namespace that begins with a container of this pod: what is in it or beside it.

    The pod itself is not in such a path. Nor is the id of the reader's own container: it goes by the pod's uid.
    """
    found, paths = parse_cgroup(text), frozenset(_paths(text))
    if found is not None and found.pod_uid is not None:
        return found
    inside = bool(paths) and not any(map(_ABOVE_THE_NAMESPACE.match, paths))
    if found is not None and found.kind is WorkloadKind.CONTAINER:
        return replace(found, pod_uid=pod_uid) if inside or any(map(_BESIDE.match, paths)) else found
    return WorkloadRef(WorkloadKind.CONTAINER, pod_uid, pod_uid=pod_uid) if inside else found
