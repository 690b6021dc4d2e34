"""Other exporters' names on a real Prometheus: the queries of their documentation give what the agent knows itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from otel_gpu.values import Address
from tests.agent_process import AgentProcess, agent_process
from tests.real.parts import free_addresses
from tests.real.prometheus import Prometheus, prometheus, promtool
from tests.web import ask

pytestmark = pytest.mark.real

NAMES = ("gpu-inference", "my-gpu-exporter", "gpu-idle-exporter", "container-gpu-exporter", "dcgm-exporter")
MIB = 1 << 20

NOT_OURS_TO_CHOOSE = {
    'my_gpu_process_energy_joules counter metrics should have "_total" suffix',
    'my_gpu_process_gpu_process_count non-histogram and non-summary metrics should not have "_count" suffix',
    'memory_total non-counter metrics should not have "_total" suffix',
    'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter metrics should have "_total" suffix',
}
CAMEL_CASE = " label names should be written in 'snake_case' not 'camelCase'"  # modelName


@dataclass(frozen=True, slots=True)
class Stage:
    """A demo that stands in for everybody, and a Prometheus that scrapes all of it, and the agent itself."""

    agent: AgentProcess
    addresses: dict[str, Address]
    server: Prometheus

    def by(self, label: str, expression: str) -> dict[str, float]:
        """What an expression gives now, by a label of its series."""
        return {one.labels[label]: one.value for one in self.server.query(expression)}

    def sums(self, label: str, selector: str) -> dict[str, list[float]]:
        """Sums by a label at each scrape, from samples as they were stored, oldest first."""
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
        agent.until(lambda: any(len(told) >= 15 for told in found.sums("gpu", "DCGM_FI_DEV_FB_FREE").values()))
        yield found


@pytest.mark.parametrize("name", NAMES)
def test_promtool_finds_nothing_but_names_that_are_not_ours_to_choose(stage: Stage, name: str) -> None:
    checked = promtool("check", "metrics", stdin=ask(stage.addresses[name], "/metrics").body)
    complaints = set((checked.stdout + checked.stderr).splitlines())
    assert {told for told in complaints if not told.endswith(CAMEL_CASE)} <= NOT_OURS_TO_CHOOSE
    assert all(told.startswith("DCGM_FI_DEV_") for told in complaints if told.endswith(CAMEL_CASE))


def test_prometheus_takes_every_listener_and_names_do_not_meet(stage: Stage) -> None:
    assert set(stage.by("instance", "up").values()) == {1}
    assert len(stage.server.query("up")) == len(NAMES) + 1


# ---------------------------------------------------------------------------- energy


def test_energy_per_pod_is_the_agents_own(stage: Stage) -> None:
    theirs = stage.sums("pod", 'my_gpu_process_energy_joules{pod!=""}')
    ours = stage.sums("k8s_pod_name", 'gpu_process_energy_joules_total{k8s_pod_name!=""}')
    assert set(theirs) >= {pod for pod, told in ours.items() if len(told) > 5}
    for pod, told in theirs.items():
        if len(told) > 5:
            # The same cycles, scraped at other moments: most are seen by both, and then to the millijoule.
            assert len(millis(told) & millis(ours[pod])) >= 3, pod


def test_energy_by_method_is_all_of_it(stage: Stage) -> None:
    assert stage.sums("pid", "my_gpu_process_energy_joules_total").keys() == {
        *stage.sums("pid", "my_gpu_process_energy_joules")
    }
    off = stage.server.query(
        "sum without (energy_estimated) (my_gpu_process_energy_joules_total) - my_gpu_process_energy_joules"
    )
    assert off
    assert max(abs(one.value) for one in off) < 1e-6


def test_time_slicing_sums_are_the_gpus_and_no_more(stage: Stage) -> None:
    """The check of my-gpu-exporter's README, from samples as they were stored: what joins began at zero."""
    gpus = stage.sums("gpu", "my_gpu_process_gpu_energy_joules_total")
    processes = stage.sums("gpu", "my_gpu_process_energy_joules_total")
    assert len(gpus) == 4
    for gpu, told in gpus.items():
        assert told[-2] - told[0] > 0
        assert processes[gpu][-2] - processes[gpu][0] == pytest.approx(told[-2] - told[0], abs=1e-3)
    counts = stage.by("gpu", "my_gpu_process_gpu_process_count > 1")
    assert set(counts) == {"0", "1", "2", "3"}


def test_dcgm_power_and_energy_sum_to_each_gpus(stage: Stage) -> None:
    watts, whole = stage.sums("UUID", "DCGM_FI_DEV_POWER_USAGE"), stage.sums("hw_id", "hw_power_watts")
    for uuid, told in watts.items():
        seen = millis(whole[uuid])
        assert sum(round(value * 1000) in seen for value in told) >= len(told) // 3, uuid
    energies = stage.sums("UUID", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")
    for uuid, joules in stage.sums("hw_id", "hw_energy_joules_total").items():
        assert len({round(value) for value in energies[uuid]} & millis(joules)) >= 3, uuid


def test_dashboards_of_dcgm_have_something_to_show(stage: Stage) -> None:
    """What it is, test_compat_queries_real has; here it is there, for every GPU and every pod of a lively host."""
    assert len(stage.by("gpu", "max by (gpu) (DCGM_FI_DEV_GPU_TEMP)")) == 4
    for family in ("SM_CLOCK", "MEM_CLOCK", "GPU_UTIL", "MEM_COPY_UTIL", "FB_USED", "FB_FREE", "XID_ERRORS"):
        assert stage.server.query(f'DCGM_FI_DEV_{family}{{gpu="0"}}'), family
    there = stage.by("pod", 'sum by (pod) (DCGM_FI_DEV_FB_USED{pod!=""}) > 0')  # who only was given a GPU draws nothing
    assert len(there) >= 5
    for pod in there:
        assert stage.server.query(f'DCGM_FI_DEV_POWER_USAGE{{pod="{pod}"}}'), pod
    assert not stage.server.query('DCGM_FI_DEV_GPU_TEMP{pod="", container=""}')


# ---------------------------------------------------------------------------- memory


def test_dcgms_memory_sums_to_each_gpus(stage: Stage) -> None:
    theirs = stage.by("UUID", "sum by (UUID) (DCGM_FI_DEV_FB_USED) + sum by (UUID) (DCGM_FI_DEV_FB_FREE)")
    ours = stage.by("hw_id", 'sum by (hw_id) (gpu_device_memory_usage_bytes{gpu_memory_state!="reserved"})')
    assert {uuid: round(mib * MIB) for uuid, mib in theirs.items()} == ours


def test_known_and_unknown_memory_are_what_is_used(stage: Stage) -> None:
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
    """Memory by container, where two scrapes at two moments say the same; empty while they do not.

    Who was given a GPU and is not on it holds nothing, of which that exporter says nothing.
    """
    theirs = stage.by("container_id", "sum by (container_id) (container_gpu_memory_bytes)")
    ours = stage.by(
        "container_id",
        'sum by (container_id) (gpu_workload_memory_usage_bytes{container_id!=""}) > 0'
        ' and on (container_id) (max by (container_id) (gpu_workload_access{container_id!=""}) > 0)',
    )
    return theirs if theirs == {id_[:12]: held for id_, held in ours.items()} else {}


# ---------------------------------------------------------------------------- idle


def test_who_is_idle_and_how_much_is_wasted_is_what_the_agent_says(stage: Stage) -> None:
    """The queries of gpu-idle-exporter's README, for less than ten minutes: this demo is too young for them."""

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
    """In thousandths, in which they were counted."""
    return {round(value * 1000) for value in values}
