"""Sidecars with ``--scope pod`` of two pods that share a GPU: with an NVML library, and in simulated pid namespaces."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.agent.engine import Engine
from otel_gpu.attribution.options import AttributionOptions, EnergyModel
from otel_gpu.clock import ManualClock
from otel_gpu.compat.families import FAMILIES
from otel_gpu.compat.fields import devices
from otel_gpu.config.compat_exporters import EXPORTERS
from otel_gpu.export.otlp_encoder import encode
from otel_gpu.metrics.catalogue import BY_NAME, METRICS, Level
from otel_gpu.metrics.labels import Resources
from otel_gpu.metrics.names import prometheus_name
from otel_gpu.model import GpuIdentity, GpuReading, Pod, Report, WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.base import GpuRead, ProcessRead
from otel_gpu.sources.proc.cgroup import parse_cgroup
from otel_gpu.sources.sim.host import SimulatedHost
from otel_gpu.sources.sim.signals import Bursty, Steady
from otel_gpu.sources.sim.world import GpuSpec, GpuUse, ProcessSpec, Visibility, WorkloadSpec, WorldSpec
from tests.agent_process import agent_process
from tests.cli import once, otel_gpu
from tests.nvml_stub.build import build
from tests.nvml_stub.world import World
from tests.proc_tree import UVM, ProcTree
from tests.real.programs import free_addresses
from tests.unit.metrics.builders import collected
from tests.web import ask

GIB = 1 << 30
GPU = "GPU-5c1f3f6e-1f7c-4f8e-9a3b-0c2d4e6f8a10"
UIDS = ("11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555")
CONTAINERS = ("a" * 64, "b" * 64)
OF_GPUS = tuple(prometheus_name(metric) for metric in METRICS if not metric.of_pod)
NOT_MEASURED = {"otel_gpu.cpu.time", "otel_gpu.memory.usage"}
GPU_METRICS_OF_OTHERS = {
    f"{exporter.prefix}{family.name}"
    for exporter in EXPORTERS.values()
    for family in FAMILIES[exporter.name]
    if family.subjects is devices
    or (exporter.name == "dcgm-exporter" and family.name not in {"FB_USED", "TOTAL_ENERGY_CONSUMPTION"})
}
POD_METRICS_OF_OTHERS = {
    "container_gpu_memory_bytes", "my_gpu_process_energy_joules", "gpu_idle_process_memory_used_bytes",
    "container_gpu_memory_usage", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_FB_USED",
}  # fmt: skip
KEYS = {
    "gpus": {"index", "uuid", "name", "mig", "memory", "energy", "power_w", "utilization", "temperature_c"},
    "workloads": {"kind", "id", "name", "namespace", "pod", "pod_uid", "container", "image", "gpus"},
    "processes": {
        "pid", "start_time", "name", "workload", "gpu", "memory", "utilization", "energy_mj", "state", "idle_seconds",
    },
    "sources": {"name", "ok", "reason", "blind"},
}  # fmt: skip

not_in_a_pod = pytest.mark.skipif(
    (found := parse_cgroup(Path("/proc/self/cgroup").read_text(encoding="utf-8"))) is not None
    and found.pod_uid is not None,
    reason="runs in a pod itself",
)

# ---------------------------------------------------------------------------- with an NVML library


@pytest.fixture
def node(tmp_path: Path) -> dict[str, str]:
    """An agent in the first of two pods, which hold 2 and 3 GiB of a GPU, with another 5 GiB in use."""
    proc = ProcTree(tmp_path / "proc")
    proc.set_own_pids()
    world = World()
    world.a100({4000: 2 * GIB, 4001: 3 * GIB}, used_bytes=10 * GIB, uuid=GPU)
    for number, (uid, container) in enumerate(zip(UIDS, CONTAINERS, strict=True)):
        cgroup = f"0::/kubepods/burstable/pod{uid}/{container}\n"
        proc.add(4000 + number, comm=b"python3", cgroup=cgroup, start_ticks=100, fds=["/dev/nvidia0", UVM])
    return {
        **world.environment(build(), tmp_path),
        "HOST_PROC": str(proc.root),
        "OTEL_GPU_ENVIRONMENT": "host",
        "OTEL_GPU_SCOPE": "pod",
        "POD_UID": UIDS[0],
    }


def blocks(exposition: str) -> set[str]:
    return {line.partition("{")[0].partition(" ")[0] for line in exposition.splitlines() if line and line[0] != "#"}


@not_in_a_pod
def test_the_json_has_the_agents_own_pod_and_gpus_without_figures(node: Mapping[str, str]) -> None:
    document: dict[str, Any] = json.loads(once(node, "json"))
    assert {key: set(document[key][0]) for key in document} == KEYS
    [workload], [process], [gpu] = document["workloads"], document["processes"], document["gpus"]
    assert (workload["id"], workload["pod_uid"]) == (CONTAINERS[0], UIDS[0])
    assert workload["gpus"][0]["memory"]["measured"] == process["memory"] == 2 * GIB
    assert process["pid"] == 4000
    assert (gpu["uuid"], gpu["name"], gpu["index"]) == (GPU, "NVIDIA A100-SXM4-80GB", 0)
    figures = [*gpu["memory"].values(), *gpu["energy"].values(), gpu["power_w"], gpu["utilization"]]
    assert set(figures) == {None} == {gpu["temperature_c"]}


@pytest.mark.long
@not_in_a_pod
def test_prometheus_and_otlp_have_the_agents_own_pod_and_no_gpu_metrics(node: Mapping[str, str]) -> None:
    exposition = once(node, "prometheus")
    assert not blocks(exposition).intersection(OF_GPUS)
    assert {"gpu_workload_memory_usage_bytes", "gpu_process_active", "otel_gpu_up"} <= blocks(exposition)
    assert set(re.findall(r'gpu_workload_id="(\w*)"', exposition)) == {CONTAINERS[0]}
    otlp = once(node, "otlp")
    assert CONTAINERS[0] in otlp
    assert CONTAINERS[1] not in otlp
    names = {
        metric["name"]
        for resource in json.loads(otlp)["resourceMetrics"]
        for scope in resource["scopeMetrics"]
        for metric in scope["metrics"]
    }
    assert not names.intersection(metric.name for metric in METRICS if not metric.of_pod)
    assert "gpu.workload.energy" in names


@not_in_a_pod
def test_the_table_names_the_pod_and_shows_no_other(node: Mapping[str, str]) -> None:
    table = once(node, "table")
    assert f"pod {UIDS[0]}" in table.splitlines()[0]
    assert (CONTAINERS[0][:12] in table, CONTAINERS[1][:12] in table) == (True, False)
    assert "TEMP" not in table


@not_in_a_pod
def test_all_endpoints_serve_the_agents_own_pod_only(node: Mapping[str, str], tmp_path: Path) -> None:
    others = free_addresses(len(EXPORTERS))
    compat = ",".join(f"{name}:{other.port}" for name, other in zip(EXPORTERS, others, strict=True))
    arguments = ("run", "--interval", "1s", "--exporters", "prometheus", "--listen", "127.0.0.1:0", "--compat", compat)
    with agent_process(*arguments, directory=tmp_path, environment=node) as agent:
        agent.until(lambda: CONTAINERS[0] in agent.get("/metrics").body)
        agent.until(lambda: "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{" in ask(others[-1], "/metrics").body)
        served = [agent.get(path).body for path in ("/metrics", "/api/attribution", "/")]
        served_as_others = [ask(other, "/metrics").body for other in others]
    assert not blocks(served[0]).intersection(OF_GPUS)
    for text in (*served, *served_as_others):
        assert CONTAINERS[1][:12] not in text
        assert not re.search(r"\b4001\b", text)
    names = set[str]().union(*map(blocks, served_as_others))
    assert not names & GPU_METRICS_OF_OTHERS
    assert names >= POD_METRICS_OF_OTHERS


@not_in_a_pod
@pytest.mark.parametrize("command", [("run", "--listen", "127.0.0.1:0"), ("once",), ("doctor",)])
def test_an_unknown_pod_is_a_usage_error_in_one_line(node: Mapping[str, str], command: tuple[str, ...]) -> None:
    result = otel_gpu(*command, environment={**node, "POD_UID": ""})
    assert (result.returncode, result.stdout) == (2, "")
    assert re.fullmatch(r"otel-gpu: scope is 'pod'.* set POD_UID .*\n", result.stderr)


@not_in_a_pod
def test_a_pod_without_a_gpu_gives_an_empty_document(node: Mapping[str, str]) -> None:
    document = json.loads(once({**node, "POD_UID": UIDS[0].replace("1", "7")}, "json"))
    assert (document["gpus"], document["workloads"], document["processes"]) == ([], [], [])
    assert {source["name"] for source in document["sources"]} == {"nvml", "procfs"}


@not_in_a_pod
def test_doctor_reports_the_pod_and_its_processes(node: Mapping[str, str]) -> None:
    result = otel_gpu("doctor", environment=node)
    assert f"pod: {UIDS[0]} (from POD_UID)" in result.stdout
    assert "1 process of the pod seen on GPUs" in result.stdout
    assert "Traceback" not in result.stderr


# ---------------------------------------------------------------------------- in simulated pid namespaces


def pod_of(number: int) -> WorkloadSpec:
    ref = WorkloadRef(WorkloadKind.CONTAINER, CONTAINERS[number], runtime="containerd", pod_uid=UIDS[number])
    return WorkloadSpec(
        ref, WorkloadNames(container="main", pod=f"pod-{number}", namespace="team", pod_uid=UIDS[number])
    )


def worker(number: int, pid: int, use: GpuUse) -> ProcessSpec:
    return ProcessSpec(pid, "python3", pod_of(number), (use,))


SHARED = WorldSpec(
    seed=7,
    gpus=(
        GpuSpec(
            GpuIdentity(0, GPU, "NVIDIA A100-SXM4-80GB", minor=0),
            80 * GIB,
            GIB,
            static_w=50,
            context_w=15,
            power_limit_w=400,
        ),
    ),
    processes=(
        worker(0, 100, GpuUse(0, Steady(8.0 * GIB), Steady(0.35), Steady(180.0))),
        worker(0, 101, GpuUse(0, Steady(4.0 * GIB), visibility=Visibility.HIDDEN, sampled=False)),
        worker(1, 200, GpuUse(0, Steady(20.0 * GIB), Steady(0.45), Steady(260.0))),
    ),
    wall_start_ns=1_700_000_000_000_000_000,
)
CYCLES = 24


class OwnGpus:
    """A driver from 570.86 on in a pid namespace: it lists processes of that namespace only."""

    name = "nvml"

    def __init__(self, host: SimulatedHost, pids: frozenset[int]) -> None:
        self._gpus = host.gpu_source()
        self._pids = pids

    def read(self) -> GpuRead:
        read = self._gpus.read()
        return replace(read, gpus=tuple(map(self._own, read.gpus)))

    def _own(self, reading: GpuReading) -> GpuReading:
        assert reading.utilization is not None
        rows = tuple(row for row in reading.utilization.rows if row.pid in self._pids)
        listed = tuple(process for process in reading.processes or () if process.pid in self._pids)
        return replace(reading, processes=listed, utilization=replace(reading.utilization, rows=rows))

    def close(self) -> None:
        self._gpus.close()


class OwnProcesses:
    """``/proc`` of a pod whose containers share a pid namespace."""

    name = "procfs"

    def __init__(self, host: SimulatedHost, pids: frozenset[int]) -> None:
        self._processes = host.process_source()
        self._pids = pids

    def read(self, pids: Collection[int], measured: Collection[int] = ()) -> ProcessRead:
        found = self._processes.read(pids).processes
        own = {pid: facts for pid, facts in found.items() if pid in self._pids}
        return ProcessRead(own, pids_complete=False, all_visible=False)


def sidecar(host: SimulatedHost, clock: ManualClock, number: int) -> Engine:
    pids = frozenset(p.pid for p in host.spec.processes if p.workload.ref.pod_uid == UIDS[number])
    return Engine(
        gpus=OwnGpus(host, pids), processes=OwnProcesses(host, pids), clock=clock, pod=Pod(UIDS[number]), options=BY_SM
    )


BY_SM = AttributionOptions(energy_model=EnergyModel.SM)


@dataclass(frozen=True)
class Played:
    """The last reports of a sidecar per pod and of an agent on the node, and the GPU's true energy and memory."""

    sidecars: tuple[Report, ...]
    node: Report
    drawn_mj: float
    used_bytes: int


def play(world: WorldSpec, pods: int = 2) -> Played:
    clock = ManualClock()
    host = SimulatedHost(world, clock)
    node = Engine(gpus=host.gpu_source(), processes=host.process_source(), clock=clock, options=BY_SM)
    sidecars = [sidecar(host, clock, number) for number in range(pods)]
    clock.advance(30)
    drawn_mj = -host.truth().gpus[0].total_mj
    for _ in range(CYCLES):
        reports = [engine.sample() for engine in (node, *sidecars)]
        clock.advance(5)
    reports = [engine.sample() for engine in (node, *sidecars)]
    truth = host.truth().gpus[0]
    return Played(tuple(reports[1:]), reports[0], drawn_mj + truth.total_mj, truth.used_bytes)


@pytest.fixture(scope="module")
def played() -> Played:
    return play(SHARED)


def energy_mj(answer: Report, number: int) -> int:
    """The energy attributed to a pod."""
    parts = [part for w in answer.workloads if w.ref.pod_uid == UIDS[number] for part in w.gpus]
    return sum(part.totals.energy.total_mj or 0 for part in parts if part.totals is not None)


def test_each_sidecar_exports_its_own_pod_and_itself(played: Played) -> None:
    resources = Resources(shared={"host.name": "node"}, agent={"service.name": "otel-gpu"})
    for number, answer in enumerate(played.sidecars):
        exported = {
            {pair.key: pair.value.string_value for pair in each.resource.attributes}.get("gpu.workload.id", "agent"): {
                metric.name for scope in each.scope_metrics for metric in scope.metrics
            }
            for each in encode(collected(answer), resources).resource_metrics
        }
        assert set(exported) == {CONTAINERS[number], "agent"}
        assert exported["agent"] == {m.name for m in METRICS if m.level is Level.AGENT and m.of_pod} - NOT_MEASURED
        assert all(BY_NAME[name].of_pod for names in exported.values() for name in names)


def test_energy_of_all_sidecars_does_not_exceed_the_gpus(played: Played) -> None:
    attributed = [energy_mj(answer, number) for number, answer in enumerate(played.sidecars)]
    assert 0 < sum(attributed) <= played.drawn_mj
    for number, energy in enumerate(attributed):
        assert 0 < energy <= energy_mj(played.node, number)  # the agent on the node sees all processes


def test_a_sidecar_does_not_infer_memory(played: Played) -> None:
    measured = 0
    for answer in played.sidecars:
        parts = [part for workload in answer.workloads for part in workload.gpus]
        assert {(part.inferred_bytes, part.confidence) for part in parts} == {(None, None)}
        measured += sum(part.measured_bytes or 0 for part in parts)
        names = {family.metric.name for family in collected(answer).blocks}
        assert "gpu.workload.memory.confidence" not in names
    assert 0 < measured <= played.used_bytes
    [inferred] = [p.inferred_bytes for w in played.node.workloads if w.ref.pod_uid == UIDS[0] for p in w.gpus]
    assert inferred  # the agent on the node infers it


def test_a_pod_alone_on_a_gpu_gets_all_its_energy() -> None:
    alone = play(replace(SHARED, processes=SHARED.processes[:1]), pods=1)
    attributed = energy_mj(alone.sidecars[0], 0)
    assert attributed == pytest.approx(alone.drawn_mj, rel=0.01)
    assert attributed <= alone.drawn_mj + 1000  # a step of the energy counter


def test_a_bursty_neighbour_adds_no_energy_to_the_pod() -> None:
    bursts = worker(1, 200, GpuUse(0, Steady(20.0 * GIB), Bursty(0.9, duty=0.3, period_s=10.0, seed=3), Steady(300.0)))
    played = play(replace(SHARED, processes=(SHARED.processes[0], bursts)))
    attributed = [energy_mj(answer, number) for number, answer in enumerate(played.sidecars)]
    assert 0 < sum(attributed) <= played.drawn_mj
    assert attributed[0] <= energy_mj(played.node, 0)


def test_an_idle_neighbour_reduces_the_energy_of_the_pod() -> None:
    busy = worker(0, 100, GpuUse(0, Steady(8.0 * GIB), Steady(1.0), Steady(200.0)))
    holds = worker(1, 200, GpuUse(0, Steady(20.0 * GIB)))
    played = play(replace(SHARED, processes=(busy, holds)))
    attributed = [energy_mj(answer, number) for number, answer in enumerate(played.sidecars)]
    assert attributed[1] == 0
    assert 0.5 * energy_mj(played.node, 0) < attributed[0] <= energy_mj(played.node, 0)
