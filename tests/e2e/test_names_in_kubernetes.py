"""A node of Kubernetes: the driver's pids, the node's sockets and the API, put together.

``otel-gpu once`` knows the API by where the kubelet mounts service accounts, and no setting says otherwise: where the
API is asked too, what ``once`` is made of runs in here, with another root.
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
from otel_gpu.sources.proc.host import pid_namespace_is_initial
from tests.builders import FakeGpus, FakeProcesses, facts, gpu, gpu_read, listed, memory, process_read
from tests.cli import otel_gpu
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
from tests.nvml_stub.world import Listed, World
from tests.proc_tree import ProcTree

GIB = 1 << 30
SHARED = "GPU-5c1f3f6e-1f7c-4f8e-9a3b-0c2d4e6f8a10"
WHOLE = "GPU-6c1f3f6e-1f7c-4f8e-9a3b-0c2d4e6f8a10"
TRAIN, INFER, WAITS = range(3)

in_the_host_s_pids = pytest.mark.skipif(
    pid_namespace_is_initial(Path("/proc")) is False,
    reason="needs the host's pid namespace: in another the agent rightly says that processes are hidden from it",
)


@dataclass(frozen=True)
class Servers:
    """A node's own."""

    runtime: Runtime
    kubelet: Kubelet


@pytest.fixture
def servers() -> Iterator[Servers]:
    """Those of a node where two pods share a GPU in four parts, and a third has one."""
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
    """The environment of an agent there; the third pod has no process."""
    proc = ProcTree(tmp_path / "proc")
    proc.set_own_pids()
    world = World()
    shared, whole = (world.gpu(uuid, name="NVIDIA A100-SXM4-80GB") for uuid in (SHARED, WHOLE))
    for each in (shared, whole):
        each.typical()
        each.energy_steps(0, 600_000_000, 100)
        each.memory(0, total_bytes=80 * GIB, reserved_bytes=GIB, used_bytes=0)
    shared.memory(0, total_bytes=80 * GIB, reserved_bytes=GIB, used_bytes=2 * GIB)
    shared.compute(0, [Listed(4000 + number, GIB) for number in (TRAIN, INFER)])
    for number in (TRAIN, INFER):
        cgroup = f"0::/kubepods/burstable/pod{pod_uid(number)}/{container_id(number)}\n"
        proc.add(4000 + number, comm=b"python3", cgroup=cgroup, start_ticks=100)
    return {
        "LD_LIBRARY_PATH": str(build()),
        "NVML_STUB_WORLD": str(world.write(tmp_path / "world.txt")),
        "HOST_PROC": str(proc.root),
        "OTEL_GPU_ENVIRONMENT": "kubernetes",
        "OTEL_GPU_KUBERNETES_API": "never",
        "OTEL_GPU_CRI_SOCKET": str(servers.runtime.path),
        "OTEL_GPU_POD_RESOURCES_SOCKET": str(servers.kubelet.path),
    }


def once(environment: Mapping[str, str], form: str) -> str:
    result = otel_gpu("once", "--format", form, environment=environment)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout


@in_the_host_s_pids
def test_pods_are_named_and_have_what_the_kubelet_gave_them(node: Mapping[str, str]) -> None:
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


@in_the_host_s_pids
def test_parts_of_a_time_sliced_gpu_are_told_to_prometheus(node: Mapping[str, str]) -> None:
    lines = [line for line in once(node, "prometheus").splitlines() if line.startswith("gpu_workload_allocation{")]
    shares = {
        next(f"pod-{number}" for number in range(3) if f'k8s_pod_name="pod-{number}"' in line): float(line.split()[-1])
        for line in lines
    }
    assert shares == {"pod-0": 0.25, "pod-1": 0.5, "pod-2": 1.0}


# ---------------------------------------------------------------------------- with the API


class Node:
    """An engine with the sources that settings lead to under a root of its own. ``pids`` are on the shared GPU."""

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
        """What comes out five seconds later."""
        self._clock.advance(5.0)
        return self._engine.sample()

    def until(self, condition: Callable[[Report], bool]) -> Report:
        """Go on until it is so."""
        deadline_s = time.monotonic() + 20.0
        while not condition(answer := self.cycle()):
            assert time.monotonic() < deadline_s, answer.workloads
            time.sleep(0.02)
        return answer

    def close(self) -> None:
        """Ask nobody any more."""
        self._engine.close()


def have(answer: Report, uuid: str) -> dict[str, tuple[float | None, bool]]:
    """Who has a GPU now, by id: how much of it, and whether that is only possible."""
    return {
        workload.ref.id: (part.allocation, part.possible)
        for workload in answer.workloads
        for part in workload.gpus
        if part.gpu_uuid == uuid and (part.active or part.possible)
    }


def last_names(answer: Report) -> dict[str, WorkloadNames | None]:
    """The names that everybody who is told of has now."""
    told = sorted((each for each in answer.workloads if not each.awaiting_names), key=lambda each: each.naming)
    return {each.ref.id: each.names for each in told}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[KubernetesApi]:
    """The API, and its service account where the kubelet mounts it."""
    account = tmp_path / SERVICE_ACCOUNT
    account.mkdir(parents=True)
    served = KubernetesApi(account)
    served.put(
        *(
            api_pod(
                f"pod-{number}",
                # As the runtime spells it: whoever answers first spells it for good, and here any of them may.
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


def test_the_runtime_the_kubelet_and_the_api_together_tell_names_gpus_and_labels(
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
        # On a machine that is busy somebody may be told of before everybody has answered; these are his last names.
        answer = node.until(lambda answer: last_names(answer) == names)
    finally:
        node.close()
    assert {source.name for source in answer.sources} == {"nvml", "procfs", "cri", "kubernetes", "pod-resources"}
    assert have(answer, SHARED) == {container_id(0): (0.25, False), container_id(1): (0.5, False)}
    assert have(answer, WHOLE) == {container_id(2): (1.0, False)}


def test_without_the_runtime_s_socket_the_api_tells_whose_gpus_are_whose(
    tmp_path: Path, servers: Servers, api: KubernetesApi
) -> None:
    flags = {"environment": "auto", "pod-resources-socket": str(servers.kubelet.path)}
    node = Node(tmp_path, in_cluster(api), flags)
    try:
        assert {source.name for source in node.sources} == {"kubernetes", "pod-resources"}
        answer = node.until(lambda answer: bool(have(answer, WHOLE)))
    finally:
        node.close()
    assert have(answer, WHOLE) == {container_id(2): (1.0, False)}
    assert {workload.names.pod for workload in answer.workloads if workload.names} == {"pod-0", "pod-1", "pod-2"}


def test_what_was_given_moves_to_the_container_that_takes_the_place_of_one_that_ended(
    tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cri, "EXPECTED_S", 0.05)
    monkeypatch.setattr(cri, "EXITED_S", 0.05)
    runtime = servers.runtime
    node = Node(tmp_path, {}, {**on_node(servers), "kubernetes-api": "never"})
    try:
        node.until(lambda answer: have(answer, WHOLE) == {container_id(2): (1.0, False)})
        runtime.containers[2] = container(2, pod="pod-2", name="main", state=EXITED)
        node.until(lambda answer: have(answer, WHOLE) == {})
        runtime.containers.append(container(3, pod="pod-2", name="main"))
        answer = node.until(lambda answer: have(answer, WHOLE) == {container_id(3): (1.0, False)})
    finally:
        node.close()
    [workload] = (each for each in answer.workloads if each.ref.id == container_id(3))
    assert workload.names is not None
    assert (workload.names.pod, [part.state for part in workload.gpus]) == ("pod-2", [GpuState.ALLOCATED])


def test_of_a_pod_and_its_successor_nobody_is_said_to_have_both_gpus(tmp_path: Path, servers: Servers) -> None:
    servers.kubelet.pods = [
        pod("pod-2", given("main", devices("nvidia.com/gpu", uuid))) for uuid in (f"{SHARED}::0", WHOLE)
    ]
    node = Node(tmp_path, {}, {**on_node(servers), "kubernetes-api": "never"})
    try:
        answer = node.until(lambda answer: bool(have(answer, WHOLE)))
    finally:
        node.close()
    assert have(answer, WHOLE) == have(answer, SHARED) == {container_id(2): (None, True)}
    [kubelet] = (source for source in answer.sources if source.name == "pod-resources")
    assert (kubelet.state, kubelet.reason) == (
        SourceState.DEGRADED,
        "'team-a/pod-2/main' is listed twice with different devices; its current devices are unknown",
    )
