"""Which name sources this host has, and which of them are used.

``read_facts`` looks at the host; ``find_candidates`` decides, and is pure.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from otel_gpu.sources.unix_socket import connect

_DOCKER: Final = "var/run/docker.sock"
_PODMAN: Final = "run/podman/podman.sock"
_USER_PODMAN: Final = "podman/podman.sock"
_OF_USER: Final = "podman-"
_CONTAINERD: Final = "run/containerd/containerd.sock"
_CRI: Final = (
    "run/k3s/containerd/containerd.sock",
    "run/k0s/containerd.sock",
    "var/snap/microk8s/common/run/containerd.sock",
    "run/crio/crio.sock",
    "run/cri-dockerd.sock",
    _CONTAINERD,
)
"""Sockets where runtimes serve the kubelet. The last one may be Docker's; the others exist only for Kubernetes."""

_KUBELETS: Final = ("var/lib/kubelet", "var/lib/k0s/kubelet", "var/snap/microk8s/common/var/lib/kubelet")
"""Root directories of the kubelet: the default, k0s, MicroK8s."""
_POD_RESOURCES: Final = tuple(f"{kubelet}/pod-resources/kubelet.sock" for kubelet in _KUBELETS)
SERVICE_ACCOUNT: Final = "var/run/secrets/kubernetes.io/serviceaccount"
"""Where the kubelet mounts a pod's service account."""
_CGROUPS: Final = (
    "sys/fs/cgroup",
    *(f"sys/fs/cgroup/{controller}" for controller in ("systemd", "cpuset", "devices", "freezer", "memory")),
)
"""Roots of cgroup hierarchies: the one of v2, and those of v1 that Slurm and the kubelet use."""
_SLURM_SCOPES: Final = "sys/fs/cgroup/system.slice"
_SLURM: Final = ("etc/slurm", "etc/slurm-llnl", "run/slurm", "run/slurmd.pid", "var/spool/slurmd", "var/spool/slurm")

NODE_NAME_FIX: Final = (
    "set --node-name, or in the manifest: env: [{name: K8S_NODE_NAME, valueFrom: {fieldRef: {fieldPath: "
    "spec.nodeName}}}]"
)
SERVICE_ACCOUNT_FIX: Final = (
    "run the agent in the cluster with automountServiceAccountToken: true: it uses the service account of its pod"
)

MAX_USERS: Final = 16
"""Users whose Podman is used: each takes a connection and a thread."""

_AUTO: Final = "auto"
_UNIX: Final = "unix://"


@dataclass(frozen=True, slots=True)
class NameOptions:
    """Which name sources to use, and where they are; ``None`` and empty text mean the default.

    ``environment`` is ``auto``, ``docker``, ``podman``, ``kubernetes``, ``slurm`` or ``host``; ``kubernetes_api`` is
    ``auto``, ``always`` or ``never``. Addresses of engines are URLs (``unix:///path``, ``tcp://host:port``).
    """

    environment: str = _AUTO
    proc_root: Path = Path("/proc")
    docker_url: str | None = None
    docker_tls_verify: bool = False
    docker_cert_path: Path | None = None
    podman_url: str | None = None
    cri_socket: Path | None = None
    pod_resources_socket: Path | None = None
    kubernetes_api: str = _AUTO
    node_name: str = ""
    container_labels: tuple[str, ...] = ()
    pod_labels: tuple[str, ...] = ()


class Kind(StrEnum):
    """A kind of name source."""

    DOCKER = "docker"
    PODMAN = "podman"
    CRI = "cri"
    POD_RESOURCES = "pod-resources"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"


class Presence(StrEnum):
    """What is at the path of a socket."""

    SOCKET = "socket"
    DENIED = "denied"
    DEAD = "dead"
    OTHER = "other"
    MISSING = "missing"


_BEST_FIRST: Final = tuple(Presence)
"""Preference among several paths: a usable socket, a socket without a server, anything else."""


@dataclass(frozen=True, slots=True)
class Socket:
    """The path of a socket, and what is there. ``node`` is the same for one socket with two paths."""

    path: Path
    presence: Presence = Presence.MISSING
    node: tuple[int, int] | None = None

    @property
    def exists(self) -> bool:
        """Whether anything is at the path."""
        return self.presence is not Presence.MISSING


@dataclass(frozen=True, slots=True)
class Facts:
    """What the host has: sockets at the default or configured paths, and traces of Kubernetes and Slurm."""

    docker: Socket
    podman: Socket
    podman_users: Mapping[str, Socket]
    cri: tuple[Socket, ...]
    pod_resources: tuple[Socket, ...]
    kubernetes_node: bool
    in_cluster: bool
    service_account: bool
    slurm: str | None


@dataclass(frozen=True, slots=True)
class SourceCandidate:
    """A possible name source: where it is (``url`` or ``socket``), whether it is ``used``, and ``why``.

    ``uid`` is the user in whose directory the socket is: that user can replace it at any time.
    ``lacks`` is what it cannot work without, and ``fix`` how to provide that. A source that lacks something and is
    used was requested: it is reported as unavailable.
    """

    name: str
    kind: Kind
    used: bool
    why: str
    url: str | None = None
    socket: Socket | None = None
    uid: int | None = None
    lacks: str | None = None
    fix: str | None = None


# ---------------------------------------------------------------------------- facts


def read_facts(options: NameOptions, environment: Mapping[str, str], root: Path = Path("/")) -> Facts:
    """Look at the host whose file system is at ``root``."""
    own = environment.get("XDG_RUNTIME_DIR", "")
    in_cluster = bool(environment.get("KUBERNETES_SERVICE_HOST"))
    return Facts(
        docker=look(_unix_path(options.docker_url) or root / _DOCKER),
        podman=look(_unix_path(options.podman_url) or root / _PODMAN),
        podman_users={} if options.podman_url else _user_podmans(root, Path(own) if own.startswith("/") else None),
        cri=_look_all([options.cri_socket] if options.cri_socket else map(root.joinpath, _CRI)),
        pod_resources=_look_all(
            [options.pod_resources_socket] if options.pod_resources_socket else map(root.joinpath, _POD_RESOURCES)
        ),
        kubernetes_node=_is_kubernetes_node(root) or in_cluster,
        in_cluster=in_cluster,
        service_account=in_cluster and _has_service_account(environment, root),
        slurm=_slurm_trace(root),
    )


def look(path: Path) -> Socket:
    """What is at a path. To connect to a socket takes write permission (unix(7))."""
    try:
        found = path.stat()
    except PermissionError:
        return Socket(path, Presence.DENIED)
    except (OSError, ValueError):  # ValueError: a null character in the path
        return Socket(path)
    node = found.st_dev, found.st_ino
    if not stat.S_ISSOCK(found.st_mode):
        return Socket(path, Presence.OTHER, node)
    return Socket(path, Presence.SOCKET if os.access(path, os.W_OK) else Presence.DENIED, node)


def _look_all(paths: Iterable[Path]) -> tuple[Socket, ...]:
    """What is at each path. If several exist, those without a server are marked: they must not hide another."""
    found = tuple(map(look, paths))
    if sum(each.exists for each in found) < 2:
        return found
    return tuple(
        replace(each, presence=Presence.DEAD) if each.presence is Presence.SOCKET and _is_dead(each.path) else each
        for each in found
    )


def _is_dead(path: Path) -> bool:
    """Whether no process listens."""
    try:
        connect(path).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False  # the source reports it
    return False


def _has_service_account(environment: Mapping[str, str], root: Path) -> bool:
    # Imported only in a cluster: it loads HTTP and TLS.
    from otel_gpu.sources.names.kubernetes.api import in_cluster  # noqa: PLC0415

    return in_cluster(environment, root / SERVICE_ACCOUNT) is not None


def _unix_path(url: str | None) -> Path | None:
    """The socket's path in a URL ``unix:///path``; ``None`` for others."""
    return Path(url.removeprefix(_UNIX)) if url is not None and url.startswith(_UNIX) else None


def _user_podmans(root: Path, own: Path | None) -> dict[str, Socket]:
    """Sockets of users' Podman by the names of their sources, the agent's user first."""
    found: dict[str, Socket] = {}
    directories = [] if own is None else [own]
    directories += sorted(root / "run/user" / name for name in _names(root / "run/user") if name.isdecimal())
    for directory in directories:
        podman = look(directory / _USER_PODMAN)
        if podman.exists and podman not in found.values():
            found[f"{_OF_USER}{directory.name if directory.name.isdecimal() else 'user'}"] = podman
    return found


def _is_kubernetes_node(root: Path) -> bool:
    return any((root / kubelet).is_dir() for kubelet in _KUBELETS) or any(
        name.startswith("kubepods") for directory in _CGROUPS for name in _names(root / directory)
    )


def _slurm_trace(root: Path) -> str | None:
    """A path that exists on nodes of Slurm: the cgroup of its steps, or its files."""
    # cgroup v2: /sys/fs/cgroup/system.slice/[<node>_]slurmstepd.scope; v1: /sys/fs/cgroup/<controller>/slurm[_<node>]
    scopes = (root / _SLURM_SCOPES / name for name in _names(root / _SLURM_SCOPES) if "slurmstepd.scope" in name)
    trees = (root / top / name for top in _CGROUPS for name in _names(root / top) if name.startswith("slurm"))
    files = (root / path for path in _SLURM if (root / path).exists())
    return next((str(path) for paths in (scopes, trees, files) for path in paths), None)


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - iterdir() does not fail before it is iterated
    except OSError:
        return []


# ---------------------------------------------------------------------------- candidates


def find_candidates(options: NameOptions, facts: Facts) -> tuple[SourceCandidate, ...]:
    """Every possible name source, by precedence: if two know the same id, the first one counts."""
    cri = _cri(options, facts)
    return (
        cri,
        _kubernetes(options, facts, cri),
        _docker(options, facts),
        *_podmans(options, facts),
        _pod_resources(options, facts),
        _slurm(options, facts),
    )


def _is_used(options: NameOptions, environment: str, *, found: bool, configured: bool) -> bool:
    """A chosen environment is always used; in auto, a source that was found or configured."""
    return options.environment == environment or (options.environment == _AUTO and (found or configured))


def _why_not(options: NameOptions, place: str) -> str:
    if options.environment == _AUTO:
        return f"not found at {place}"
    return f"not used: the environment is {options.environment}"


def _docker(options: NameOptions, facts: Facts) -> SourceCandidate:
    url = options.docker_url or f"{_UNIX}{facts.docker.path}"
    socket = facts.docker if url.startswith(_UNIX) else None
    podmans = [facts.podman, *facts.podman_users.values()]
    twin = next((other for other in podmans if other.node is not None and other.node == facts.docker.node), None)
    configured = options.docker_url is not None
    if twin is not None and not configured and options.environment == _AUTO:
        # The package podman-docker links /run/docker.sock to Podman's socket.
        why = f"{facts.docker.path} is Podman's socket {twin.path}"
        return SourceCandidate("docker", Kind.DOCKER, used=False, why=why)
    used = _is_used(options, "docker", found=facts.docker.exists, configured=configured)
    return SourceCandidate("docker", Kind.DOCKER, used, url if used else _why_not(options, url), url, socket)


def _podmans(options: NameOptions, facts: Facts) -> Iterator[SourceCandidate]:
    configured = options.podman_url is not None
    url = options.podman_url or f"{_UNIX}{facts.podman.path}"
    socket = facts.podman if url.startswith(_UNIX) else None
    users = {name: each for name, each in facts.podman_users.items() if each.presence is Presence.SOCKET}
    used = _is_used(options, "podman", found=facts.podman.exists, configured=configured)
    if used and users and not configured and not facts.podman.exists:
        used = False  # only users have Podman
    yield SourceCandidate("podman", Kind.PODMAN, used, url if used else _why_not(options, url), url, socket)
    for number, (name, each) in enumerate(users.items()):
        used = number < MAX_USERS and _is_used(options, "podman", found=True, configured=True)
        why = f"over the limit of {MAX_USERS} users" if number >= MAX_USERS else _why_not(options, "")
        url = f"{_UNIX}{each.path}"
        uid = name.removeprefix(_OF_USER)
        owner = int(uid) if uid.isdecimal() and int(uid) > 0 else None
        yield SourceCandidate(name, Kind.PODMAN, used, url if used else why, url, each, owner)


def _cri(options: NameOptions, facts: Facts) -> SourceCandidate:
    best = _best(facts.cri)
    if not best.exists:
        best = facts.cri[-1]  # containerd's default
    configured = options.cri_socket is not None
    is_kubernetes = facts.kubernetes_node or not str(best.path).endswith(f"/{_CONTAINERD}")
    used = _is_used(options, "kubernetes", found=best.exists and is_kubernetes, configured=configured)
    why = str(best.path) if used else _why_not(options, _places(best, facts.cri))
    if not used and best.exists and not is_kubernetes and options.environment == _AUTO:
        why = f"{best.path} is not of a Kubernetes node: there is neither /{_KUBELETS[0]} nor a cgroup kubepods"
    return SourceCandidate("cri", Kind.CRI, used, why, socket=best)


def _pod_resources(options: NameOptions, facts: Facts) -> SourceCandidate:
    best = _best(facts.pod_resources)
    configured = options.pod_resources_socket is not None
    used = _is_used(options, "kubernetes", found=best.exists, configured=configured)
    why = str(best.path) if used else _why_not(options, _places(best, facts.pod_resources))
    return SourceCandidate("pod-resources", Kind.POD_RESOURCES, used, why, socket=best)


def _best(sockets: Sequence[Socket]) -> Socket:
    """The first of the most usable sockets."""
    return min(sockets, key=lambda each: _BEST_FIRST.index(each.presence))


def _places(first: Socket, sockets: Sequence[Socket]) -> str:
    others = len(sockets) - 1
    return f"{first.path} and {others} other places (docs/names.md)" if others else str(first.path)


def _kubernetes(options: NameOptions, facts: Facts, cri: SourceCandidate) -> SourceCandidate:
    chosen = options.kubernetes_api
    candidate = SourceCandidate("kubernetes", Kind.KUBERNETES, used=False, why="")
    # A socket without a server counts: the runtime may be starting.
    has_cri = cri.used and cri.socket is not None and cri.socket.presence in {Presence.SOCKET, Presence.DEAD}
    if options.environment not in {_AUTO, "kubernetes"}:
        return replace(candidate, why=_why_not(options, ""))
    if chosen == "never":
        return replace(candidate, why="not used: kubernetes-api is never")
    if chosen == _AUTO and not facts.in_cluster:
        return replace(candidate, why="not in a cluster: KUBERNETES_SERVICE_HOST is not set")
    if chosen == _AUTO and has_cri and not options.pod_labels:
        why = "not needed: the node's container runtime has the names, and no pod-labels are configured"
        return replace(candidate, why=why)
    lacks, fix = _lacking(options, facts)
    if chosen == "always":
        used, why = True, "used: kubernetes-api is always"
    elif options.pod_labels:
        used, why = True, "used for pod-labels"
    elif lacks is None or options.environment == "kubernetes":
        used, why = True, "used: there is no CRI socket"
    else:
        # It was not requested, and many pods have no service account: that is no fault.
        used, why = False, lacks
    return replace(candidate, used=used, why=why, lacks=lacks, fix=fix)


def _lacking(options: NameOptions, facts: Facts) -> tuple[str | None, str | None]:
    """What the API cannot be used without, and how to provide it."""
    if not facts.service_account:
        return "there is no service account", SERVICE_ACCOUNT_FIX
    if not options.node_name:
        return "the node name is unknown", NODE_NAME_FIX
    return None, None


def _slurm(options: NameOptions, facts: Facts) -> SourceCandidate:
    used = _is_used(options, "slurm", found=facts.slurm is not None, configured=False)
    place = facts.slurm or "the jobs' environment"
    return SourceCandidate(
        "slurm", Kind.SLURM, used, place if used else _why_not(options, "/etc/slurm, /var/spool/slurmd, …")
    )
