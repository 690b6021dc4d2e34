"""Names and grants of a real Docker engine in the agent's metrics."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.bounded_io import printable
from tests.agent_process import AgentProcess, agent_process
from tests.nvml_stub.build import build
from tests.nvml_stub.world import World
from tests.real.docker_engine import DockerEngine, device_node

pytestmark = pytest.mark.real

GIB = 1 << 30
INTERVAL_S = 1.0
UUID = "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"
HOSTILE = "<img src=x onerror=alert(1)> \"quoted\" \\ 'single'\ntwo lines 🚀"
SAMPLE = re.compile(r'([a-z_]+)\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\} (\S+)')
LABEL = re.compile(r'([a-z0-9_]+)="((?:[^"\\]|\\.)*)"')


def pid_of(engine: DockerEngine, key: str) -> int:
    pid: int = engine.inspect(key)["State"]["Pid"]
    return pid


def nvml(directory: Path, *pids: int) -> dict[str, str]:
    """The environment of an agent whose driver lists these pids with 1 GiB each."""
    world = World()
    world.a100(dict.fromkeys(pids, GIB), uuid=UUID)
    return world.environment(build(), directory)


def agent(engine: DockerEngine, directory: Path, *pids: int) -> Any:
    flags = ["--interval", f"{INTERVAL_S:g}s", "--listen", "127.0.0.1:0", "--exporters", "prometheus"]
    flags += ["--environment", "docker", "--docker-host", engine.base_url, "--container-labels", "team,note"]
    return agent_process("run", *flags, directory=directory, environment=nvml(directory, *pids))


def series(running: AgentProcess, name: str) -> list[tuple[dict[str, str], float]]:
    """Labels and value of each series of a metric."""
    found = []
    for metric, labels, value in SAMPLE.findall(running.get("/metrics").body):
        if metric == name:
            found.append(({key: _unescaped(text) for key, text in LABEL.findall(labels)}, float(value)))
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], text)


def names(running: AgentProcess, name: str, least: float = 0.5) -> set[str]:
    """The names of containers for which a metric is at least ``least``."""
    return {labels["container_name"] for labels, value in series(running, name) if value >= least}


def cycles_until(running: AgentProcess, happens: Callable[[], bool]) -> float:
    """Wait for a condition; returns the number of cycles it took."""
    started_s = time.monotonic()
    running.until(happens)
    return (time.monotonic() - started_s) / INTERVAL_S


def test_metrics_have_the_engines_names_after_a_rename(engine: DockerEngine, tmp_path: Path) -> None:
    keys = [engine.run(name, labels={"team": name, "secret": "x"}) for name in ("web", "job")]
    with agent(engine, tmp_path, *(pid_of(engine, key) for key in keys)) as running:
        memory = "gpu_workload_memory_usage_bytes"
        running.until(lambda: names(running, memory) == {"web", "job"})
        for labels, _ in series(running, memory):
            assert labels["container_id"] in keys
            assert labels["gpu_workload_name"] == labels["container_name"] == labels["container_label_team"]
            assert (labels["container_image_name"], labels["container_runtime_name"]) == ("bb:latest", "docker")
            assert "container_label_secret" not in labels
        engine.client.rename(keys[0], "api")
        # The event, the next cycle, and the time of this test's own requests.
        assert cycles_until(running, lambda: names(running, memory) == {"api", "job"}) < 4
        energy = {
            labels["container_name"]: value
            for labels, value in series(running, "gpu_workload_energy_joules_total")
            if labels["gpu_attribution_method"] == "estimated"
        }
        assert set(energy) == {"web", "api", "job"}  # the old name remains for the retention
        documents = json.loads(running.get("/api/attribution").body)
        assert sorted(workload["name"] for workload in documents["workloads"]) == ["api", "job"]
        assert {source["name"]: source["ok"] for source in documents["sources"]}["docker"]
    for key in keys:
        engine.remove(key)


def test_a_container_with_a_gpu_and_no_process_is_allocated_until_it_ends(engine: DockerEngine, tmp_path: Path) -> None:
    node = device_node(engine.directory, "nvidia0")
    given = engine.run(
        "given", host={"devices": [f"{node}:/dev/nvidia0:rwm"]}, labels={"note": HOSTILE, "team": "y" * 10_240}
    )
    env = {"NVIDIA_VISIBLE_DEVICES": UUID}
    runtime = engine.run("by-runtime", host={"runtime": "nvidia"}, environment=env)
    engine.run("without-runtime", environment=env)
    with agent(engine, tmp_path) as running:
        running.until(lambda: names(running, "gpu_workload_access") == {"given", "by-runtime"})
        assert {labels["container_name"]: value for labels, value in series(running, "gpu_workload_allocation")} == {
            "given": 0.5,
            "by-runtime": 0.5,
        }
        running.until(
            lambda: (
                {
                    labels["container_name"]
                    for labels, value in series(running, "gpu_workload_time_seconds_total")
                    if labels["gpu_state"] == "allocated" and value > 0
                }
                == {"given", "by-runtime"}
            )
        )
        note = next(
            labels["container_label_note"]
            for labels, _ in series(running, "gpu_workload_access")
            if labels["container_name"] == "given"
        )
        assert note == printable(HOSTILE)  # a line break would reach a terminal
        states = {
            labels["otel_gpu_state"]: value
            for labels, value in series(running, "otel_gpu_source_state")
            if labels["otel_gpu_source"] == "docker"
        }
        assert states == {"ok": 0, "degraded": 1, "unavailable": 0, "paused": 0}  # a label was cut
        errors = {labels["otel_gpu_source"]: value for labels, value in series(running, "otel_gpu_source_errors_total")}
        assert errors["docker"] == 1
        engine.client.stop(given, timeout=0)
        assert cycles_until(running, lambda: names(running, "gpu_workload_access") == {"by-runtime"}) < 4
        allocation = {labels["container_name"]: value for labels, value in series(running, "gpu_workload_allocation")}
        assert allocation == {"given": 0, "by-runtime": 1}
        assert "<img" not in running.get("/").body
    assert engine.inspect(runtime)["HostConfig"]["Runtime"] == "nvidia"


def test_names_persist_while_the_engine_is_unavailable(engine: DockerEngine, tmp_path: Path) -> None:
    for one in engine.client.containers(all=True):
        engine.remove(one["Id"])
    key = engine.run("steady")
    with agent(engine, tmp_path, pid_of(engine, key)) as running:
        memory = "gpu_workload_memory_usage_bytes"
        running.until(lambda: names(running, memory) == {"steady"})
        engine.kill()

        def docker_is() -> set[str]:
            return {
                labels["otel_gpu_state"]
                for labels, value in series(running, "otel_gpu_source_state")
                if labels["otel_gpu_source"] == "docker" and value == 1
            }

        running.until(lambda: docker_is() == {"unavailable"})
        assert names(running, memory) <= {"steady"}
        engine.start()
        running.until(lambda: docker_is() == {"ok"})
        # The engine stops containers that ran without it; a container that it starts now is known at once.
        assert engine.inspect(key)["Name"] == "/steady"
        second = engine.run("second", host={"devices": [f"{engine.directory}/nvidia0:/dev/nvidia0:rwm"]})
        running.until(lambda: "second" in names(running, "gpu_workload_access"))
        assert "Traceback" not in running.stderr
    engine.remove(second)
    engine.remove(key)
