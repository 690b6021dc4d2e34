"""Common queries for other exporters, on a real Prometheus with the history of a simulated host, give the truth.

The history is 25 minutes long: enough for ten idle minutes, and for a pod to start, end and be dropped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pytest

from bench.accuracy.score import resident_energy_mj
from otel_gpu.model import GpuReading
from otel_gpu.sources.sim.truth import ProcessTruth
from tests.real.backfill import CYCLE_S, SCRAPE_S, CompatHistory, compat_history
from tests.real.compat_world import ALONE, EMPTY, FOR_S, HELD, OPTIONS, SHARED, WORLD

pytestmark = pytest.mark.real

MIB = 1 << 20
PAGE = Path(__file__).parents[2] / "docs" / "compat.md"
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
PODS = {f"{number:064x}": name for number, name in enumerate(("alone", "large", "small", "job"), start=1)}
PODS |= {f"{number:064x}": name for number, name in enumerate(("never", "long-ago", "lately", "light"), start=5)}
ALL_OF_IT = f"[{FOR_S}s]"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompatHistory]:
    directory = tmp_path_factory.mktemp("history") / "prometheus"
    with compat_history(WORLD, for_s=FOR_S, options=OPTIONS, directory=directory) as found:
        yield found


# ---------------------------------------------------------------------------- dcgm-exporter: queries of dashboards

Readings = Mapping[str, GpuReading]


def each(read: Callable[[GpuReading], float | None]) -> Callable[[Readings], dict[str, float]]:
    """A figure of each GPU."""
    return lambda readings: {gpu: read(reading) or 0.0 for gpu, reading in readings.items()}


def one(over: Callable[[list[float]], float], read: Callable[[GpuReading], float | None]) -> Callable[..., object]:
    """One figure over all GPUs."""
    return lambda readings: {"": over([read(reading) or 0.0 for reading in readings.values()])}


def used_mib(reading: GpuReading) -> float:
    assert reading.memory is not None
    return reading.memory.used_bytes / MIB


def all_mib(reading: GpuReading) -> float:
    assert reading.memory is not None
    return (reading.memory.used_bytes + reading.memory.free_bytes) / MIB


def percent(reading: GpuReading) -> float:
    return (reading.gpu_ratio or 0.0) * 100


@dataclass(frozen=True, slots=True)
class Query:
    """A query, the driver's value, and the query to use instead if GPUs are shared."""

    asked: str
    truth: Callable[[Readings], object]
    instead: str = ""


QUERIES = (
    # The panels of NVIDIA's dashboard (12239, grafana/dcgm-exporter-dashboard.json), without their selectors.
    Query("max(DCGM_FI_DEV_GPU_TEMP) by (Hostname, gpu, uuid)", each(lambda reading: reading.temperature_c)),
    Query(
        "avg(DCGM_FI_DEV_GPU_TEMP)",
        one(fmean, lambda reading: reading.temperature_c),
        "avg(max(DCGM_FI_DEV_GPU_TEMP) by (Hostname, gpu))",
    ),
    Query(
        "max(DCGM_FI_DEV_POWER_USAGE) by (Hostname, gpu, uuid)",
        each(lambda reading: reading.power_w),
        "sum(DCGM_FI_DEV_POWER_USAGE) by (Hostname, gpu, uuid)",
    ),
    Query(
        "sum(max(DCGM_FI_DEV_POWER_USAGE) by (gpu))",
        one(sum, lambda reading: reading.power_w),
        "sum(DCGM_FI_DEV_POWER_USAGE)",
    ),
    Query(
        "max(DCGM_FI_DEV_SM_CLOCK * 1000000) by (Hostname, UUID, gpu)",
        each(lambda reading: (reading.sm_clock_mhz or 0) * 1e6),
    ),
    Query(
        "max(DCGM_FI_DEV_FB_USED) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)",
        each(used_mib),
        "sum(DCGM_FI_DEV_FB_USED) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)",
    ),
    # Other common queries.
    Query("sum(DCGM_FI_DEV_POWER_USAGE)", one(sum, lambda reading: reading.power_w)),
    Query("avg(DCGM_FI_DEV_GPU_UTIL)", one(fmean, percent), "avg(sum(DCGM_FI_DEV_GPU_UTIL) by (Hostname, gpu))"),
    Query(
        "count(DCGM_FI_DEV_GPU_TEMP)",
        one(len, lambda reading: reading.temperature_c),
        "count(count(DCGM_FI_DEV_GPU_TEMP) by (Hostname, gpu))",
    ),
    Query(
        "sum(DCGM_FI_DEV_FB_USED) / sum(DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)",
        lambda readings: {"": sum(map(used_mib, readings.values())) / sum(map(all_mib, readings.values()))},
    ),
)


def of(query: str, gpus: str) -> str:
    """A query with the selectors of NVIDIA's dashboard."""
    return re.sub(r"DCGM_FI_DEV_\w+", lambda found: f'{found[0]}{{Hostname=~"node-.*", gpu=~"{gpus}"}}', query)


def scrapes(recorded: CompatHistory) -> list[float]:
    """Some scrapes before, during and after the time of a third pod on the shared GPU, and the last one."""
    return [*recorded.times_s[1::9], recorded.times_s[-1]]


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.asked)
def test_on_gpus_that_are_not_shared_every_query_gives_the_drivers_value(recorded: CompatHistory, query: Query) -> None:
    for at_s in scrapes(recorded):
        readings = {gpu: recorded.readings[at_s][gpu] for gpu in (str(ALONE), str(EMPTY))}
        assert recorded.by("gpu", of(query.asked, f"{ALONE}|{EMPTY}"), at_s) == pytest.approx(query.truth(readings))


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.instead or query.asked)
def test_on_all_gpus_the_query_or_its_replacement_gives_the_drivers_value(
    recorded: CompatHistory, query: Query
) -> None:
    for at_s in scrapes(recorded):
        found = recorded.by("gpu", of(query.instead or query.asked, ".*"), at_s)
        assert found == pytest.approx(query.truth(recorded.readings[at_s]))


@pytest.mark.parametrize("query", [query for query in QUERIES if query.instead], ids=lambda query: query.asked)
def test_a_replacement_is_named_only_where_it_is_needed(recorded: CompatHistory, query: Query) -> None:
    assert any(
        recorded.by("gpu", of(query.asked, ".*"), at_s) != pytest.approx(query.truth(recorded.readings[at_s]))
        for at_s in scrapes(recorded)
    )


def test_the_page_has_every_query_and_replacement() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for query in QUERIES:
        assert f"`{query.asked}`" in page, query.asked
        assert not query.instead or f"`{query.instead}`" in page, query.instead


def test_the_ratio_of_memory_in_use_is_the_gpus_on_every_series(recorded: CompatHistory) -> None:
    for at_s in scrapes(recorded):
        found = recorded.query("DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)", at_s)
        assert {one.labels["gpu"] for one in found} == {"0", "1", "2", "3"}
        for one in found:
            reading = recorded.readings[at_s][one.labels["gpu"]]
            # Free memory is divided in whole bytes; every workload here holds more than 2^30.
            assert one.value == pytest.approx(used_mib(reading) / all_mib(reading), abs=1e-9)


def test_a_gpu_with_one_pod_or_none_has_one_series_of_each_gauge(recorded: CompatHistory) -> None:
    blocks = ("GPU_UTIL", "MEM_COPY_UTIL", "FB_USED", "FB_FREE", "POWER_USAGE", "GPU_TEMP", "SM_CLOCK", "MEM_CLOCK")
    for family in blocks:
        for at_s in scrapes(recorded):
            found = recorded.by("gpu", f'DCGM_FI_DEV_{family}{{gpu=~"{ALONE}|{EMPTY}"}}', at_s)
            assert set(found) == {str(ALONE), str(EMPTY)}, family
        assert [one.labels.get("pod") for one in recorded.query(f'DCGM_FI_DEV_{family}{{gpu="{ALONE}"}}')] == ["alone"]


# ---------------------------------------------------------------------------- dcgm-exporter: energy


def drawn_mj(recorded: CompatHistory, gpu: int, since_s: float, until_s: float) -> float:
    """The true energy of a GPU between two scrapes."""
    return recorded.truths[until_s].gpus[gpu].total_mj - recorded.truths[since_s].gpus[gpu].total_mj


def test_the_sum_of_counters_falls_by_the_last_value_of_a_dropped_pod(recorded: CompatHistory) -> None:
    sums = [recorded.query(f'sum({ENERGY}{{gpu="{SHARED}"}})', at_s)[0].value for at_s in recorded.times_s]
    falls = [(at_s, before - after) for at_s, before, after in zip(recorded.times_s[1:], sums, sums[1:], strict=False)]
    ((dropped_s, fall),) = [(at_s, fell) for at_s, fell in falls if fell > 0]
    assert 700 + OPTIONS.retention_s <= dropped_s - recorded.times_s[0] <= 700 + OPTIONS.retention_s + 2 * SCRAPE_S
    (last,) = [value for one in recorded.server.raw(f'{ENERGY}{{pod="job"}}', "2h") for _, value in one.samples[-1:]]
    risen = drawn_mj(recorded, SHARED, dropped_s - SCRAPE_S, dropped_s)
    assert fall == pytest.approx(last - risen, abs=2)


def test_last_values_of_all_series_sum_to_the_energy_of_each_gpu(recorded: CompatHistory) -> None:
    first_s, last_s = recorded.times_s[0], recorded.times_s[-1]
    query = f"sum by (gpu) (last_over_time({ENERGY}{ALL_OF_IT}))"
    assert "`sum by (gpu) (last_over_time(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[30d]))`" in PAGE.read_text("utf-8")
    for gpu, value in recorded.by("gpu", query).items():
        assert value == pytest.approx(drawn_mj(recorded, int(gpu), first_s, last_s), abs=2), gpu
    combined = f"sum by (gpu) ({ENERGY}) + (sum by (gpu) (last_over_time({ENERGY}{ALL_OF_IT}) unless {ENERGY}))"
    assert recorded.by("gpu", combined) == {str(SHARED): pytest.approx(recorded.by("gpu", query)[str(SHARED)])}


def test_the_sum_of_increases_is_the_energy_of_each_gpu(recorded: CompatHistory) -> None:
    first_s, last_s = recorded.times_s[0], recorded.times_s[-1]
    found = recorded.by("gpu", f"sum by (gpu) (increase({ENERGY}{ALL_OF_IT}))")
    for gpu, value in found.items():
        # Prometheus extrapolates a series that starts or ends within the window by up to half a scrape at each end, and
        # misses the value of its first sample: that of the short pod, at most 400 W.
        off_mj = SCRAPE_S * 400e3 if gpu == str(SHARED) else 2
        assert value == pytest.approx(drawn_mj(recorded, int(gpu), first_s, last_s), abs=off_mj), gpu


def test_the_sum_of_rates_is_the_mean_power_of_each_gpu(recorded: CompatHistory) -> None:
    last_s = recorded.times_s[-1]
    found = recorded.by("gpu", f"sum by (gpu) (rate({ENERGY}[5m])) / 1000")
    truth = {str(gpu): drawn_mj(recorded, gpu, last_s - 300, last_s) / 300e3 for gpu in range(4)}
    assert found == pytest.approx(truth, abs=1e-3)


# ---------------------------------------------------------------------------- my-gpu-exporter


def due_j(recorded: CompatHistory) -> dict[str, float]:
    """True joules of each pod: its own work, and an equal part of the GPU's idle power."""
    gpus = recorded.truths[recorded.times_s[-1]].gpus
    return {PODS[ref]: mj / 1e3 for gpu in gpus for ref, mj in resident_energy_mj(gpu).items()}


def test_energy_per_pod_is_its_true_energy(recorded: CompatHistory) -> None:
    found, due = recorded.by("pod", "sum by (pod) (increase(my_gpu_process_energy_joules[1h]))"), due_j(recorded)
    assert found.keys() == due.keys()
    assert found["alone"] == pytest.approx(due["alone"], abs=1)
    for pod, joules in found.items():
        # On shared GPUs it is estimated; of the 400 s of the job Prometheus may add or miss a scrape (15 s).
        assert joules == pytest.approx(due[pod], rel=0.06), pod


def test_cost_is_energy_times_price(recorded: CompatHistory) -> None:
    cost = recorded.by("namespace", "sum by (namespace) (increase(my_gpu_process_energy_joules[24h]) / 3600000 * 0.10)")
    energy = recorded.by("namespace", "sum by (namespace) (increase(my_gpu_process_energy_joules[24h]))")
    assert cost == {"team-a": pytest.approx(energy["team-a"] / 3_600_000 * 0.10, rel=1e-12)}
    # Estimates err between pods of one GPU, not in their sum.
    assert cost["team-a"] == pytest.approx(sum(due_j(recorded).values()) / 3_600_000 * 0.10, rel=0.005)


def test_the_power_of_pods_sums_to_the_gpu(recorded: CompatHistory) -> None:
    last_s = recorded.times_s[-1]
    found = recorded.by("gpu", "sum by (gpu) (rate(my_gpu_process_energy_joules_total[5m]))")
    drawn_w = drawn_mj(recorded, SHARED, last_s - 300, last_s) / 300e3
    assert found[str(SHARED)] == pytest.approx(drawn_w, abs=1e-3)
    assert str(EMPTY) not in found


# ---------------------------------------------------------------------------- gpu-idle-exporter


def idle_s(recorded: CompatHistory, at_s: float) -> dict[str, float]:
    """True idle time of each idle process, by pid."""
    truth = recorded.truths[at_s]

    def since(process: ProcessTruth) -> float | None:
        return None if process.ended else process.idle_since_s

    processes = [process for gpu in truth.gpus for process in gpu.processes]
    return {str(each.key.pid): truth.at_s - began for each in processes if (began := since(each)) is not None}


def test_processes_reported_idle_for_ten_minutes_are_the_truly_idle_ones(recorded: CompatHistory) -> None:
    seen: set[str] = set()
    for at_s in recorded.times_s:
        found = recorded.by("pid", "gpu_idle_process_idle_seconds > 600", at_s)
        truth = idle_s(recorded, at_s)
        # A process is idle after two samples without work, so that it may be reported up to two samples late.
        sure = {pid for pid, idle in truth.items() if idle > 600 + 2 * CYCLE_S}
        assert sure <= set(found) <= {pid for pid, idle in truth.items() if idle > 600}
        for pid, value in found.items():
            assert value == pytest.approx(truth[pid], abs=2 * CYCLE_S)
        seen |= set(found)
    assert seen == {"1005", "1006"}
    assert set(recorded.by("pid", "gpu_idle_process_idle_seconds > 300")) == {"1005", "1006", "1007"}


def test_the_wasted_share_is_the_memory_of_idle_processes(recorded: CompatHistory) -> None:
    wasted = recorded.by(
        "gpu", "sum(gpu_idle_memory_total_bytes) by (gpu) / sum(gpu_idle_device_memory_total_bytes) by (gpu) * 100"
    )
    held = recorded.truths[recorded.times_s[-1]].gpus[HELD]
    idle = sum(each.resident_bytes for each in held.processes if each.idle_since_s is not None)
    assert wasted[str(HELD)] == pytest.approx(idle / WORLD.gpu(HELD).memory_total_bytes * 100)
    assert not any(map(math.isnan, wasted.values()))
