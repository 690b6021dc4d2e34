"""Series in other exporters' names on a real Prometheus: queries of their documentation give the agent's figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from otel_gpu.config.values import Address
from tests.agent_process import AgentProcess, agent_process
from tests.real.programs import free_addresses
from tests.real.prometheus import Prometheus, prometheus, promtool
from tests.web import ask

pytestmark = pytest.mark.real

NAMES = ("gpu-inference", "my-gpu-exporter", "gpu-idle-exporter", "container-gpu-exporter", "dcgm-exporter")
MIB = 1 << 20

GIVEN_NAMES = {
    'my_gpu_process_energy_joules counter metrics should have "_total" suffix',
    'my_gpu_process_gpu_process_count non-histogram and non-summary metrics should not have "_count" suffix',
    'memory_total non-counter metrics should not have "_total" suffix',
    'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter metrics should have "_total" suffix',
}
CAMEL_CASE = " label names should be written in 'snake_case' not 'camelCase'"  # modelName


@dataclass(frozen=True, slots=True)
class Stage:
    """A demo with all exporters' listeners, and a Prometheus that scrapes them and the agent."""

    agent: AgentProcess
    addresses: dict[str, Address]
    server: Prometheus

    def by(self, label: str, expression: str) -> dict[str, float]:
        """Values of an expression now, by a label."""
        return {one.labels[label]: one.value for one in self.server.query(expression)}

    def sums(self, label: str, selector: str) -> dict[str, list[float]]:
        """Sums by a label at each scrape, from stored samples, oldest first."""
        found: dict[str, Counter[float]] = {}
        for one in self.server.raw(selector):
            for time_s, value in one.samples:
                found.setdefault(one.labels[label], Counter())[time_s] += value  # type: ignore[assignment]
        return {key: [values[time_s] for time_s in sorted(values)] for key, values in found.items()}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("compat")
    addresses = dict(zip(NAMES, free_addresses(len(NAMES)), strict=True))
    compat = ",".join(f"{name}:{address.port}" for name, address in addresses.items())
    targets = directory / "targets.json"
    targets.write_text(json.dumps([{"targets": [str(address) for address in addresses.values()]}]), encoding="utf-8")
    words = ("demo", "--interval", "1s", "--listen", "127.0.0.1:0", "--compat", compat)
    with (
        agent_process(*words, directory=directory) as agent,
        prometheus(
            agent.address, directory=directory / "prometheus", file_sd_configs=[{"files": [str(targets)]}]
        ) as server,
    ):
        found = Stage(agent, addresses, server)
        agent.until(lambda: any(len(values) >= 15 for values in found.sums("gpu", "DCGM_FI_DEV_FB_FREE").values()))
        yield found


@pytest.mark.parametrize("name", NAMES)
def test_promtool_objects_only_to_given_names(stage: Stage, name: str) -> None:
    checked = promtool("check", "metrics", stdin=ask(stage.addresses[name], "/metrics").body)
    complaints = set((checked.stdout + checked.stderr).splitlines())
    assert {line for line in complaints if not line.endswith(CAMEL_CASE)} <= GIVEN_NAMES
    assert all(line.startswith("DCGM_FI_DEV_") for line in complaints if line.endswith(CAMEL_CASE))


def test_prometheus_scrapes_every_listener(stage: Stage) -> None:
    assert set(stage.by("instance", "up").values()) == {1}
    assert len(stage.server.query("up")) == len(NAMES) + 1


# ---------------------------------------------------------------------------- energy


def test_energy_per_pod_is_the_agents_own(stage: Stage) -> None:
    theirs = stage.sums("pod", 'my_gpu_process_energy_joules{pod!=""}')
    ours = stage.sums("k8s_pod_name", 'gpu_process_energy_joules_total{k8s_pod_name!=""}')
    assert set(theirs) >= {pod for pod, values in ours.items() if len(values) > 5}
    for pod, values in theirs.items():
        if len(values) > 5:
            # The same cycles scraped at other times: most are in both, equal to the millijoule.
            assert len(millis(values) & millis(ours[pod])) >= 3, pod


def test_energy_by_method_sums_to_the_energy(stage: Stage) -> None:
    assert stage.sums("pid", "my_gpu_process_energy_joules_total").keys() == {
        *stage.sums("pid", "my_gpu_process_energy_joules")
    }
    off = stage.server.query(
        "sum without (energy_estimated) (my_gpu_process_energy_joules_total) - my_gpu_process_energy_joules"
    )
    assert off
    assert max(abs(one.value) for one in off) < 1e-6


def test_processes_that_share_a_gpu_sum_to_it(stage: Stage) -> None:
    """The check of my-gpu-exporter's README, from stored samples: new series start at zero."""
    gpus = stage.sums("gpu", "my_gpu_process_gpu_energy_joules_total")
    processes = stage.sums("gpu", "my_gpu_process_energy_joules_total")
    assert len(gpus) == 4
    for gpu, values in gpus.items():
        assert values[-2] - values[0] > 0
        assert processes[gpu][-2] - processes[gpu][0] == pytest.approx(values[-2] - values[0], abs=1e-3)
    counts = stage.by("gpu", "my_gpu_process_gpu_process_count > 1")
    assert set(counts) == {"0", "1", "2", "3"}


def test_dcgm_power_and_energy_sum_to_each_gpu(stage: Stage) -> None:
    watts, whole = stage.sums("UUID", "DCGM_FI_DEV_POWER_USAGE"), stage.sums("hw_id", "hw_power_watts")
    for uuid, values in watts.items():
        seen = millis(whole[uuid])
        assert sum(round(value * 1000) in seen for value in values) >= len(values) // 3, uuid
    energies = stage.sums("UUID", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")
    for uuid, joules in stage.sums("hw_id", "hw_energy_joules_total").items():
        assert len({round(value) for value in energies[uuid]} & millis(joules)) >= 3, uuid


def test_dcgm_dashboards_have_data(stage: Stage) -> None:
    """Every GPU and pod of the demo has series; test_compat_queries_real checks their values."""
    assert len(stage.by("gpu", "max by (gpu) (DCGM_FI_DEV_GPU_TEMP)")) == 4
    for family in ("SM_CLOCK", "MEM_CLOCK", "GPU_UTIL", "MEM_COPY_UTIL", "FB_USED", "FB_FREE", "XID_ERRORS"):
        assert stage.server.query(f'DCGM_FI_DEV_{family}{{gpu="0"}}'), family
    with_memory = stage.by("pod", 'sum by (pod) (DCGM_FI_DEV_FB_USED{pod!=""}) > 0')  # others have no power
    assert len(with_memory) >= 5
    for pod in with_memory:
        assert stage.server.query(f'DCGM_FI_DEV_POWER_USAGE{{pod="{pod}"}}'), pod
    assert not stage.server.query('DCGM_FI_DEV_GPU_TEMP{pod="", container=""}')


# ---------------------------------------------------------------------------- memory


def test_dcgm_memory_sums_to_each_gpu(stage: Stage) -> None:
    theirs = stage.by("UUID", "sum by (UUID) (DCGM_FI_DEV_FB_USED) + sum by (UUID) (DCGM_FI_DEV_FB_FREE)")
    ours = stage.by("hw_id", 'sum by (hw_id) (gpu_device_memory_usage_bytes{gpu_memory_state!="reserved"})')
    assert {uuid: round(mib * MIB) for uuid, mib in theirs.items()} == ours


def test_known_and_unknown_memory_sum_to_used_memory(stage: Stage) -> None:
    off = stage.server.query("gpu_memory_known_bytes + gpu_memory_unknown_bytes - gpu_memory_used_bytes")
    assert [one.value for one in off] == [0] * 4
    spare = stage.server.query(
        'gpu_memory_unknown_bytes - on (gpu) sum by (gpu) (container_gpu_memory_bytes{method="inference"})'
    )
    assert spare
    assert all(one.value >= 0 for one in spare)
    active = stage.server.query("gpu_inference_active == on (gpu) (gpu_memory_unknown_bytes > bool 0)")
    assert {one.labels["gpu"] for one in active} == {"0", "1", "2", "3"}
    assert stage.by("gpu", "gpu_inference_active")["3"] == 1  # Ollama's memory is hidden, or a script's


def test_memory_per_container_is_the_agents_own(stage: Stage) -> None:
    stage.agent.until(lambda: bool(agreed(stage)))
    containers = agreed(stage)
    assert len(containers) >= 8
    mib = stage.by("container_name", "sum by (container_name) (container_gpu_memory_usage) > 0")
    names = {one.labels["container_name"] for one in stage.server.query("container_gpu_memory_bytes")}
    assert set(mib) == names


def agreed(stage: Stage) -> dict[str, float]:
    """Memory by container if two scrapes at different times agree, else empty.

    A container with a grant and no process holds no memory and has no series.
    """
    theirs = stage.by("container_id", "sum by (container_id) (container_gpu_memory_bytes)")
    ours = stage.by(
        "container_id",
        'sum by (container_id) (gpu_workload_memory_usage_bytes{container_id!=""}) > 0'
        ' and on (container_id) (max by (container_id) (gpu_workload_access{container_id!=""}) > 0)',
    )
    return theirs if theirs == {id_[:12]: held for id_, held in ours.items()} else {}


# ---------------------------------------------------------------------------- idle


def test_idle_processes_and_wasted_memory_are_the_agents_own(stage: Stage) -> None:
    """The queries of gpu-idle-exporter's README, with seconds instead of ten minutes."""

    def idle(seconds: int) -> tuple[set[str], set[str]]:
        theirs = stage.server.query(f"gpu_idle_process_idle_seconds > {seconds}")
        ours = stage.server.query(f"gpu_process_idle_duration_seconds > {seconds}")
        return {one.labels["pid"] for one in theirs}, {one.labels["process_pid"] for one in ours}

    def same() -> bool:
        theirs, ours = idle(2)
        wasted = stage.by(
            "gpu",
            "sum(gpu_idle_memory_total_bytes) by (gpu) / sum(gpu_idle_device_memory_total_bytes) by (gpu) * 100",
        )
        own = stage.by(
            "gpu_index",
            "sum by (gpu_index) (gpu_device_idle_memory_bytes) / sum by (gpu_index) (hw_gpu_memory_limit_bytes) * 100",
        )
        return bool(theirs) and theirs == ours and wasted == own and max(wasted.values()) > 0

    stage.agent.until(same)
    top = stage.server.query("topk(10, gpu_idle_process_idle_memory_bytes > 0)")
    assert top
    total = stage.server.query("sum(gpu_idle_memory_total_bytes)")[0].value
    assert sum(one.value for one in top) <= total * 1.5


def millis(values: list[float]) -> set[int]:
    """Values as whole thousandths, the unit in which they are counted."""
    return {round(value * 1000) for value in values}
