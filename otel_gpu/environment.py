"""Who on this host could tell what workloads are called, and who of them is asked.

Looking (``read_facts``) is apart from judging (``candidates``), which is pure.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from otel_gpu.config import Config
from otel_gpu.settings_names import Environment, KubernetesApi
from otel_gpu.values import Daemon

_DOCKER: Final = "var/run/docker.sock"
_PODMAN: Final = "run/podman/podman.sock"
_PODMAN_OF_USER: Final = "podman/podman.sock"
_CONTAINERD: Final = "run/containerd/containerd.sock"
_CRI: Final = (
    "run/k3s/containerd/containerd.sock",
    "run/k0s/containerd.sock",
    "var/snap/microk8s/common/run/containerd.sock",
    "run/crio/crio.sock",
    "run/cri-dockerd.sock",
    _CONTAINERD,
)
"""Where runtimes listen for the kubelet. The last may be Docker's own; all others are there only for Kubernetes."""

_KUBELETS: Final = ("var/lib/kubelet", "var/lib/k0s/kubelet", "var/snap/microk8s/common/var/lib/kubelet")
"""Root directories of the kubelet: its own, k0s's, MicroK8s's."""
_POD_RESOURCES: Final = tuple(f"{kubelet}/pod-resources/kubelet.sock" for kubelet in _KUBELETS)
SERVICE_ACCOUNT: Final = "var/run/secrets/kubernetes.io/serviceaccount"
"""Where the kubelet mounts what a pod may show the API."""
_CGROUPS: Final = (
    "sys/fs/cgroup",
    *(f"sys/fs/cgroup/{controller}" for controller in ("systemd", "cpuset", "devices", "freezer", "memory")),
)
"""Tops of the hierarchies: the one of cgroup v2, and those that Slurm and the kubelet use of cgroup v1."""
_SLURM_SCOPES: Final = "sys/fs/cgroup/system.slice"
_SLURM: Final = ("etc/slurm", "etc/slurm-llnl", "run/slurm", "run/slurmd.pid", "var/spool/slurmd", "var/spool/slurm")

NODE_NAME_FIX: Final = (
    "set --node-name, or in the manifest: env: [{name: K8S_NODE_NAME, valueFrom: {fieldRef: {fieldPath: "
    "spec.nodeName}}}]"
)
SERVICE_ACCOUNT_FIX: Final = (
    "the API is asked as the service account of the agent's pod: run it in the cluster, with "
    "automountServiceAccountToken: true"
)

MOST_USERS: Final = 16
"""So many users' Podman are asked at once: each takes a connection and a thread."""


class Kind(StrEnum):
    """Who is asked."""

    DOCKER = "docker"
    PODMAN = "podman"
    CRI = "cri"
    POD_RESOURCES = "pod-resources"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"


class Presence(StrEnum):
    """What is at a path where a socket should be."""

    SOCKET = "socket"
    DENIED = "denied"
    DEAD = "dead"
    OTHER = "other"
    MISSING = "missing"


_BEST_FIRST: Final = tuple(Presence)
"""Of several places: where somebody may listen, where nobody does, where nobody could."""


@dataclass(frozen=True, slots=True)
class Socket:
    """A path where somebody may listen, and what is there. ``node`` is the same for one socket under two names."""

    path: Path
    presence: Presence = Presence.MISSING
    node: tuple[int, int] | None = None

    @property
    def there(self) -> bool:
        """Whether anything is there, good or bad."""
        return self.presence is not Presence.MISSING


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found: sockets at the usual paths or at those that the settings name, and signs of who runs here."""

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
class Candidate:
    """Somebody who could tell names: where, and why he is asked or is not; ``socket`` is what was found there.

    ``lacks`` is what he cannot be asked without, and ``fix`` where it comes from. Who is used all the same was wanted,
    and is told as unavailable.
    """

    name: str
    kind: Kind
    used: bool
    why: str
    daemon: Daemon | None = None
    socket: Socket | None = None
    lacks: str | None = None
    fix: str | None = None


# ---------------------------------------------------------------------------- looking


def read_facts(config: Config, environment: Mapping[str, str], root: Path = Path("/")) -> Facts:
    """Look at the places that count under these settings. ``root`` is the host's, for whoever has it elsewhere."""
    own = environment.get("XDG_RUNTIME_DIR", "")
    in_cluster = bool(environment.get("KUBERNETES_SERVICE_HOST"))
    return Facts(
        docker=look(_given(config.docker_host) or root / _DOCKER),
        podman=look(_given(config.podman_host) or root / _PODMAN),
        podman_users={} if config.podman_host else _podman_of_users(root, Path(own) if own.startswith("/") else None),
        cri=_look_at_all([config.cri_socket] if config.cri_socket else map(root.joinpath, _CRI)),
        pod_resources=_look_at_all(
            [config.pod_resources_socket] if config.pod_resources_socket else map(root.joinpath, _POD_RESOURCES)
        ),
        kubernetes_node=_is_kubernetes_node(root) or in_cluster,
        in_cluster=in_cluster,
        service_account=in_cluster and _has_service_account(environment, root),
        slurm=_sign_of_slurm(root),
    )


def look(path: Path) -> Socket:
    """What is at a path. Connecting to a socket takes the right to write to it (unix(7))."""
    try:
        found = path.stat()
    except PermissionError:
        return Socket(path, Presence.DENIED)
    except (OSError, ValueError):  # ValueError: a zero in the path
        return Socket(path)
    node = found.st_dev, found.st_ino
    if not stat.S_ISSOCK(found.st_mode):
        return Socket(path, Presence.OTHER, node)
    return Socket(path, Presence.SOCKET if os.access(path, os.W_OK) else Presence.DENIED, node)


def _look_at_all(paths: Iterable[Path]) -> tuple[Socket, ...]:
    """What is at each of them. If there is a choice, sockets that somebody left behind are told apart: who has
    stopped listening, or was removed, must not hide who is there.
    """
    found = tuple(map(look, paths))
    if sum(each.there for each in found) < 2:
        return found
    return tuple(
        replace(each, presence=Presence.DEAD) if each.presence is Presence.SOCKET and _is_dead(each.path) else each
        for each in found
    )


def _is_dead(path: Path) -> bool:
    """Whether nobody listens: connecting takes no time, it is refused or done or, if the queue is full, EAGAIN."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False  # whatever it is, the source will tell
    return False


def _has_service_account(environment: Mapping[str, str], root: Path) -> bool:
    # Here, not above: HTTP and TLS are for those who run in a cluster.
    from otel_gpu.sources.kubernetes.api import in_cluster  # noqa: PLC0415

    return in_cluster(environment, root / SERVICE_ACCOUNT) is not None


def _given(daemon: Daemon | None) -> Path | None:
    return None if daemon is None else daemon.socket


def _podman_of_users(root: Path, own: Path | None) -> dict[str, Socket]:
    """Sockets of users' own Podman, by the name of their source, the agent's own user first."""
    found: dict[str, Socket] = {}
    directories = [] if own is None else [own]
    directories += sorted(root / "run/user" / name for name in _names(root / "run/user") if name.isdecimal())
    for directory in directories:
        podman = look(directory / _PODMAN_OF_USER)
        if podman.there and podman not in found.values():
            found[f"podman-{directory.name if directory.name.isdecimal() else 'user'}"] = podman
    return found


def _is_kubernetes_node(root: Path) -> bool:
    return any((root / kubelet).is_dir() for kubelet in _KUBELETS) or any(
        name.startswith("kubepods") for directory in _CGROUPS for name in _names(root / directory)
    )


def _sign_of_slurm(root: Path) -> str | None:
    """A path that Slurm makes on a node: the cgroup of its steps, or its files."""
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


# ---------------------------------------------------------------------------- judging


def candidates(config: Config, facts: Facts) -> tuple[Candidate, ...]:
    """Everybody who could tell names, the weightiest first: of two who know one id, the first is believed."""
    cri = _cri(config, facts)
    return (
        cri,
        _kubernetes(config, facts, cri),
        _docker(config, facts),
        *_podmans(config, facts),
        _pod_resources(config, facts),
        _slurm(config, facts),
    )


def _asked(config: Config, environment: Environment, *, there: bool, given: bool) -> bool:
    """A named environment is asked come what may; in auto, who is there, and who was named in a setting."""
    chosen = config.environment
    return chosen is environment or (chosen is Environment.AUTO and (there or given))


def _why_not(config: Config, where: str) -> str:
    if config.environment is Environment.AUTO:
        return f"not found at {where}"
    return f"not asked, for the environment is {config.environment}"


def _docker(config: Config, facts: Facts) -> Candidate:
    daemon = config.docker_host or Daemon(f"unix://{facts.docker.path}", facts.docker.path)
    socket = facts.docker if daemon.socket else None
    podmans = [facts.podman, *facts.podman_users.values()]
    twin = next((other for other in podmans if other.node is not None and other.node == facts.docker.node), None)
    given = config.docker_host is not None
    if twin is not None and not given and config.environment is Environment.AUTO:
        # The package podman-docker links /run/docker.sock to Podman's socket.
        return Candidate("docker", Kind.DOCKER, used=False, why=f"{facts.docker.path} is Podman's, {twin.path}")
    used = _asked(config, Environment.DOCKER, there=facts.docker.there, given=given)
    return Candidate(
        "docker", Kind.DOCKER, used, str(daemon) if used else _why_not(config, str(daemon)), daemon, socket
    )


def _podmans(config: Config, facts: Facts) -> Iterator[Candidate]:
    given = config.podman_host is not None
    daemon = config.podman_host or Daemon(f"unix://{facts.podman.path}", facts.podman.path)
    socket = facts.podman if daemon.socket else None
    of_users = {name: each for name, each in facts.podman_users.items() if each.presence is Presence.SOCKET}
    used = _asked(config, Environment.PODMAN, there=facts.podman.there, given=given)
    if used and of_users and not given and not facts.podman.there:
        used = False  # there is Podman, though not the host's
    why = str(daemon) if used else _why_not(config, str(daemon))
    yield Candidate("podman", Kind.PODMAN, used, why, daemon, socket)
    for number, (name, each) in enumerate(of_users.items()):
        used = number < MOST_USERS and _asked(config, Environment.PODMAN, there=True, given=True)
        why = f"beyond the {MOST_USERS} users that are asked" if number >= MOST_USERS else _why_not(config, "")
        url = f"unix://{each.path}"
        yield Candidate(name, Kind.PODMAN, used, url if used else why, Daemon(url, each.path), each)


def _cri(config: Config, facts: Facts) -> Candidate:
    best = _best(facts.cri)
    if not best.there:
        best = facts.cri[-1]  # the usual one
    given = config.cri_socket is not None
    own = facts.kubernetes_node or not str(best.path).endswith(f"/{_CONTAINERD}")
    used = _asked(config, Environment.KUBERNETES, there=best.there and own, given=given)
    why = str(best.path) if used else _why_not(config, _places(best, facts.cri))
    if not used and best.there and not own and config.environment is Environment.AUTO:
        why = f"{best.path} is no Kubernetes node's: there is neither /{_KUBELETS[0]} nor a cgroup kubepods"
    return Candidate("cri", Kind.CRI, used, why, socket=best)


def _pod_resources(config: Config, facts: Facts) -> Candidate:
    best = _best(facts.pod_resources)
    given = config.pod_resources_socket is not None
    used = _asked(config, Environment.KUBERNETES, there=best.there, given=given)
    why = str(best.path) if used else _why_not(config, _places(best, facts.pod_resources))
    return Candidate("pod-resources", Kind.POD_RESOURCES, used, why, socket=best)


def _best(sockets: Sequence[Socket]) -> Socket:
    """The first of those that promise most."""
    return min(sockets, key=lambda each: _BEST_FIRST.index(each.presence))


def _places(usual: Socket, sockets: Sequence[Socket]) -> str:
    others = len(sockets) - 1
    return f"{usual.path} and {others} other places (docs/names.md)" if others else str(usual.path)


def _kubernetes(config: Config, facts: Facts, cri: Candidate) -> Candidate:
    chosen = config.kubernetes_api
    by = Candidate("kubernetes", Kind.KUBERNETES, used=False, why="")
    # One that nobody listens at now may be starting: a runtime that is there tells names.
    has_cri = cri.used and cri.socket is not None and cri.socket.presence in {Presence.SOCKET, Presence.DEAD}
    if config.environment not in {Environment.AUTO, Environment.KUBERNETES}:
        return replace(by, why=_why_not(config, ""))
    if chosen is KubernetesApi.NEVER:
        return replace(by, why="not asked, for kubernetes-api is never")
    if chosen is KubernetesApi.AUTO and not facts.in_cluster:
        return replace(by, why="not in a cluster: KUBERNETES_SERVICE_HOST is not set")
    if chosen is KubernetesApi.AUTO and has_cri and not config.pod_labels:
        return replace(by, why="not needed: the node's container runtime tells names, and no pod-labels are wanted")
    lacks, fix = _lacking(config, facts)
    if chosen is KubernetesApi.ALWAYS:
        used, why = True, "asked, for kubernetes-api is always"
    elif config.pod_labels:
        used, why = True, "asked for pod-labels"
    elif lacks is None or config.environment is Environment.KUBERNETES:
        used, why = True, "asked, for there is no CRI socket"
    else:
        # Nobody wanted it in so many words, and many pods have no service account: that is no fault.
        used, why = False, lacks
    return replace(by, used=used, why=why, lacks=lacks, fix=fix)


def _lacking(config: Config, facts: Facts) -> tuple[str | None, str | None]:
    """What the API cannot be asked without, and where it comes from."""
    if not facts.service_account:
        return "there is no service account here", SERVICE_ACCOUNT_FIX
    if not config.node_name:
        return "which node this is is not known", NODE_NAME_FIX
    return None, None


def _slurm(config: Config, facts: Facts) -> Candidate:
    used = _asked(config, Environment.SLURM, there=facts.slurm is not None, given=False)
    why = (facts.slurm or "jobs' own environment") if used else _why_not(config, "/etc/slurm, /var/spool/slurmd, …")
    return Candidate("slurm", Kind.SLURM, used, why)
