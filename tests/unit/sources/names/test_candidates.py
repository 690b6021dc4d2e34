from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_gpu.config import Config, load
from otel_gpu.sources.names import candidates
from otel_gpu.sources.names.candidates import Presence, look
from tests.fake_root import FakeRoot, fake_root

UID = 1000
IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
ACCOUNT = "var/run/secrets/kubernetes.io/serviceaccount"


@pytest.fixture
def host() -> Iterator[FakeRoot]:
    with fake_root() as root:
        yield root


def settings(**flags: str) -> Config:
    return load({name.replace("_", "-"): text for name, text in flags.items()}, {}).config


def add_dead_socket(host: FakeRoot, path: str) -> None:
    """Create a socket without a server."""
    (host.root / path).parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(host.root / path))


# ---------------------------------------------------------------------------- facts


def test_presence_is_socket_other_or_missing(host: FakeRoot) -> None:
    (host.root / "file").touch()
    assert look(host.listen("a.sock")).presence is Presence.SOCKET
    assert look(host.root / "file").presence is Presence.OTHER
    assert look(host.add("directory")).presence is Presence.OTHER
    assert look(host.root / "none").presence is Presence.MISSING
    assert look(host.root / "file/below").presence is Presence.MISSING
    assert look(Path("/a\0b")).presence is Presence.MISSING


def test_a_socket_without_write_permission_is_denied(host: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    path = host.listen("a.sock")
    calls = []

    def access(where: Path, mode: int) -> bool:
        calls.append((where, mode))
        return False  # root may write to everything: the kernel's answer to others is given here

    monkeypatch.setattr(os, "access", access)
    assert look(path).presence is Presence.DENIED
    assert calls == [(path, os.W_OK)]


def test_a_directory_without_permission_is_denied(host: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", denied)
    assert look(host.root / "run/podman/podman.sock").presence is Presence.DENIED


# ---------------------------------------------------------------------------- auto


def test_on_a_bare_host_no_candidate_is_used_and_each_has_a_reason(host: FakeRoot) -> None:
    found = host.judge()
    assert list(found) == ["cri", "kubernetes", "docker", "podman", "pod-resources", "slurm"]
    assert not any(each.used for each in found.values())
    assert found["docker"].why == f"not found at unix://{host.root}/var/run/docker.sock"
    where = f"not found at {host.root}/run/containerd/containerd.sock and 5 other places (docs/names.md)"
    assert found["cri"].why == where
    where = f"not found at {host.root}/var/lib/kubelet/pod-resources/kubelet.sock and 2 other places (docs/names.md)"
    assert found["pod-resources"].why == where
    assert "KUBERNETES_SERVICE_HOST" in found["kubernetes"].why


def test_docker_and_slurm_on_one_host_are_both_used(host: FakeRoot) -> None:
    path = host.listen("var/run/docker.sock")
    host.add("sys/fs/cgroup/system.slice/node1_slurmstepd.scope")
    assert host.used() == ["docker", "slurm"]
    docker = host.judge()["docker"]
    assert docker.url == f"unix://{path}"
    assert docker.socket is not None
    assert docker.socket.path == path


@pytest.mark.parametrize(
    "sign", ["etc/slurm", "var/spool/slurmd", "sys/fs/cgroup/memory/slurm_node1", "sys/fs/cgroup/slurm"]
)
def test_slurm_is_found_by_its_files_or_cgroups(host: FakeRoot, sign: str) -> None:
    host.add(sign)
    assert host.used() == ["slurm"]
    assert host.judge()["slurm"].why == str(host.root / sign)


def test_an_unusable_path_is_used_so_that_its_reason_is_reported(host: FakeRoot) -> None:
    """Docker creates a directory for a mount whose source is missing; the user must know."""
    host.add("var/run/docker.sock")
    docker = host.judge()["docker"]
    assert docker.used
    assert docker.socket is not None
    assert docker.socket.presence is Presence.OTHER


def test_a_docker_socket_that_is_podmans_is_used_once(host: FakeRoot) -> None:
    podman = host.listen("run/podman/podman.sock")
    (host.root / "var/run").mkdir(parents=True)
    (host.root / "var/run/docker.sock").symlink_to(podman)
    assert host.used() == ["podman"]
    assert "is Podman's" in host.judge()["docker"].why
    assert host.used(settings(environment="docker")) == ["docker"]


def test_each_reachable_podman_of_a_user_is_a_source(host: FakeRoot) -> None:
    host.listen("run/podman/podman.sock")
    own = host.listen(f"run/user/{UID}/podman/podman.sock")
    host.listen("run/user/1001/podman/podman.sock")
    host.add("run/user/1002")
    found = host.judge(XDG_RUNTIME_DIR=str(own.parents[1]))
    used = {name: each.uid for name, each in found.items() if each.used}
    assert used == {"podman": None, "podman-1000": 1000, "podman-1001": 1001}


def test_podman_of_the_agents_user_is_in_its_runtime_directory(host: FakeRoot) -> None:
    own = host.listen("x/podman/podman.sock")
    assert host.used(XDG_RUNTIME_DIR=str(own.parents[1])) == ["podman-user"]
    assert host.used(XDG_RUNTIME_DIR="relative") == []


def test_the_number_of_users_is_bounded(host: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "MAX_USERS", 2)
    for uid in range(3):
        host.listen(f"run/user/{uid}/podman/podman.sock")
    assert host.used() == ["podman-0", "podman-1"]
    assert host.judge()["podman-2"].why == "over the limit of 2 users"


# ---------------------------------------------------------------------------- Kubernetes


def test_containerd_beside_docker_is_not_used(host: FakeRoot) -> None:
    host.listen("var/run/docker.sock")
    host.listen("run/containerd/containerd.sock")
    assert host.used() == ["docker"]
    assert "not of a Kubernetes node" in host.judge()["cri"].why


@pytest.mark.parametrize(
    "sign",
    [
        "var/lib/kubelet",
        "var/lib/k0s/kubelet",
        "var/snap/microk8s/common/var/lib/kubelet",
        "sys/fs/cgroup/kubepods.slice",
        "sys/fs/cgroup/memory/kubepods",
    ],
)
def test_containerd_of_a_kubernetes_node_is_used(host: FakeRoot, sign: str) -> None:
    host.listen("run/containerd/containerd.sock")
    host.add(sign)
    assert host.used() == ["cri"]


def test_in_a_pod_the_mounted_socket_is_used(host: FakeRoot) -> None:
    host.listen("run/containerd/containerd.sock")
    assert host.used(KUBERNETES_SERVICE_HOST="10.0.0.1") == ["cri"]


@pytest.mark.parametrize(
    "path",
    [
        "run/k3s/containerd/containerd.sock",
        "run/k0s/containerd.sock",
        "var/snap/microk8s/common/run/containerd.sock",
        "run/crio/crio.sock",
        "run/cri-dockerd.sock",
    ],
)
def test_a_runtime_that_only_kubernetes_uses_is_used_on_any_host(host: FakeRoot, path: str) -> None:
    where = host.listen(path)
    found = host.judge()["cri"]
    assert found.used
    assert found.socket is not None
    assert found.socket.path == where


@pytest.mark.parametrize("path", ["run/k3s/containerd/containerd.sock", "run/cri-dockerd.sock"])
def test_a_runtime_that_only_kubernetes_uses_precedes_containerd(host: FakeRoot, path: str) -> None:
    host.listen("run/containerd/containerd.sock")
    host.add("var/lib/kubelet")
    assert host.judge()["cri"].why == str(host.root / "run/containerd/containerd.sock")
    first = host.listen(path)
    assert host.judge()["cri"].why == str(first)


@pytest.mark.parametrize("what", ["directory", "file", "dead socket", "denied socket"])
def test_an_unusable_socket_does_not_hide_a_usable_one(
    host: FakeRoot, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    host.add("var/lib/kubelet")
    path = host.listen("run/containerd/containerd.sock")
    match what:
        case "directory":
            host.add("run/crio/crio.sock")
        case "file":
            (host.add("run/crio") / "crio.sock").touch()
        case "dead socket":
            add_dead_socket(host, "run/crio/crio.sock")
        case _:
            denied = host.listen("run/crio/crio.sock")
            monkeypatch.setattr(os, "access", lambda where, _mode: where != denied)
    assert host.judge()["cri"].why == str(path)


def test_unusable_sockets_are_ordered_denied_dead_other(host: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one needs a permission, the second one a server; the third one cannot work."""
    host.add("run/k3s/containerd/containerd.sock")
    assert host.judge()["cri"].why == str(host.root / "run/k3s/containerd/containerd.sock")
    for path in ("run/k0s/containerd.sock", "run/crio/crio.sock"):
        add_dead_socket(host, path)
    assert host.judge()["cri"].why == str(host.root / "run/k0s/containerd.sock")
    monkeypatch.setattr(os, "access", lambda where, _mode: where.name != "crio.sock")
    assert host.judge()["cri"].why == str(host.root / "run/crio/crio.sock")


def test_sockets_are_probed_only_if_there_are_several(host: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[Path] = []

    def is_dead(path: Path) -> bool:
        probed.append(path)
        return False

    monkeypatch.setattr(candidates, "_is_dead", is_dead)
    first = host.listen("run/crio/crio.sock")
    host.used()
    assert probed == []
    second = host.listen("run/containerd/containerd.sock")
    host.used()
    assert probed == [first, second]


def test_a_runtime_with_a_full_queue_is_not_dead(host: FakeRoot) -> None:
    path = host.root / "full.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(path))
        listener.listen(0)
        waiting.connect(str(path))
        assert not candidates._is_dead(path)
    assert candidates._is_dead(path)


def test_a_configured_containerd_is_used_on_any_host(host: FakeRoot) -> None:
    path = host.listen("run/containerd/containerd.sock")
    assert host.used(settings(cri_socket=str(path))) == ["cri"]


@pytest.mark.parametrize(
    "kubelet", ["var/lib/kubelet", "var/lib/k0s/kubelet", "var/snap/microk8s/common/var/lib/kubelet"]
)
def test_pod_resources_is_found_in_each_kubelet_directory(host: FakeRoot, kubelet: str) -> None:
    path = host.listen(f"{kubelet}/pod-resources/kubelet.sock")
    assert host.used() == ["pod-resources"]
    assert host.judge()["pod-resources"].why == str(path)


def test_an_empty_kubelet_directory_does_not_hide_another(host: FakeRoot) -> None:
    """k0s creates /var/lib/kubelet too, for device plugins."""
    host.add("var/lib/kubelet/pod-resources")
    path = host.listen("var/lib/k0s/kubelet/pod-resources/kubelet.sock")
    assert host.judge()["pod-resources"].why == str(path)


@pytest.mark.parametrize(
    ("flags", "cri", "in_cluster", "used"),
    [
        ({}, False, True, True),
        ({}, True, True, False),
        ({"pod_labels": "app"}, True, True, True),
        ({}, False, False, False),
        ({"pod_labels": "app"}, False, False, False),
        ({"kubernetes_api": "never"}, False, True, False),
        ({"kubernetes_api": "always"}, True, False, True),
        ({"kubernetes_api": "always", "environment": "docker"}, False, True, False),
        ({"environment": "kubernetes"}, False, True, True),
    ],
)
def test_the_api_is_used_if_the_node_does_not_suffice(
    host: FakeRoot, flags: dict[str, str], cri: bool, in_cluster: bool, used: bool
) -> None:
    if cri:
        host.listen("run/crio/crio.sock")
    (host.add(ACCOUNT) / "token").touch()
    found = host.judge(settings(node_name="n", **flags), **(IN_CLUSTER if in_cluster else {}))["kubernetes"]
    assert found.used is used


@pytest.mark.parametrize("account", [False, True])
@pytest.mark.parametrize(
    ("flags", "used"),
    [
        ({}, False),
        ({"kubernetes_api": "always"}, True),
        ({"pod_labels": "app"}, True),
        ({"environment": "kubernetes"}, True),
    ],
)
def test_an_unusable_api_is_used_only_if_it_was_requested(
    host: FakeRoot, flags: dict[str, str], used: bool, account: bool
) -> None:
    """It needs an account and the node's name."""
    lacks, fix = "there is no service account", candidates.SERVICE_ACCOUNT_FIX
    if account:
        (host.add(ACCOUNT) / "token").touch()
        lacks, fix = "the node name is unknown", candidates.NODE_NAME_FIX
    found = host.judge(settings(**flags), **IN_CLUSTER)["kubernetes"]
    assert (found.used, found.lacks, found.fix) == (used, lacks, fix)
    assert (found.why == lacks) is not used


def test_a_node_with_a_runtime_needs_no_service_account(host: FakeRoot) -> None:
    host.listen("run/crio/crio.sock")
    found = host.judge(settings(environment="kubernetes"), **IN_CLUSTER)["kubernetes"]
    assert (found.used, found.lacks) == (False, None)
    assert found.why.startswith("not needed")


# ---------------------------------------------------------------------------- a named environment


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("docker", ["docker"]),
        ("podman", ["podman"]),
        ("kubernetes", ["cri", "pod-resources"]),
        ("slurm", ["slurm"]),
        ("host", []),
    ],
)
def test_a_chosen_environment_is_used_alone_even_if_it_is_missing(host: FakeRoot, name: str, used: list[str]) -> None:
    assert host.used(settings(environment=name)) == used
    for path in ("var/run/docker.sock", "run/podman/podman.sock", "run/crio/crio.sock"):
        host.listen(path)
    assert host.used(settings(environment=name)) == used


def test_podman_of_a_user_suffices_for_environment_podman(host: FakeRoot) -> None:
    host.listen("run/user/1000/podman/podman.sock")
    assert host.used(settings(environment="podman")) == ["podman-1000"]


def test_a_configured_engine_is_used_in_auto_even_if_it_is_missing(host: FakeRoot) -> None:
    assert host.used(settings(docker_host="tcp://10.0.0.1:2375")) == ["docker"]
    assert host.used(settings(podman_host=f"unix://{host.root}/none.sock")) == ["podman"]
