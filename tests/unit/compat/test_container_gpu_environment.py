"""container-gpu-exporter on a host with Docker and Kubernetes: the configuration file selects the name sources."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_gpu.agent.engine import Engine
from otel_gpu.agent.host import name_options
from otel_gpu.clock import ManualClock, SystemClock
from otel_gpu.config import load
from otel_gpu.model import WorkloadKind, WorkloadRef
from otel_gpu.sources.names.factory import NameSourceFactory, close_all, start_all
from tests.builders import GIB, FakeGpus, FakeProcesses, facts, gpu, gpu_read, listed, memory, process_read
from tests.docker_api import DockerApi, serving_docker
from tests.kubelet_servers import Runtime, container, container_id, socket_directory
from tests.unit.compat.series import values

NAME = "container-gpu-exporter"
PATIENCE_S = 10.0
IN_POD, IN_DOCKER = 1, 2


@dataclass(frozen=True)
class Runtimes:
    """The sockets of a Kubernetes container runtime and of Docker."""

    cri: Path
    docker: str


@pytest.fixture
def runtimes() -> Iterator[Runtimes]:
    """A runtime with a pod's container, and Docker with another container."""
    docker = DockerApi()
    docker.run(IN_DOCKER, "ollama")
    with socket_directory() as directory, serving_docker(docker, directory / "docker.sock"):
        runtime = Runtime(directory / "cri.sock", [container(IN_POD, pod="vllm-0", name="vllm")])
        runtime.start()
        try:
            yield Runtimes(directory / "cri.sock", docker.base_url)
        finally:
            runtime.stop()


def served(runtimes: Runtimes, environment: str, directory: Path) -> dict[str, dict[str, float]]:
    """Values for a process of each runtime, with this environment in the configuration file."""
    file = directory / "agent.yaml"
    file.write_text(
        f"compat: {NAME}\nenvironment: {environment}\ncri-socket: {runtimes.cri}\ndocker-host: {runtimes.docker}\n",
        encoding="utf-8",
    )
    processes = [
        facts(100 * number, WorkloadRef(WorkloadKind.CONTAINER, container_id(number))) for number in (IN_POD, IN_DOCKER)
    ]
    options = name_options(load({"config": str(file)}, {}).config)
    sources, _ = NameSourceFactory(options, SystemClock(), {}, directory).open_all()
    try:
        start_all(sources, {each.workload: [each.key.pid] for each in processes}, SystemClock(), PATIENCE_S)
        clock = ManualClock()
        reading = gpu(0, [listed(each.key.pid, GIB) for each in processes], memory=memory(used_gib=2))
        engine = Engine(
            gpus=FakeGpus(gpu_read(reading)),
            processes=FakeProcesses(process_read(*processes)),
            names=sources,
            clock=clock,
        )
        for _ in range(4):  # a workload without a name is exported once its names are settled
            clock.advance(5.0)
            answer = engine.sample()
    finally:
        close_all(sources)
    return {
        "docker": values(NAME, "docker_gpu_memory_usage", answer, "container"),
        "pods": values(NAME, "pod_gpu_memory_usage", answer, "pod"),
        "containers": values(NAME, "container_gpu_memory_usage", answer, "container_name"),
    }


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            "docker",
            {"docker": {"": GIB, "ollama": GIB}, "pods": {}, "containers": {"": 1024, "ollama": 1024}},
        ),
        (
            "kubernetes",
            {"docker": {"": GIB}, "pods": {"vllm-0": GIB}, "containers": {"": 1024, "vllm": 1024}},
        ),
        (
            "auto",
            {"docker": {"ollama": GIB}, "pods": {"vllm-0": GIB}, "containers": {"ollama": 1024, "vllm": 1024}},
        ),
    ],
)
def test_the_environment_in_the_file_decides_which_names_are_served(
    runtimes: Runtimes, tmp_path: Path, environment: str, expected: dict[str, dict[str, float]]
) -> None:
    assert served(runtimes, environment, tmp_path) == expected
