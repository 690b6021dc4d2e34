"""Names and grants from a real Docker engine: after every event the source agrees with the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import docker
import pytest

from otel_gpu.clock import SystemClock
from otel_gpu.model import SourceState, WorkloadKind, WorkloadRef
from otel_gpu.sources.base import Claim, WorkloadInfo
from otel_gpu.sources.names.docker import DockerSource
from otel_gpu.sources.proc.cgroup import parse_cgroup
from tests.real.docker_engine import DockerEngine, device_node, docker_engine, until

pytestmark = pytest.mark.real

UUID = "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"


@pytest.fixture
def source(engine: DockerEngine) -> Iterator[DockerSource]:
    """A source that has listed the running containers."""
    with closing(opened(engine)) as docker_source:
        yield docker_source


def opened(engine: DockerEngine) -> DockerSource:
    docker_source = DockerSource("docker", engine.base_url, labels=["team", "note"], clock=SystemClock())
    assert docker_source.wait(30)
    return docker_source


def ref(key: str) -> WorkloadRef:
    return WorkloadRef(WorkloadKind.CONTAINER, key, runtime="docker")


def agrees(source: DockerSource, document: dict[str, Any]) -> bool:
    """Whether the source has the engine's name, image, state and start of a container."""
    known = source.read({}).known.get(document["Id"])
    started = datetime.fromisoformat(document["State"]["StartedAt"])
    return known is not None and (
        known.names.container == document["Name"].removeprefix("/")
        and known.names.image == document["Config"]["Image"]
        and known.running is document["State"]["Running"]
        and known.since_s == started.timestamp()
    )


def looked_up(source: DockerSource, key: str) -> WorkloadInfo:
    until(lambda: not source.read({ref(key): (1,)}).pending)
    return source.read({}).known[key]


def test_a_container_is_followed_from_its_start_through_rename_stop_and_restart(
    engine: DockerEngine, source: DockerSource
) -> None:
    key = engine.run("first")
    until(lambda: agrees(source, engine.inspect(key)))
    assert source.read({}).known[key].names.container == "first"
    engine.client.rename(key, "second")
    until(lambda: agrees(source, engine.inspect(key)))
    assert source.read({}).known[key].names.container == "second"
    engine.client.kill(key, signal="SIGCONT")  # a signal that does not end it
    engine.client.stop(key, timeout=0)
    until(lambda: agrees(source, engine.inspect(key)))
    assert not source.read({}).known[key].running
    engine.client.start(key)
    until(lambda: agrees(source, engine.inspect(key)))
    engine.client.restart(key, timeout=0)
    until(lambda: agrees(source, engine.inspect(key)))
    assert source.read({}).known[key].running
    engine.remove(key)
    until(lambda: not source.read({}).known[key].running)
    assert source.read({}).state is SourceState.OK


def test_a_process_gets_the_name_of_the_container_in_its_cgroup(engine: DockerEngine, source: DockerSource) -> None:
    key = engine.run("by-cgroup")
    try:
        pid = engine.inspect(key)["State"]["Pid"]
        workload = parse_cgroup(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8"))
        assert workload is not None
        assert workload.id == key
        until(lambda: workload.id in source.read({workload: (pid,)}).known)
        assert source.read({workload: (pid,)}).known[workload.id].names.container == "by-cgroup"
    finally:
        engine.remove(key)


def test_labels_have_any_text_and_are_cut(engine: DockerEngine, source: DockerSource) -> None:
    note = 'a "quoted"\nline, <b>bold</b>, 🦙'
    key = engine.run("labelled", labels={"team": "x" * 10_240, "note": note, "other": "not asked for"})
    until(lambda: key in source.read({}).known)
    read = source.read({})
    extra = dict(read.known[key].names.extra)
    assert extra.keys() == {"container.label.team", "container.label.note"}
    assert extra["container.label.note"] == note
    assert extra["container.label.team"] == "x" * 125 + "…"
    assert read.state is SourceState.DEGRADED
    assert read.reason is not None
    assert "label team has 10,240 bytes" in read.reason
    engine.remove(key)


def test_a_device_node_is_a_grant(engine: DockerEngine, source: DockerSource) -> None:
    node = device_node(engine.directory, "nvidia0")
    key = engine.run("with-device", host={"devices": [f"{node}:/dev/nvidia0:rw"]})
    until(lambda: key in source.read({}).known)
    assert source.read({}).known[key].claims == (Claim("nvidia0"),)
    engine.remove(key)


def test_a_privileged_container_could_use_every_gpu(engine: DockerEngine, source: DockerSource) -> None:
    key = engine.create("privileged", host={"privileged": True})
    assert looked_up(source, key).claims == (Claim("all", possible=True),)
    engine.remove(key)


def test_nvidias_runtime_with_its_variable_is_a_grant(engine: DockerEngine, source: DockerSource) -> None:
    visible = {"NVIDIA_VISIBLE_DEVICES": f"0,{UUID}"}
    under, without = (
        engine.run("under", host={"runtime": "nvidia"}, environment=visible),
        engine.run("without", environment=visible),
    )
    until(lambda: {under, without} <= source.read({}).known.keys())
    known = source.read({}).known
    assert known[under].claims == (Claim("0"), Claim(UUID))
    assert known[without].claims == ()
    engine.remove(under)
    engine.remove(without)


@pytest.mark.parametrize(
    ("request_", "devices"),
    [
        ({"Count": -1, "Capabilities": [["gpu"]]}, ["all"]),
        ({"Count": 1, "Capabilities": [["nvidia"]]}, ["0"]),
        ({"Count": 2, "Capabilities": [["gpu"]]}, ["0", "1"]),
        ({"DeviceIDs": ["1", UUID], "Capabilities": [["tpu"], ["gpu", "nvidia"]]}, ["1", UUID]),
        ({"Driver": "nvidia", "DeviceIDs": ["0:1"], "Capabilities": [["gpu"]]}, ["0:1"]),
    ],
)
def test_a_device_request_grants_what_the_engine_passes_to_nvidias_hook(
    request_: dict[str, Any], devices: list[str], engine: DockerEngine, source: DockerSource
) -> None:
    """Also under NVIDIA's runtime, and with another value of the image's variable."""
    host = {"runtime": "nvidia", "device_requests": [docker.types.DeviceRequest(**request_)]}
    key = engine.run("requested", host=host, environment={"NVIDIA_VISIBLE_DEVICES": "7"})
    try:
        until(lambda: key in source.read({}).known)
        assert engine.visible_devices(key) == devices
        assert source.read({}).known[key].claims == tuple(Claim(device) for device in devices)
    finally:
        engine.remove(key)


@pytest.mark.parametrize(
    ("names", "devices"),
    [(["nvidia.com/gpu=0", "nvidia.com/gpu=1:0"], ["0", "1:0"]), (["nvidia.com/gpu=all"], ["all"])],
)
def test_a_request_for_cdi_devices_is_a_grant(
    names: list[str], devices: list[str], engine: DockerEngine, source: DockerSource
) -> None:
    """This engine is too old to start it, so the test looks up a created container."""
    request = docker.types.DeviceRequest(Driver="cdi", DeviceIDs=names)
    key = engine.create("cdi", host={"device_requests": [request]})
    try:
        known = looked_up(source, key)
        assert known.claims == tuple(Claim(device) for device in devices)
        assert not known.running
    finally:
        engine.remove(key)


def test_an_event_is_known_at_once(engine: DockerEngine, source: DockerSource) -> None:
    """Much earlier than the next list, which is minutes away; the bound allows for a busy machine."""

    def seen_after_s(key: str, action: str, seen: Callable[[WorkloadInfo], bool]) -> float:
        until(lambda: key in source.read({}).known and seen(source.read({}).known[key]))
        seen_s = time.time()
        return seen_s - engine.happened_s(key, action)

    key = engine.run("quiet")
    try:
        assert seen_after_s(key, "start", lambda known: known.running) < 3.0
        for name in ("renamed", "again"):
            engine.client.rename(key, name)
            assert seen_after_s(key, "rename", lambda known, name=name: known.names.container == name) < 3.0  # type: ignore[misc]
        engine.client.kill(key)
        assert seen_after_s(key, "die", lambda known: not known.running) < 3.0
    finally:
        engine.remove(key)


def test_every_one_of_two_hundred_short_containers_gets_its_name(engine: DockerEngine, source: DockerSource) -> None:
    """Every second container runs and is known by its event. The others are only created, and looked up."""
    stays = engine.run("stays")

    def comes_and_goes(number: int) -> str:
        name = f"job-{number}"
        if number % 2:
            key = engine.create(name)
            known = looked_up(source, key)
        else:
            key = engine.run(name)
            until(lambda: key in source.read({}).known)
            known = source.read({}).known[key]
        engine.remove(key)
        return str(known.names.container)

    with ThreadPoolExecutor(8) as executor:
        assert list(executor.map(comes_and_goes, range(200))) == [f"job-{number}" for number in range(200)]
    until(lambda: [key for key, known in source.read({}).known.items() if known.running] == [stays])
    assert source.read({}).state is SourceState.OK
    engine.remove(stays)


def test_the_source_continues_after_the_engine_is_killed_and_started() -> None:
    with docker_engine() as engine, closing(opened(engine)) as source:
        kept = engine.run("kept", host={"restart_policy": {"Name": "always"}})
        lost = engine.run("lost")
        until(lambda: {kept, lost} <= source.read({}).known.keys())
        since_s = source.read({}).known[kept].since_s
        assert since_s is not None
        until(lambda: time.time() > since_s + 3)  # the list has uptimes in whole seconds
        engine.kill()
        until(lambda: source.read({}).state is SourceState.UNAVAILABLE)
        assert source.read({}).known[kept].names.container == "kept"
        # Without live-restore the engine stops running containers at its start, and restarts those with a policy.
        engine.start()
        until(lambda: source.read({}).state is SourceState.OK)
        until(lambda: engine.inspect(kept)["State"]["Running"] and agrees(source, engine.inspect(kept)))
        until(lambda: agrees(source, engine.inspect(lost)))
        assert source.read({}).known[kept].since_s != since_s
        assert not source.read({}).known[lost].running
        new = engine.run("new")
        until(lambda: agrees(source, engine.inspect(new)))
