"""A user's own Podman: rootless, as an unprivileged user, with containers that claim what is not theirs.

On a host with systemd the containers of a user are in a cgroup below the user's slice, which root creates. Here the
tests create these cgroups.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from otel_gpu.clock import SystemClock
from otel_gpu.model import SourceState, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import NameRead
from otel_gpu.sources.names.docker import DockerSource
from otel_gpu.sources.names.resolver import NameResolver, Resolution
from otel_gpu.sources.proc.cgroup import parse_cgroup
from tests.builders import gpu
from tests.cli import otel_gpu
from tests.docker_api import DockerApi, serving_docker
from tests.nvml_stub.world import World
from tests.real.docker_engine import device_node, docker_engine, until
from tests.real.podman_engine import PodmanEngine, podman_engine

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes cgroups, runs containers"),
]

UID = 60_000 + os.getpid() % 5_000
"""A user of this process's tests only."""
BILLING = (
    "--label=io.kubernetes.pod.namespace=billing",
    "--label=io.kubernetes.pod.name=invoices-0",
    "--label=io.kubernetes.pod.uid=0c3e1f7a-8f4e-4a53-b9e2-5d6f1c2b3a49",
    "--label=io.kubernetes.container.name=main",
)
GIB = 1 << 30


@pytest.fixture(scope="module")
def root_podman() -> Iterator[PodmanEngine]:
    with podman_engine() as started:
        yield started


@pytest.fixture(scope="module")
def user_podman() -> Iterator[PodmanEngine]:
    with podman_engine(UID) as started:
        yield started


@contextmanager
def below_the_slice(uid: int, name: str, pid: int) -> Iterator[None]:
    """Move a process into a cgroup of this name below a user's slice, and back at the end."""
    freezer = Path("/sys/fs/cgroup/freezer")
    top = freezer if freezer.is_dir() else Path("/sys/fs/cgroup")
    own = Path(f"user.slice/user-{uid}.slice/user@{uid}.service/{name}.scope")
    made = [top / each for each in reversed([own, *own.parents][:-1])]
    try:
        for each in made:
            each.mkdir(exist_ok=True)
        (made[-1] / "cgroup.procs").write_text(str(pid), encoding="ascii")
        yield
    finally:
        with suppress(OSError):  # it has ended
            (top / "cgroup.procs").write_text(str(pid), encoding="ascii")
        for each in reversed(made):
            with suppress(OSError):  # of another test
                each.rmdir()


@contextmanager
def names_of(
    url: str, condition: Callable[[NameRead], bool], runtime: str = "podman", uid: int | None = None
) -> Iterator[NameRead]:
    with closing(DockerSource(runtime, url, runtime=runtime, uid=uid, clock=SystemClock())) as source:
        until(lambda: condition(source.read({})))
        yield source.read({})


def pid_of(engine: PodmanEngine, key: str) -> int:
    return int(engine.inspect(key)["State"]["Pid"])


def place_of(pid: int) -> WorkloadRef:
    place = parse_cgroup(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8"))
    assert place is not None
    return place


def resolved(*reads: NameRead, workloads: tuple[WorkloadRef, ...] = ()) -> Resolution:
    return NameResolver().resolve(reads, workloads, [gpu(0)])


def test_a_rootless_podman_names_its_users_containers_and_never_a_pod(user_podman: PodmanEngine) -> None:
    key = user_podman.run("web", "--privileged", *BILLING)
    pid = pid_of(user_podman, key)
    try:
        assert Path(f"/proc/{pid}").stat().st_uid == UID
        with names_of(user_podman.base_url, lambda read: key in read.known) as read:
            assert read.speaker.uid == UID
            resolution = resolved(read)
        assert (resolution.names, resolution.grants) == ({}, ())
        assert f"no process of it is in a cgroup of user {UID}, whose engine this is" in (
            resolution.reads[0].reason or ""
        )
        with below_the_slice(UID, f"libpod-{key}", pid):
            place = place_of(pid)
            assert place == WorkloadRef(WorkloadKind.CONTAINER, key, runtime="podman", user_uid=UID)
            with names_of(user_podman.base_url, lambda read: key in read.known) as read:
                granted = resolved(read)  # by the process that the engine names, without one on a GPU
                using = resolved(read, workloads=(place,))
        for each in (granted, using):
            names = each.names[place.key]
            assert names == WorkloadNames(container="web", image=names.image, runtime="podman")
            assert [(grant.workload.key, grant.possible) for grant in each.grants] == [(place.key, True)]
            assert "its labels name pod 'billing/invoices-0'" in (each.reads[0].reason or "")
    finally:
        user_podman.podman("rm", "--force", "--time=0", "web")


def test_a_rootless_podman_that_claims_roots_container_neither_gets_nor_shadows_its_grant(
    root_podman: PodmanEngine, tmp_path: Path
) -> None:
    """The user's engine answers as it likes: the id, and the process, of root's container."""
    node = device_node(root_podman.directory, "nvidia0")
    key = root_podman.run("victim", f"--device={node}:/dev/nvidia0")
    pid = pid_of(root_podman, key)
    lying = DockerApi()
    lying.containers[key] = {
        **root_podman.inspect(key),
        "Name": "/mallory",
        "State": {"Running": True, "Pid": pid, "StartedAt": "2030-01-01T00:00:00Z"},
        "HostConfig": {"DeviceRequests": [{"Driver": "nvidia", "Count": -1}]},
    }
    try:
        with (
            serving_docker(lying, tmp_path / "s"),
            names_of(root_podman.base_url, lambda read: key in read.known) as root,
            names_of(lying.base_url, lambda read: key in read.known, uid=UID) as user,
        ):
            assert root.speaker.uid is None
            for reads in ((root, user), (user, root)):
                for workloads in ((), (place_of(pid),)):
                    resolution = resolved(*reads, workloads=workloads)
                    assert {names.container for names in resolution.names.values()} == {"victim"}
                    assert [grant.workload.id for grant in resolution.grants] == [key]
                    [refused] = [each for each in resolution.reads if each.speaker.uid == UID]
                    assert refused.state is SourceState.DEGRADED
    finally:
        root_podman.podman("rm", "--force", "--time=0", "victim")


def test_a_cgroup_that_a_user_names_like_roots_container_is_another_workload(
    root_podman: PodmanEngine, user_podman: PodmanEngine
) -> None:
    key = root_podman.run("victim")
    forged = user_podman.run("forged")
    pid = pid_of(user_podman, forged)
    try:
        with (
            below_the_slice(UID, f"libpod-{key}", pid),
            names_of(root_podman.base_url, lambda read: key in read.known) as root,
        ):
            victim, impostor = place_of(pid_of(root_podman, key)), place_of(pid)
            assert (victim.id, impostor.id) == (key, key)
            names = resolved(root, workloads=(victim, impostor)).names
        assert names[victim.key].container == "victim"
        assert names[impostor.key] == WorkloadNames()
    finally:
        root_podman.podman("rm", "--force", "--time=0", "victim")
        user_podman.podman("rm", "--force", "--time=0", "forged")


@pytest.mark.parametrize("runtime", ["podman", "docker"])
def test_labels_of_a_pod_on_a_plain_container_book_nothing_to_its_namespace(
    runtime: str, root_podman: PodmanEngine, stub_dir: Path, tmp_path: Path
) -> None:
    """The whole agent: a driver that lists the container's process, and the engine's socket."""
    with ExitStack() as stack:
        if runtime == "podman":
            url, key = root_podman.base_url, root_podman.run("plain", *BILLING)
            stack.callback(root_podman.podman, "rm", "--force", "--time=0", "plain")
            pid = pid_of(root_podman, key)
        else:
            engine = stack.enter_context(docker_engine())
            labels = dict(label.removeprefix("--label=").split("=") for label in BILLING)
            url, key = engine.base_url, engine.run("plain", labels=labels)
            pid = engine.inspect(key)["State"]["Pid"]
        world = World()
        world.a100({pid: 2 * GIB})
        environment = world.environment(stub_dir, tmp_path)
        arguments = ("--environment", runtime, f"--{runtime}-host", url)
        found = json.loads(otel_gpu("once", "--format", "json", *arguments, environment=environment).stdout)
        doctor = otel_gpu("doctor", *arguments, environment=environment).stdout
    [workload] = [each for each in found["workloads"] if each["id"] == key]
    assert (workload["name"], workload["container"]) == ("plain", "plain")
    assert (workload["namespace"], workload["pod"], workload["pod_uid"]) == (None, None, None)
    said = (
        f"container {key[:12]}: its labels name pod 'billing/invoices-0', but its cgroup is no pod's; they are ignored"
    )
    assert said in doctor
