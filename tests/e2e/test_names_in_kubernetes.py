"""Names and grants on a Kubernetes node: the driver's pids, the node's sockets and the API.

The path of the service account is not configurable, so tests with the API run an engine in this process with another
root instead of ``otel-gpu once``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.agent.engine import Engine
from otel_gpu.agent.host import name_options
from otel_gpu.clock import ManualClock, SystemClock
from otel_gpu.config import load
from otel_gpu.model import GpuState, Report, SourceState, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.names import cri
from otel_gpu.sources.names.candidates import SERVICE_ACCOUNT
from otel_gpu.sources.names.factory import NameSourceFactory
from tests.builders import FakeGpus, FakeProcesses, facts, gpu, gpu_read, listed, memory, process_read
from tests.cli import once
from tests.e2e.markers import needs_host_pid_namespace
from tests.kubelet_servers import (
    EXITED,
    Kubelet,
    Runtime,
    container,
    container_id,
    devices,
    given,
    pod,
    pod_uid,
    socket_directory,
)
from tests.kubernetes_api import NODE, KubernetesApi
from tests.kubernetes_api import container as api_container
from tests.kubernetes_api import pod as api_pod
from tests.nvml_stub.build import build
from tests.nvml_stub.world import World
from tests.proc_tree import ProcTree

GIB = 1 << 30
SHARED = "GPU-5c1f3f6e-1f7c-4f8e-9a3b-0c2d4e6f8a10"
WHOLE = "GPU-6c1f3f6e-1f7c-4f8e-9a3b-0c2d4e6f8a10"
TRAIN, INFER, WAITS = range(3)


@dataclass(frozen=True)
class Servers:
    """The servers on a node."""

    runtime: Runtime
    kubelet: Kubelet


@pytest.fixture
def servers() -> Iterator[Servers]:
    """A node with two pods on a GPU that is time-sliced into four, and a third pod with a whole GPU."""
    with socket_directory() as directory:
        runtime = Runtime(
            directory / "cri.sock", [container(number, pod=f"pod-{number}", name="main") for number in range(3)]
        )
        kubelet = Kubelet(directory / "kubelet.sock")
        kubelet.allocatable = [devices("nvidia.com/gpu", *(f"{SHARED}::{number}" for number in range(4)), WHOLE)]
        kubelet.pods = [
            pod("pod-0", given("main", devices("nvidia.com/gpu", f"{SHARED}::0"))),
            pod("pod-1", given("main", devices("nvidia.com/gpu", f"{SHARED}::3", f"{SHARED}::1"))),
            pod("pod-2", given("main", devices("nvidia.com/gpu", WHOLE))),
        ]
        runtime.start()
        kubelet.start()
        try:
            yield Servers(runtime, kubelet)
        finally:
            runtime.stop()
            kubelet.stop()


@pytest.fixture
def node(tmp_path: Path, servers: Servers) -> dict[str, str]:
    """The environment of an agent on that node; the third pod has no process."""
    proc = ProcTree(tmp_path / "proc")
    proc.set_own_pids()
    world = World()
    world.a100({4000 + number: GIB for number in (TRAIN, INFER)}, uuid=SHARED)
    world.a100({}, uuid=WHOLE)
    for number in (TRAIN, INFER):
        cgroup = f"0::/kubepods/burstable/pod{pod_uid(number)}/{container_id(number)}\n"
        proc.add(4000 + number, comm=b"python3", cgroup=cgroup, start_ticks=100)
    return {
        **world.environment(build(), tmp_path),
        "HOST_PROC": str(proc.root),
        "OTEL_GPU_ENVIRONMENT": "kubernetes",
        "OTEL_GPU_KUBERNETES_API": "never",
        "OTEL_GPU_CRI_SOCKET": str(servers.runtime.path),
        "OTEL_GPU_POD_RESOURCES_SOCKET": str(servers.kubelet.path),
    }


@needs_host_pid_namespace
def test_pods_have_their_names_and_the_gpus_that_the_kubelet_granted(node: Mapping[str, str]) -> None:
    document: dict[str, Any] = json.loads(once(node, "json"))
    sources = {source["name"]: (source["ok"], source["reason"]) for source in document["sources"]}
    assert sources == dict.fromkeys(("nvml", "procfs", "cri", "pod-resources"), (True, None))
    found = {
        workload["pod"]: (workload["namespace"], workload["container"], workload["id"], workload["pod_uid"])
        for workload in document["workloads"]
    }
    assert found == {f"pod-{number}": ("team-a", "main", container_id(number), pod_uid(number)) for number in range(3)}
    states = {
        workload["pod"]: [(part["uuid"], part["state"], part["memory"]["measured"]) for part in workload["gpus"]]
        for workload in document["workloads"]
    }
    assert states["pod-2"] == [(WHOLE, "allocated", None)]
    assert states["pod-0"] == [(SHARED, "unknown", GIB)] or states["pod-0"] == [(SHARED, "idle", GIB)]


@needs_host_pid_namespace
def test_shares_of_a_time_sliced_gpu_are_exported(node: Mapping[str, str]) -> None:
    lines = [line for line in once(node, "prometheus").splitlines() if line.startswith("gpu_workload_allocation{")]
    shares = {
        next(f"pod-{number}" for number in range(3) if f'k8s_pod_name="pod-{number}"' in line): float(line.split()[-1])
        for line in lines
    }
    assert shares == {"pod-0": 0.25, "pod-1": 0.5, "pod-2": 1.0}


# ---------------------------------------------------------------------------- with the API


class Node:
    """An engine with the name sources of these settings under ``root``, and ``pids`` processes on the shared GPU."""

    def __init__(self, root: Path, variables: Mapping[str, str], flags: Mapping[str, str], pids: int = 0) -> None:
        flags = {"environment": "kubernetes", "node-name": NODE, **flags}
        options = name_options(load(flags, {}).config)
        self.sources = NameSourceFactory(options, SystemClock(), variables, root).open_new().sources
        on_gpu = [
            facts(4000 + n, WorkloadRef(WorkloadKind.CONTAINER, container_id(n), pod_uid=pod_uid(n)))
            for n in range(pids)
        ]
        readings = (gpu(0, [listed(each.key.pid, GIB) for each in on_gpu], memory=memory()), gpu(1, memory=memory()))
        gpus = [
            replace(reading, identity=replace(reading.identity, uuid=uuid))
            for reading, uuid in zip(readings, (SHARED, WHOLE), strict=True)
        ]
        self._clock = ManualClock()
        self._engine = Engine(
            gpus=FakeGpus(gpu_read(*gpus)),
            processes=FakeProcesses(process_read(*on_gpu)),
            names=self.sources,
            clock=self._clock,
        )

    def cycle(self) -> Report:
        """The report five seconds later."""
        self._clock.advance(5.0)
        return self._engine.sample()

    def until(self, condition: Callable[[Report], bool]) -> Report:
        """Run cycles until the condition holds."""
        deadline_s = time.monotonic() + 20.0
        while not condition(answer := self.cycle()):
            assert time.monotonic() < deadline_s, answer.workloads
            time.sleep(0.02)
        return answer

    def close(self) -> None:
        """Close the sources."""
        self._engine.close()


def allocations(answer: Report, uuid: str) -> dict[str, tuple[float | None, bool]]:
    """Allocations of a GPU by workload id: the share, and whether it is only possible."""
    return {
        workload.ref.id: (part.allocation, part.possible)
        for workload in answer.workloads
        for part in workload.gpus
        if part.gpu_uuid == uuid and (part.active or part.possible)
    }


def last_names(answer: Report) -> dict[str, WorkloadNames | None]:
    """The latest names of every reported workload."""
    reported = sorted((each for each in answer.workloads if not each.awaiting_names), key=lambda each: each.naming)
    return {each.ref.id: each.names for each in reported}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[KubernetesApi]:
    """The API, and a service account at the kubelet's path."""
    account = tmp_path / SERVICE_ACCOUNT
    account.mkdir(parents=True)
    served = KubernetesApi(account)
    served.put(
        *(
            api_pod(
                f"pod-{number}",
                # Spelt as by the runtime, because the first source that answers determines the spelling.
                api_container(container_id(number), image="registry.example/train:1"),
                uid=pod_uid(number),
                namespace="team-a",
                labels={"team": f"of {number}", "secret": "x"},
            )
            for number in range(3)
        )
    )
    yield served
    served.close()


def in_cluster(api: KubernetesApi) -> dict[str, str]:
    return {"KUBERNETES_SERVICE_HOST": api.server.host, "KUBERNETES_SERVICE_PORT": str(api.server.port)}


def on_node(servers: Servers) -> dict[str, str]:
    return {"cri-socket": str(servers.runtime.path), "pod-resources-socket": str(servers.kubelet.path)}


def test_the_runtime_the_kubelet_and_the_api_give_names_gpus_and_labels(
    tmp_path: Path, servers: Servers, api: KubernetesApi
) -> None:
    names = {
        container_id(number): WorkloadNames(
            container="main",
            image="registry.example/train:1",
            pod=f"pod-{number}",
            namespace="team-a",
            pod_uid=pod_uid(number),
            runtime="containerd",
            extra=(("k8s.pod.label.team", f"of {number}"),),
        )
        for number in range(3)
    }
    node = Node(tmp_path, in_cluster(api), {**on_node(servers), "pod-labels": "team"}, pids=2)
    try:
        node.until(lambda answer: all(source.state is SourceState.OK for source in answer.sources))
        # On a busy machine a workload may be reported before all sources have answered; these are its latest names.
        answer = node.until(lambda answer: last_names(answer) == names)
    finally:
        node.close()
    assert {source.name for source in answer.sources} == {"nvml", "procfs", "cri", "kubernetes", "pod-resources"}
    assert allocations(answer, SHARED) == {container_id(0): (0.25, False), container_id(1): (0.5, False)}
    assert allocations(answer, WHOLE) == {container_id(2): (1.0, False)}


def test_without_the_runtimes_socket_the_api_identifies_the_containers_with_gpus(
    tmp_path: Path, servers: Servers, api: KubernetesApi
) -> None:
    flags = {"environment": "auto", "pod-resources-socket": str(servers.kubelet.path)}
    node = Node(tmp_path, in_cluster(api), flags)
    try:
        assert {source.name for source in node.sources} == {"kubernetes", "pod-resources"}
        answer = node.until(lambda answer: bool(allocations(answer, WHOLE)))
    finally:
        node.close()
    assert allocations(answer, WHOLE) == {container_id(2): (1.0, False)}
    assert {workload.names.pod for workload in answer.workloads if workload.names} == {"pod-0", "pod-1", "pod-2"}


def test_a_grant_moves_to_the_successor_of_an_ended_container(
    tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cri, "EXPECTED_S", 0.05)
    monkeypatch.setattr(cri, "EXITED_S", 0.05)
    runtime = servers.runtime
    node = Node(tmp_path, {}, {**on_node(servers), "kubernetes-api": "never"})
    try:
        node.until(lambda answer: allocations(answer, WHOLE) == {container_id(2): (1.0, False)})
        runtime.containers[2] = container(2, pod="pod-2", name="main", state=EXITED)
        node.until(lambda answer: allocations(answer, WHOLE) == {})
        runtime.containers.append(container(3, pod="pod-2", name="main"))
        answer = node.until(lambda answer: allocations(answer, WHOLE) == {container_id(3): (1.0, False)})
    finally:
        node.close()
    [workload] = (each for each in answer.workloads if each.ref.id == container_id(3))
    assert workload.names is not None
    assert (workload.names.pod, [part.state for part in workload.gpus]) == ("pod-2", [GpuState.ALLOCATED])


def test_a_container_listed_twice_possibly_has_both_gpus(tmp_path: Path, servers: Servers) -> None:
    servers.kubelet.pods = [
        pod("pod-2", given("main", devices("nvidia.com/gpu", uuid))) for uuid in (f"{SHARED}::0", WHOLE)
    ]
    node = Node(tmp_path, {}, {**on_node(servers), "kubernetes-api": "never"})
    try:
        answer = node.until(lambda answer: bool(allocations(answer, WHOLE)))
    finally:
        node.close()
    assert allocations(answer, WHOLE) == allocations(answer, SHARED) == {container_id(2): (None, True)}
    [kubelet] = (source for source in answer.sources if source.name == "pod-resources")
    assert (kubelet.state, kubelet.reason) == (
        SourceState.DEGRADED,
        "'team-a/pod-2/main' is listed twice with different devices; its current devices are unknown",
    )
