"""``otel-gpu once`` on a node of Kubernetes: the driver's pids, the node's sockets and the API, put together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.sources.hostfacts import pid_namespace_is_initial
from tests.cli import otel_gpu
from tests.kubelet_servers import (
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
from tests.nvml_stub.build import build
from tests.nvml_stub.world import Listed, World
from tests.procfs_tree import ProcTree

GIB = 1 << 30
SHARED = "GPU-5c1f3f6e-1f7c-4f8e-9a3b-0c2d4e6f8a10"
WHOLE = "GPU-6c1f3f6e-1f7c-4f8e-9a3b-0c2d4e6f8a10"
TRAIN, INFER, WAITS = range(3)

pytestmark = pytest.mark.skipif(
    pid_namespace_is_initial(Path("/proc")) is False,
    reason="needs the host's pid namespace: in another the agent rightly says that processes are hidden from it",
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of an agent on a node: two pods share a GPU in four parts, a third has one and no process."""
    proc = ProcTree(tmp_path / "proc")
    proc.set_own_pids()
    world = World()
    shared, whole = (world.gpu(uuid, name="NVIDIA A100-SXM4-80GB") for uuid in (SHARED, WHOLE))
    for gpu in (shared, whole):
        gpu.typical()
        gpu.energy_steps(0, 600_000_000, 100)
        gpu.memory(0, total_bytes=80 * GIB, reserved_bytes=GIB, used_bytes=0)
    shared.memory(0, total_bytes=80 * GIB, reserved_bytes=GIB, used_bytes=2 * GIB)
    shared.compute(0, [Listed(4000 + number, GIB) for number in (TRAIN, INFER)])
    for number in (TRAIN, INFER):
        cgroup = f"0::/kubepods/burstable/pod{pod_uid(number)}/{container_id(number)}\n"
        proc.add(4000 + number, comm=b"python3", cgroup=cgroup, start_ticks=100)
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
            yield {
                "LD_LIBRARY_PATH": str(build()),
                "NVML_STUB_WORLD": str(world.write(tmp_path / "world.txt")),
                "HOST_PROC": str(proc.root),
                "OTEL_GPU_ENVIRONMENT": "kubernetes",
                "OTEL_GPU_KUBERNETES_API": "never",
                "OTEL_GPU_CRI_SOCKET": str(runtime.path),
                "OTEL_GPU_POD_RESOURCES_SOCKET": str(kubelet.path),
            }
        finally:
            runtime.stop()
            kubelet.stop()


def once(environment: Mapping[str, str], form: str) -> str:
    result = otel_gpu("once", "--format", form, environment=environment)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout


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


def test_parts_of_a_time_sliced_gpu_are_told_to_prometheus(node: Mapping[str, str]) -> None:
    lines = [line for line in once(node, "prometheus").splitlines() if line.startswith("gpu_workload_allocation{")]
    shares = {
        next(f"pod-{number}" for number in range(3) if f'k8s_pod_name="pod-{number}"' in line): float(line.split()[-1])
        for line in lines
    }
    assert shares == {"pod-0": 0.25, "pod-1": 0.5, "pod-2": 1.0}
