"""Names and grants from a real Podman, by its service with Docker's API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from otel_gpu.clock import SystemClock
from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import Claim
from otel_gpu.sources.names.docker import DockerSource
from otel_gpu.sources.names.docker.containers import parse_time
from otel_gpu.sources.proc.cgroup import parse_cgroup
from tests.real.docker_engine import device_node, until
from tests.real.podman_engine import IMAGE, PodmanEngine, podman_engine

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def engine() -> Iterator[PodmanEngine]:
    """A service that the tests of this file share."""
    with podman_engine() as started:
        yield started


@pytest.fixture
def source(engine: PodmanEngine) -> Iterator[DockerSource]:
    """A source that has listed the running containers."""
    docker_source = DockerSource("podman", engine.base_url, labels=["team"], runtime="podman", clock=SystemClock())
    with closing(docker_source):
        assert docker_source.wait(30)
        yield docker_source


def agrees(engine: PodmanEngine, source: DockerSource, key: str) -> bool:
    """Whether the source has the engine's name, state and start of a container."""
    document, known = engine.inspect(key), source.read({}).known.get(key)
    return known is not None and (
        known.names.container == document["Name"].removeprefix("/")
        and known.running is document["State"]["Running"]
        and known.since_s == parse_time(document["State"]["StartedAt"])
    )


def test_a_container_is_followed_from_its_start_through_rename_stop_and_restart(
    engine: PodmanEngine, source: DockerSource
) -> None:
    key = engine.run("first", "--label=team=nlp", "--label=other=x")
    until(lambda: agrees(engine, source, key))
    names = source.read({}).known[key].names
    assert (names.container, names.image, names.runtime) == ("first", IMAGE, "podman")
    assert names.extra == (("container.label.team", "nlp"),)
    engine.podman("rename", "first", "second")
    until(lambda: agrees(engine, source, key))
    assert source.read({}).known[key].names.container == "second"
    engine.podman("stop", "--time=0", "second")
    until(lambda: not source.read({}).known[key].running)
    engine.podman("start", "second")
    until(lambda: agrees(engine, source, key))
    engine.podman("restart", "--time=0", "second")
    until(lambda: agrees(engine, source, key))
    assert source.read({}).known[key].running
    engine.podman("rm", "--force", "--time=0", "second")
    until(lambda: not source.read({}).known[key].running)
    assert source.read({}).state is SourceState.OK


def test_a_container_that_ends_by_itself_no_longer_runs(engine: PodmanEngine, source: DockerSource) -> None:
    key = engine.podman("run", "--detach", "--network=none", "--name=short", IMAGE, "/bin/busybox", "sleep", "1")
    until(lambda: key in source.read({}).known)
    until(lambda: not source.read({}).known[key].running)
    engine.podman("rm", "short")


def test_a_process_gets_the_name_of_the_container_in_its_cgroup(engine: PodmanEngine, source: DockerSource) -> None:
    key = engine.run("by-cgroup")
    pid = engine.inspect(key)["State"]["Pid"]
    workload = parse_cgroup(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8"))
    assert workload is not None
    assert (workload.id, workload.runtime) == (key, "podman")
    until(lambda: key in source.read({workload: (pid,)}).known)
    assert source.read({workload: (pid,)}).known[key].names.container == "by-cgroup"
    engine.podman("rm", "--force", "--time=0", "by-cgroup")


def test_devices_and_privileges_are_grants(engine: PodmanEngine, source: DockerSource) -> None:
    node = device_node(engine.directory, "nvidia0")
    given = engine.run("given", f"--device={node}:/dev/nvidia0")
    trusted = engine.podman("create", "--network=none", "--name=trusted", "--privileged", IMAGE, "/bin/busybox")
    asked = {WorkloadRef(WorkloadKind.CONTAINER, trusted, runtime="podman"): (1,)}
    until(lambda: {given, trusted} <= source.read(asked).known.keys())
    assert source.read({}).known[given].claims == (Claim("nvidia0"),)
    assert source.read({}).known[trusted].claims == (Claim("all", possible=True),)
    engine.podman("rm", "--force", "--time=0", "given", "trusted")


def test_the_source_continues_after_a_restart_of_the_service(engine: PodmanEngine, source: DockerSource) -> None:
    key = engine.run("runs-on")
    until(lambda: agrees(engine, source, key))
    engine.stop()
    until(lambda: source.read({}).state is SourceState.UNAVAILABLE)
    assert source.read({}).known[key].running
    engine.podman("rename", "runs-on", "renamed")
    engine.start()
    until(lambda: source.read({}).state is SourceState.OK)
    assert source.read({}).known[key].names.container == "renamed"
    engine.podman("rm", "--force", "--time=0", "renamed")
    until(lambda: not source.read({}).known[key].running)
