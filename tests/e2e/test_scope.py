"""Two pods on one GPU, and agents that speak of one of them: on an NVML library, and in a simulated pid namespace."""

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
from otel_gpu.compat.exporters import EXPORTERS
from otel_gpu.compat.fields import devices
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
from tests.cli import otel_gpu
from tests.nvml_stub.build import build
from tests.nvml_stub.world import Listed, World
from tests.proc_tree import UVM, ProcTree
from tests.real.programs import free_addresses
from tests.unit.metrics.builders import collected
from tests.web import ask

GIB = 1 << 30
GPU = "GPU-5c1f3f6e-1f7c-4f8e-9a3b-0c2d4e6f8a10"
UIDS = ("11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555")
CONTAINERS = ("a" * 64, "b" * 64)
OF_GPUS = tuple(prometheus_name(metric) for metric in METRICS if not metric.of_pod)
UNKNOWN_HERE = {"otel_gpu.cpu.time", "otel_gpu.memory.usage"}
GPUS_AS_OTHERS = {
    f"{exporter.prefix}{family.name}"
    for exporter in EXPORTERS.values()
    for family in exporter.families
    if family.subjects is devices
    or (exporter.name == "dcgm-exporter" and family.name not in {"FB_USED", "TOTAL_ENERGY_CONSUMPTION"})
}
POD_AS_OTHERS = {
    "container_gpu_memory_bytes", "my_gpu_process_energy_joules", "gpu_idle_process_memory_used_bytes",
    "container_gpu_memory_usage", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_FB_USED",
}  # fmt: skip
KEYS = {
    "gpus": {"index", "uuid", "name", "mig", "memory", "energy", "power_w", "utilization", "temperature_c"},
    "workloads": {"kind", "id", "name", "namespace", "pod", "pod_uid", "container", "image", "gpus"},
    "processes": {
        "pid", "start_time", "name", "workload", "gpu", "memory", "utilization", "energy_mj", "state", "idle_seconds",
    },
    "sources": {"name", "ok", "reason"},
}  # fmt: skip

not_in_a_pod = pytest.mark.skipif(
    (found := parse_cgroup(Path("/proc/self/cgroup").read_text(encoding="utf-8"))) is not None
    and found.pod_uid is not None,
    reason="runs in a pod, which is its own",
)

# ---------------------------------------------------------------------------- on an NVML library


@pytest.fixture
def node(tmp_path: Path) -> dict[str, str]:
    """A GPU that two pods hold 2 and 3 GiB of, an agent in the first, and 5 GiB that nothing explains."""
    proc = ProcTree(tmp_path / "proc")
    proc.set_own_pids()
    world = World()
    gpu = world.gpu(GPU, name="NVIDIA A100-SXM4-80GB")
    gpu.typical()
    gpu.energy_steps(0, 600_000_000, 100)
    gpu.memory(0, total_bytes=80 * GIB, reserved_bytes=GIB, used_bytes=10 * GIB)
    gpu.compute(0, [Listed(4000, 2 * GIB), Listed(4001, 3 * GIB)])
    for number, (uid, container) in enumerate(zip(UIDS, CONTAINERS, strict=True)):
        cgroup = f"0::/kubepods/burstable/pod{uid}/{container}\n"
        proc.add(4000 + number, comm=b"python3", cgroup=cgroup, start_ticks=100, fds=["/dev/nvidia0", UVM])
    return {
        "LD_LIBRARY_PATH": str(build()),
        "NVML_STUB_WORLD": str(world.write(tmp_path / "world.txt")),
        "HOST_PROC": str(proc.root),
        "OTEL_GPU_ENVIRONMENT": "host",
        "OTEL_GPU_SCOPE": "pod",
        "POD_UID": UIDS[0],
    }


def once(environment: Mapping[str, str], form: str) -> str:
    result = otel_gpu("once", "--format", form, environment=environment)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout


def blocks(exposition: str) -> set[str]:
    return {line.partition("{")[0].partition(" ")[0] for line in exposition.splitlines() if line and line[0] != "#"}


@not_in_a_pod
def test_the_json_tells_of_the_agents_own_pod_and_of_gpus_by_name_only(node: Mapping[str, str]) -> None:
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
def test_prometheus_and_otlp_are_told_of_the_agents_own_pod_and_nothing_of_gpus(node: Mapping[str, str]) -> None:
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
def test_the_table_names_the_pod_and_shows_nobody_else(node: Mapping[str, str]) -> None:
    table = once(node, "table")
    assert f"pod {UIDS[0]}" in table.splitlines()[0]
    assert (CONTAINERS[0][:12] in table, CONTAINERS[1][:12] in table) == (True, False)
    assert "TEMP" not in table


@not_in_a_pod
def test_everything_that_is_served_is_of_the_agents_own_pod(node: Mapping[str, str], tmp_path: Path) -> None:
    others = free_addresses(len(EXPORTERS))
    compat = ",".join(f"{name}:{other.port}" for name, other in zip(EXPORTERS, others, strict=True))
    arguments = ("run", "--interval", "1s", "--exporters", "prometheus", "--listen", "127.0.0.1:0", "--compat", compat)
    with agent_process(*arguments, directory=tmp_path, environment=node) as agent:
        agent.until(lambda: CONTAINERS[0] in agent.get("/metrics").body)
        agent.until(lambda: "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{" in ask(others[-1], "/metrics").body)
        served = [agent.get(path).body for path in ("/metrics", "/api/attribution", "/")]
        stood_in_for = [ask(other, "/metrics").body for other in others]
    assert not blocks(served[0]).intersection(OF_GPUS)
    for text in (*served, *stood_in_for):
        assert CONTAINERS[1][:12] not in text
        assert not re.search(r"\b4001\b", text)
    as_others = set[str]().union(*map(blocks, stood_in_for))
    assert not as_others & GPUS_AS_OTHERS
    assert as_others >= POD_AS_OTHERS


@not_in_a_pod
@pytest.mark.parametrize("command", [("run", "--listen", "127.0.0.1:0"), ("once",), ("doctor",)])
def test_an_agent_that_cannot_tell_its_pod_says_so_in_one_line(
    node: Mapping[str, str], command: tuple[str, ...]
) -> None:
    result = otel_gpu(*command, environment={**node, "POD_UID": ""})
    assert (result.returncode, result.stdout) == (2, "")
    assert re.fullmatch(r"otel-gpu: scope is 'pod'.* set POD_UID .*\n", result.stderr)


@not_in_a_pod
def test_of_a_pod_that_is_on_no_gpu_nothing_is_told_and_that_is_no_failure(node: Mapping[str, str]) -> None:
    document = json.loads(once({**node, "POD_UID": UIDS[0].replace("1", "7")}, "json"))
    assert (document["gpus"], document["workloads"], document["processes"]) == ([], [], [])
    assert {source["name"] for source in document["sources"]} == {"nvml", "procfs"}


@not_in_a_pod
def test_doctor_reports_the_pod_and_its_processes(node: Mapping[str, str]) -> None:
    result = otel_gpu("doctor", environment=node)
    assert f"pod: {UIDS[0]} (from POD_UID)" in result.stdout
    assert "1 process of the pod seen on GPUs" in result.stdout
    assert "Traceback" not in result.stderr


# ---------------------------------------------------------------------------- in a pid namespace of the pod


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
    """A driver from 570.86 on, as those in a pid namespace see it: lists and rows of their own processes."""

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
    """``/proc`` of a pod whose containers share their pids."""

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
    """What one agent per pod and one of the node told at the end, and what the GPU drew meanwhile, in millijoules."""

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
        told = [engine.sample() for engine in (node, *sidecars)]
        clock.advance(5)
    told = [engine.sample() for engine in (node, *sidecars)]
    truth = host.truth().gpus[0]
    return Played(tuple(told[1:]), told[0], drawn_mj + truth.total_mj, truth.used_bytes)


@pytest.fixture(scope="module")
def played() -> Played:
    return play(SHARED)


def energy_mj(answer: Report, number: int) -> int:
    """All that was given to a pod."""
    parts = [part for w in answer.workloads if w.ref.pod_uid == UIDS[number] for part in w.gpus]
    return sum(part.totals.energy.total_mj or 0 for part in parts if part.totals is not None)


def test_each_agent_tells_otlp_of_its_own_pod_and_of_itself(played: Played) -> None:
    resources = Resources(shared={"host.name": "node"}, agent={"service.name": "otel-gpu"})
    for number, answer in enumerate(played.sidecars):
        told = {
            {pair.key: pair.value.string_value for pair in each.resource.attributes}.get("gpu.workload.id", "agent"): {
                metric.name for scope in each.scope_metrics for metric in scope.metrics
            }
            for each in encode(collected(answer), resources).resource_metrics
        }
        assert set(told) == {CONTAINERS[number], "agent"}
        assert told["agent"] == {m.name for m in METRICS if m.level is Level.AGENT and m.of_pod} - UNKNOWN_HERE
        assert all(BY_NAME[name].of_pod for names in told.values() for name in names)


def test_energy_of_one_agent_per_pod_never_sums_to_more_than_the_gpu_drew(played: Played) -> None:
    given = [energy_mj(answer, number) for number, answer in enumerate(played.sidecars)]
    assert 0 < sum(given) <= played.drawn_mj
    for number, energy in enumerate(given):
        assert 0 < energy <= energy_mj(played.node, number)  # no more than by who sees everybody


def test_a_pod_is_not_given_memory_that_only_points_to_it(played: Played) -> None:
    measured = 0
    for answer in played.sidecars:
        parts = [part for workload in answer.workloads for part in workload.gpus]
        assert {(part.inferred_bytes, part.confidence) for part in parts} == {(None, None)}
        measured += sum(part.measured_bytes or 0 for part in parts)
        names = {family.metric.name for family in collected(answer).blocks}
        assert "gpu.workload.memory.confidence" not in names
    assert 0 < measured <= played.used_bytes
    [inferred] = [p.inferred_bytes for w in played.node.workloads if w.ref.pod_uid == UIDS[0] for p in w.gpus]
    assert inferred  # whoever sees everybody infers it


def test_a_pod_alone_on_a_gpu_is_given_all_that_the_gpu_draws() -> None:
    alone = play(replace(SHARED, processes=SHARED.processes[:1]), pods=1)
    given = energy_mj(alone.sidecars[0], 0)
    assert given == pytest.approx(alone.drawn_mj, rel=0.01)
    assert given <= alone.drawn_mj + 1000  # the counter steps


def test_a_neighbour_who_works_in_bursts_costs_the_pod_nothing() -> None:
    bursts = worker(1, 200, GpuUse(0, Steady(20.0 * GIB), Bursty(0.9, duty=0.3, period_s=10.0, seed=3), Steady(300.0)))
    told = play(replace(SHARED, processes=(SHARED.processes[0], bursts)))
    given = [energy_mj(answer, number) for number, answer in enumerate(told.sidecars)]
    assert 0 < sum(given) <= told.drawn_mj
    assert given[0] <= energy_mj(told.node, 0)


def test_a_neighbour_who_only_holds_memory_bears_his_part_of_standing_power() -> None:
    busy = worker(0, 100, GpuUse(0, Steady(8.0 * GIB), Steady(1.0), Steady(200.0)))
    holds = worker(1, 200, GpuUse(0, Steady(20.0 * GIB)))
    told = play(replace(SHARED, processes=(busy, holds)))
    given = [energy_mj(answer, number) for number, answer in enumerate(told.sidecars)]
    assert given[1] == 0
    assert 0.5 * energy_mj(told.node, 0) < given[0] <= energy_mj(told.node, 0)
