"""Find the workload of a process in the text of ``/proc/<pid>/cgroup``, in linear time and without errors.

The text has one line ``id:controllers:path`` per hierarchy (cgroups(7)). Container runtimes, Slurm, LXC and systemd
write their ids into the path in a few forms. The tables below list these forms with examples. A form matches whole
segments anywhere in the path, and captures only printable ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from otel_gpu.model import HOST_WORKLOAD, WorkloadKind, WorkloadRef

# The kernel formats a path into a buffer of PATH_MAX bytes (cgroup.c, proc_cgroup_show).
_MAX_PATH: Final = 4096

# ---------------------------------------------------------------------------- forms of paths


class _Form(NamedTuple):
    """A part of a path and the runtime that writes it; ``None`` if several do."""

    pattern: re.Pattern[str]
    runtime: str | None


_END: Final = r"(?![^/])"  # the next segment or the end of the path
_HEX64: Final = r"[0-9a-f]{64}"
_UUID_GROUPS: Final = tuple(f"[0-9a-f]{{{digits}}}" for digits in (8, 4, 4, 4, 12))
_UUID: Final = "-".join(_UUID_GROUPS)
_UUID_IN_SLICE: Final = "_".join(_UUID_GROUPS)
_CHOSEN_ID: Final = (
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,75}"  # an id that the user may choose; containerd allows 76 characters
)

# The names that runtimes put before their ids. crio-conmon-<64>.scope and libpod-conmon-<64>.scope are cgroups of the
# monitors of containers, and match no form.
_DOCKER: Final = r"docker|cri-dockerd"
_CONTAINERD: Final = r"cri-containerd|containerd|nerdctl"
_CRIO: Final = r"crio"
_PODMAN: Final = r"libpod|libpod-payload"


def _form(pattern: str, runtime: str | None) -> _Form:
    return _Form(re.compile(pattern + _END), runtime)


def _named(names: str, runtime: str | None) -> _Form:
    # /docker/<64>             cgroupfs driver       /libpod-<64>   cgroupfs driver of Podman and CRI-O
    # /docker-<64>.scope       systemd driver        /kata_<64>     the VM of a Kata sandbox
    # /x.slice:docker:<64>     a name in systemd's notation: kubelet and runtime use different cgroup drivers
    return _form(rf"[/:](?:{names})[-/:_](?P<id>{_HEX64})(?:\.scope)?", runtime)


# If two forms find the same id, the first one counts, because it determines the runtime.
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
    # /system.slice/runc-<any id>.scope   /user.slice/…/crun-<any id>.scope   without a manager
    _form(rf"/runc-(?P<id>{_CHOSEN_ID})\.scope", "runc"),
    _form(rf"/crun-(?P<id>{_CHOSEN_ID})\.scope", "crun"),
    # /default/<any id>   containerd through ctr: /<namespace>/<id>, at the top only
    _form(rf"\A/(?:default|k8s\.io|moby)/(?P<id>{_CHOSEN_ID})", "containerd"),
    # /kubepods/burstable/pod<uid>/<64>   /<--cgroup-parent>/<64>   /../<64>
    # not /libpod_parent/<64>/libpod-<64>, which is a container in a pod of Podman
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
    # /../../job_8/step_0/user/task_0   another job, read from inside a job
    re.compile(rf"\A{_JOB}{_STEP}{_END}"),
)

# /lxc/<name>   /lxc.payload/<name>   /lxc.payload.<name>   /lxc/lxc.payload.<name>
# not lxc.monitor.<name> or lxc.pivot, which are next to the container
_LXC: Final = re.compile(rf"/lxc(?:/(?!lxc\.)|\.payload[/.])(?P<id>[0-9A-Za-z_][!-.0-~]{{0,254}}){_END}")

_UNIT_NAME: Final = r"[0-9A-Za-z:_.\\@-]{1,248}"  # systemd.unit(5), with escapes such as \x2d
# /machine.slice/systemd-nspawn@<name>.service/payload/…   /machine.slice/machine-qemu\x2d1\x2d<vm>.scope/libvirt/…
_MACHINE: Final = re.compile(rf"/(?P<id>systemd-nspawn@{_UNIT_NAME}\.service|machine-{_UNIT_NAME}\.scope){_END}")
# /system.slice/ollama.service   /system.slice/system-vllm.slice/vllm@7b.service   /system.slice/run-r1.scope
# systemd puts "_" before names that may clash with files of the kernel: _cpu.service (cgroup-util.c, cg_escape)
_UNIT: Final = re.compile(rf"/_?(?P<id>{_UNIT_NAME}\.(?:service|scope)){_END}")
# A login session is part of the host, not a workload. A scope of a runtime without a container id is neither.
_NOT_A_WORKLOAD: Final = re.compile(
    rf"user@[0-9]+\.service|session-.*\.scope|init\.scope|(?:{_DOCKER}|{_CONTAINERD}|{_CRIO}|{_PODMAN})-.*\.scope"
)

# /user.slice/user-1000.slice/user@1000.service/…   systemd puts a user's processes there, and that user's engines their
# containers. Through a cgroup namespace the path may begin with a later part. The user may create any cgroup below.
# Root's own slice shows nothing: root may create any cgroup anywhere.
_USER_SLICE: Final = re.compile(rf"\A(?:/user\.slice)?/user[-@](?P<uid>[1-9][0-9]{{0,9}})\.(?:slice|service){_END}")

# ---------------------------------------------------------------------------- from a path to a workload


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
        # A container controls what is below its own cgroup: only what is above it determines the pod.
        pod_uid=_pod_uid(path, outermost) or _pod_uid(path, innermost),
        outer_container_id=outer_id if outer_id != container_id else None,
    )


def _system_container(path: str, end: int) -> tuple[int, str] | None:
    """Position and name of the outermost system container (LXC, nspawn) before ``end``."""
    first = (form.search(path) for form in (_LXC, _MACHINE))
    outer = [(match.start("id"), match["id"]) for match in first if match is not None and match.start("id") < end]
    return min(outer, default=None)


def _pod_uid(path: str, end: int) -> str | None:
    """The innermost pod before ``end``."""
    pods = [match["uid"] for match in _POD.finditer(path, 0, end)]
    # The kubelet writes "_" for "-" in slice names, where "-" separates levels (ToSystemd in kubelet/cm).
    return pods[-1].replace("_", "-") if pods else None


def _slurm_job(path: str) -> WorkloadRef | None:
    for form in _SLURM_FORMS:
        if (job := _last(form, path)) is not None and not _is_delegated(path[: job.start()]):
            _, outer_id = _system_container(path, job.start("id")) or (0, None)
            return WorkloadRef(WorkloadKind.SLURM_JOB, job["id"], slurm_step=job["step"], outer_container_id=outer_id)
    return None


def _is_delegated(above: str) -> bool:
    """Whether a user or a service may have created what is below this path. Slurm creates nothing there."""
    services = [match["id"] for match in _UNIT.finditer(above) if match["id"].endswith(".service")]
    return _USER_SLICE.match(above) is not None or not all(_MACHINE.fullmatch(f"/{each}") for each in services)


def _lxc(path: str) -> WorkloadRef | None:
    if (name := _last(_LXC, path)) is None:
        return None
    _, outer_id = _system_container(path, name.end("id")) or (0, name["id"])
    return WorkloadRef(WorkloadKind.LXC, name["id"], outer_container_id=outer_id if outer_id != name["id"] else None)


def _systemd_unit(path: str) -> WorkloadRef | None:
    """The outermost machine, which controls the units inside; else the innermost unit."""
    if (machine := _MACHINE.search(path)) is not None:
        return WorkloadRef(WorkloadKind.SYSTEMD_UNIT, machine["id"])
    # Scopes of a user are windows and terminals of a desktop. Services of a user are workloads.
    is_of_user = path.startswith("/user.slice/")
    units = [
        unit
        for unit in (match["id"] for match in _UNIT.finditer(path))
        if not _NOT_A_WORKLOAD.fullmatch(unit) and not (is_of_user and unit.endswith(".scope"))
    ]
    return WorkloadRef(WorkloadKind.SYSTEMD_UNIT, units[-1]) if units else None


def _last(pattern: re.Pattern[str], path: str) -> re.Match[str] | None:
    matches = list(pattern.finditer(path))
    return matches[-1] if matches else None


# ---------------------------------------------------------------------------- from the text to a workload

_ABOVE_THE_NAMESPACE: Final = re.compile(r"\A(?:/\.\.)+(?![^/])")
# /../cri-containerd-<64>.scope   /../<64>   /../../crio-<64>.scope/container   a container next to the reader's own,
# which crun may put one level further down. The path of a container in another pod begins with that pod's name.
_SIBLING: Final = re.compile(rf"\A(?:/\.\.){{1,2}}/(?:[a-z][a-z-]{{0,31}}[-_])?{_HEX64}(?:\.scope)?{_END}")
_LEAST_TO_MOST_SPECIFIC: Final = (
    WorkloadKind.HOST,
    WorkloadKind.SYSTEMD_UNIT,
    WorkloadKind.LXC,
    WorkloadKind.SLURM_JOB,
    WorkloadKind.CONTAINER,
)


def _paths(text: str) -> Iterator[str]:
    # Only "\n" ends a line: the kernel rejects it in the name of a cgroup and accepts every other character (cgroup.c,
    # cgroup_mkdir). Names may contain colons too, so only the first two colons are separators.
    for line in text.split("\n"):
        hierarchy, _, rest = line.partition(":")
        _, _, path = rest.partition(":")
        if hierarchy.isascii() and hierarchy.isdigit() and path.startswith("/") and len(path) <= _MAX_PATH:
            yield path.removesuffix(" (deleted)")  # the kernel appends it for removed cgroups (cgroup-v2.rst)


def _workload(path: str) -> WorkloadRef | None:
    # Paths of cgroups outside the reader's cgroup namespace begin with "/.." (cgroup_namespaces(7)).
    visible = _ABOVE_THE_NAMESPACE.sub("", path)
    user = _USER_SLICE.match(visible)
    for find in (_container, _slurm_job, _lxc, _systemd_unit):
        if (found := find(visible)) is not None:
            return found if user is None else replace(found, user_uid=int(user["uid"]))
    return HOST_WORKLOAD if visible == path != "/" else None


def _specificity(workload: WorkloadRef, path: str) -> tuple[int, bool, bool, bool, int, str]:
    """The key by which the most specific line is chosen, regardless of the order of lines."""
    return (
        _LEAST_TO_MOST_SPECIFIC.index(workload.kind),
        workload.outer_container_id is not None,
        workload.pod_uid is not None,
        workload.runtime is not None,
        path.count("/"),
        path,
    )


def parse_cgroup(text: str) -> WorkloadRef | None:
    """The most specific workload in any line of ``/proc/<pid>/cgroup``; ``HOST_WORKLOAD`` if there is none.

    ``None`` if that is unknown: no line is usable, or every path is ``/`` (the root of the host or of the reader's
    cgroup namespace) or has no known form below ``/..`` (outside that namespace).
    """
    # Under cgroup v1 a dozen lines mostly repeat one path.
    found = ((path, _workload(path)) for path in frozenset(_paths(text)))
    ranked = ((_specificity(workload, path), workload) for path, workload in found if workload is not None)
    best = max(ranked, key=lambda rank_and_workload: rank_and_workload[0], default=None)
    return None if best is None else best[1]


def tenant(text: str, owner_uid: int | None) -> str:
    """The user or container that a process belongs to, by the part of its cgroup that only root can choose.

    Processes of one tenant share limits. Below the slice of a user, that user chooses the names of cgroups; in a
    container, the user ids.
    """
    for path in _paths(text):
        if (user := _USER_SLICE.match(path)) is not None:
            return f"user {user['uid']}"
    workload = parse_cgroup(text)
    if workload is not None and workload.kind in _TENANTS:
        return workload.outer_container_id or workload.id
    return f"user {owner_uid}"


_TENANTS: Final = frozenset({WorkloadKind.CONTAINER, WorkloadKind.LXC, WorkloadKind.SLURM_JOB})


def parse_cgroup_in_pod(text: str, pod_uid: str) -> WorkloadRef | None:
    """As ``parse_cgroup``, read by a container of this pod with a cgroup namespace of its own.

    Such a path contains neither the pod nor the id of the reader's own container. That container gets the pod's uid
    as its id.
    """
    found, paths = parse_cgroup(text), frozenset(_paths(text))
    if found is not None and found.pod_uid is not None:
        return found
    is_inside = bool(paths) and not any(map(_ABOVE_THE_NAMESPACE.match, paths))
    if found is not None and found.kind is WorkloadKind.CONTAINER:
        return replace(found, pod_uid=pod_uid) if is_inside or any(map(_SIBLING.match, paths)) else found
    return WorkloadRef(WorkloadKind.CONTAINER, pod_uid, pod_uid=pod_uid) if is_inside else found
