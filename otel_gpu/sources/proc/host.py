"""What ``/proc`` shows of the host: the agent's namespaces and pod, the boot id, minors of the NVIDIA driver."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_gpu.errors import UsageError
from otel_gpu.model import MigAccess, Pod
from otel_gpu.sources.proc.cgroup import parse_cgroup
from otel_gpu.sources.proc.files import read_file

# The inode numbers of the initial namespaces are fixed: include/linux/proc_ns.h, later include/uapi/linux/nsfs.h.
_PROC_CGROUP_INIT_INO: Final = 0xEFFFFFFB
_PROC_PID_INIT_INO: Final = 0xEFFFFFFC

PID_NAMESPACE_FIX: Final = "docker run --pid=host, in Kubernetes hostPID: true"
CGROUP_NAMESPACE_FIX: Final = "docker run --cgroupns=host"
"""How to run the agent in the host's namespaces, for reasons and the doctor."""

_NAMESPACE: Final = re.compile(r"[a-z_]{1,32}:\[([0-9]{1,20})\]")
_NSPID: Final = re.compile(r"^NSpid:((?:[ \t]+[0-9]{1,10})+)$", re.MULTILINE)
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_GPU_UUID: Final = re.compile(r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DEVICE_MINOR: Final = re.compile(r"[0-9]{1,6}")
_MIG_MINOR: Final = re.compile(r"gpu([0-9]{1,6})/gi([0-9]{1,6})/(?:ci([0-9]{1,6})/)?access[ \t]+([0-9]{1,6})")


def parse_namespace_inode(link: str) -> int | None:
    """The inode number in a namespace link such as ``pid:[4026531836]`` (namespaces(7))."""
    found = _NAMESPACE.fullmatch(link)
    return int(found[1]) if found else None


def parse_nspid(text: str) -> tuple[int, ...]:
    """The pids of a process from ``/proc/<pid>/status``: in the namespace of that procfs, then in each nested one."""
    found = _NSPID.search(text)
    return tuple(map(int, found[1].split())) if found else ()


def parse_gpu_information(text: str) -> tuple[int, str] | None:
    """Device minor and UUID from ``/proc/driver/nvidia/gpus/<bus id>/information``."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    minor, uuid = fields.get("Device Minor", ""), fields.get("GPU UUID", "")
    # The driver prints question marks for the UUID until a process opens the GPU.
    if not _DEVICE_MINOR.fullmatch(minor) or not _GPU_UUID.fullmatch(uuid):
        return None
    return int(minor), uuid


def parse_mig_minors(text: str) -> dict[int, MigAccess]:
    """MIG instances by capability minor (``/dev/nvidia-caps/nvidia-capN``), without ``config`` and ``monitor``."""
    capabilities: dict[int, MigAccess] = {}
    for line in text.splitlines():
        if found := _MIG_MINOR.fullmatch(line.strip()):
            gpu, gpu_instance, compute_instance, minor = found.groups()
            compute_instance_id = int(compute_instance) if compute_instance else None
            capabilities[int(minor)] = MigAccess(int(gpu), int(gpu_instance), compute_instance_id)
    return capabilities


def pid_namespace_is_initial(root: Path) -> bool | None:
    """Whether the agent runs in the host's pid namespace; ``None`` if unknown."""
    return _is_namespace(root, "pid", _PROC_PID_INIT_INO)


def cgroup_namespace_is_initial(root: Path) -> bool | None:
    """Whether the agent runs in the host's cgroup namespace; ``None`` if unknown."""
    return _is_namespace(root, "cgroup", _PROC_CGROUP_INIT_INO)


def shows_own_pids(root: Path) -> bool | None:
    """Whether ``root`` is the procfs of the agent's own pid namespace; ``None`` if unknown."""
    # NSpid begins with the pid in the namespace of the procfs (proc_pid_status(5), fs/proc/array.c). A single pid means
    # that there is no namespace between that one and the reader's own.
    pids = parse_nspid(_read_text(root / "self/status"))
    return len(pids) == 1 if pids else None


def shows_the_host(root: Path) -> bool:
    """Whether ``root`` shows the processes of the host: only there are kernel threads, and process 2 is kthreadd."""
    _, _, rest = _read_text(root / "2/stat").partition(" (kthreadd) ")
    return rest.split()[1:2] == ["0"]  # the state, then the parent: any process may have the name, but not no parent


def read_boot_id(root: Path) -> str | None:
    """The random UUID of this boot."""
    boot_id = _read_text(root / "sys/kernel/random/boot_id").strip()
    return boot_id if _UUID.fullmatch(boot_id) else None


def read_nvidia_minors(root: Path) -> dict[int, str]:
    """GPU UUIDs by the minor of ``/dev/nvidiaN``, from the NVIDIA driver; empty without a driver."""
    gpus = root / "driver/nvidia/gpus"
    try:
        bus_ids = sorted(os.listdir(gpus))  # noqa: PTH208 - iterdir() does not fail before it is iterated
    except OSError:
        return {}
    information = (parse_gpu_information(_read_text(gpus / bus_id / "information")) for bus_id in bus_ids)
    return dict(gpu for gpu in information if gpu is not None)


def read_mig_minors(root: Path) -> dict[int, MigAccess]:
    """MIG instances by capability minor, from the NVIDIA driver; empty without a driver."""
    return parse_mig_minors(_read_text(root / "driver/nvidia-caps/mig-minors"))


def _is_namespace(root: Path, kind: str, initial_inode: int) -> bool | None:
    # <root>/self is the reader, also in a host's procfs that is mounted elsewhere. It dangles if the reader has no
    # pid in the pid namespace of that procfs.
    try:
        inode = parse_namespace_inode(str((root / "self/ns" / kind).readlink()))
    except OSError:
        return None
    return None if inode is None else inode == initial_inode


def _read_text(path: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return read_file(os.fspath(path)).decode("utf-8", "replace")
    except OSError:
        return ""


# ---------------------------------------------------------------------------- the agent's own pod

_POD_UID: Final = ("POD_UID", "K8S_POD_UID")
_POD_NAME: Final = ("POD_NAME", "K8S_POD_NAME")
_POD_NAMESPACE: Final = ("POD_NAMESPACE", "K8S_NAMESPACE_NAME")
_POD_UID_TEXT: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
"""A UUID; for a static pod, a hash of its manifest. Both as they appear in cgroups."""

_CGROUP: Final = "self/cgroup"
POD_UID_FIX: Final = "env: [{name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}]"


@dataclass(frozen=True, slots=True)
class OwnPod:
    """The agent's own pod, and where its identity was found: a file or environment variables."""

    pod: Pod
    origin: str


def find_own_pod(environment: Mapping[str, str], own_proc: Path = Path("/proc")) -> OwnPod:
    """The pod that this process runs in. UsageError if neither its cgroup nor the environment identifies it."""
    uid, uid_origin = _uid_from_cgroup(own_proc), f"{own_proc}/{_CGROUP}"
    if uid is None:
        uid, uid_origin = _uid_from_environment(environment)
    (name, name_origin), (namespace, namespace_origin) = (
        _first(environment, names) for names in (_POD_NAME, _POD_NAMESPACE)
    )
    if uid is not None:
        return OwnPod(Pod(uid, name, namespace), uid_origin)
    if name is not None and namespace is not None:
        return OwnPod(Pod(None, name, namespace), f"{name_origin} and {namespace_origin}")
    raise UsageError(
        f"scope is 'pod', but the agent's own pod is unknown: {own_proc}/{_CGROUP} names none; set POD_UID (in the "
        f"manifest: {POD_UID_FIX}), or POD_NAME and POD_NAMESPACE"
    )


def _uid_from_cgroup(own_proc: Path) -> str | None:
    try:
        found = parse_cgroup(read_file(str(own_proc / _CGROUP)).decode("utf-8", "replace"))
    except OSError:
        return None
    return None if found is None else found.pod_uid


def _uid_from_environment(environment: Mapping[str, str]) -> tuple[str | None, str]:
    text, variable = _first(environment, _POD_UID)
    if text is not None and not _POD_UID_TEXT.fullmatch(text):
        raise UsageError(f"{variable}: {text!r} is not a pod uid; use metadata.uid of the downward API")
    return text, variable


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> tuple[str | None, str]:
    """The first variable that is set and not empty, and its name."""
    found = ((text, name) for name in names if (text := environment.get(name, "").strip()))
    return next(found, (None, names[0]))
