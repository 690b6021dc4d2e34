"""Conservation and identity in the output of a real Collector that receives from the agent on a simulated host."""

from __future__ import annotations

import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.bounded_io import printable
from otel_gpu.export.otlp_encoder import encode
from otel_gpu.export.prometheus import Exposition, PrometheusRenderer
from otel_gpu.metrics.agent_values import SelfStats
from otel_gpu.metrics.catalogue import BY_NAME, Kind
from otel_gpu.metrics.collect import MetricCollector
from otel_gpu.metrics.labels import DECLARED_KEYS, Resources
from otel_gpu.metrics.names import label_name
from otel_gpu.model import WorkloadKind, WorkloadNames, WorkloadRef
from otel_gpu.sources.names.untrusted import sanitize
from tests.agent_process import AgentProcess, simulated_agent
from tests.builders import GIB, facts, gpu, listed, memory, snapshot
from tests.real.collector import CONFIGURATIONS, Addresses, collector, read_file, to_file
from tests.real.otlp_points import Point, points_of, sum_by_gpu, whole_mj
from tests.web import ask

pytestmark = pytest.mark.real

DEBUG = CONFIGURATIONS / "debug.yaml"


def otlp(addresses: Addresses, protocol: str) -> tuple[str, ...]:
    address = addresses.otlp_grpc if protocol == "grpc" else addresses.otlp_http
    return ("--export-interval", "1s", "--otlp-protocol", protocol, "--otlp-endpoint", f"http://{address}")


def by_time(points: Sequence[Point]) -> dict[int, list[Point]]:
    """Points by cycle."""
    found: dict[int, list[Point]] = {}
    for point in points:
        found.setdefault(point.time_ns, []).append(point)
    return found


def until_written(agent: AgentProcess, out: Path, enough: Callable[[list[Point]], bool]) -> list[Point]:
    """Wait until the Collector has written enough points."""
    points: list[Point] = []

    def look() -> bool:
        nonlocal points
        points = list(points_of(read_file(out)))
        return enough(points)

    agent.until(look)
    return points


# ---------------------------------------------------------------------------- it adds up


@pytest.fixture(params=["http/protobuf", "grpc"])
def exported(request: pytest.FixtureRequest, tmp_path: Path) -> list[Point]:
    """The points of some cycles of the demo at the Collector."""
    addresses, out = Addresses.free(), tmp_path / "out.json"
    with (
        collector(DEBUG, to_file(out), directory=tmp_path / "collector", addresses=addresses),
        simulated_agent(*otlp(addresses, request.param), "--otlp-compression", "gzip", directory=tmp_path) as agent,
    ):
        points = until_written(agent, out, lambda points: len(by_time(points)) >= 6)
        code, _ = agent.end()
        assert code == 0, agent.stderr
    return points


def test_sums_hold_at_the_collector(exported: list[Point]) -> None:
    cycles = by_time(exported)
    # The last cycle may be incomplete in the file.
    for points in [cycles[time_ns] for time_ns in sorted(cycles)][:-1]:
        limits = sum_by_gpu(points, "hw.gpu.memory.limit")
        assert len(limits) == 4
        assert sum_by_gpu(points, "gpu.device.memory.usage") == limits
        overcount = sum_by_gpu(points, "gpu.device.memory.overcount")
        for method in ("measured", "inferred"):
            held = sum_by_gpu(points, "gpu.workload.memory.usage", gpu_attribution_method=method)
            listed = sum_by_gpu(points, "gpu.device.memory.usage", gpu_memory_state=method)
            correction = overcount if method == "measured" else {}
            assert {gpu: held.get(gpu, 0) - correction.get(gpu, 0) for gpu in limits} == {
                gpu: listed.get(gpu, 0) for gpu in limits
            }
        assert whole_mj(sum_by_gpu(points, "gpu.device.energy")) == whole_mj(sum_by_gpu(points, "hw.energy"))
        attributed = whole_mj(sum_by_gpu(points, "gpu.device.energy", gpu_energy_state="attributed"))
        assert whole_mj(sum_by_gpu(points, "gpu.workload.energy")) == attributed
        assert whole_mj(sum_by_gpu(points, "gpu.process.energy")) == attributed
    last = cycles[max(cycles)]
    assert sum(whole_mj(sum_by_gpu(last, "hw.energy")).values()) > 0
    assert sum(whole_mj(sum_by_gpu(last, "gpu.workload.energy")).values()) > 0


def test_every_workload_and_the_host_have_one_resource_each(exported: list[Point]) -> None:
    cycles = by_time(exported)
    points = cycles[sorted(cycles)[-2]]
    resources = {point.resource for point in points}
    workloads = [dict(resource) for resource in resources if "gpu.workload.id" in dict(resource)]
    hosts = [dict(resource) for resource in resources if "gpu.workload.id" not in dict(resource)]
    identities = Counter((each["gpu.workload.kind"], each["gpu.workload.id"]) for each in workloads)
    assert len(identities) > 8
    assert set(identities.values()) == {1}
    assert ("host", "host") in identities, "no Resource for processes outside of any workload"
    [host] = hosts
    assert host["service.name"] == "otel-gpu"
    for workload in workloads:
        assert not any(key.startswith("service.") for key in workload)
        assert (workload["host.name"], workload.get("host.id")) == (host["host.name"], host.get("host.id"))
    levels = {
        "gpu.workload.": workloads,
        "gpu.process.": workloads,
        "hw.": hosts,
        "otel_gpu.": hosts,
        "gpu.device.": hosts,
    }
    for point in points:
        [allowed] = [of for prefix, of in levels.items() if point.name.startswith(prefix)]
        assert dict(point.resource) in allowed, point.name


def test_no_counter_falls_or_starts_after_its_time_and_no_point_is_repeated(exported: list[Point]) -> None:
    seen = Counter((point.series, point.time_ns) for point in exported)
    assert max(seen.values()) == 1
    newest: dict[object, Point] = {}
    for point in sorted(exported, key=lambda point: point.time_ns):
        if BY_NAME[point.name].kind is not Kind.COUNTER:
            continue
        before = newest.get(point.series)
        assert point.start_ns <= point.time_ns
        if before is not None and before.start_ns == point.start_ns:
            assert point.value >= before.value, point
        newest[point.series] = point
    assert len(newest) > 100


# ---------------------------------------------------------------------------- names on both routes


Names = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


def series(text: str) -> Names:
    """Series of an exposition, without labels that are empty or that a scrape or a Collector adds."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if value and not key.startswith("otel_scope_")}
            key = (sample.name, tuple(sorted(pair for pair in labels.items() if pair[0] not in ("job", "instance"))))
            assert key not in found, f"duplicate series: {key}"
            found[key] = sample.value
    return found


def test_names_and_labels_through_a_collector_equal_the_agents_own(tmp_path: Path) -> None:
    addresses = Addresses.free()
    with (
        collector(
            CONFIGURATIONS / "prometheus-scrape.yaml",
            "yaml:exporters::prometheus::metric_expiration: 3s",  # three exports, like the default of a minute at 15 s
            directory=tmp_path / "collector",
            addresses=addresses,
        ) as behind,
        simulated_agent(*otlp(addresses, "http/protobuf"), "--prometheus", directory=tmp_path) as agent,
    ):
        own: Names = {}
        through: Names = {}

        def agree() -> bool:
            """Compare again if a process started or ended between the two requests."""
            nonlocal own, through
            own = series(agent.get("/metrics").body) if agent.get("/metrics").status == 200 else {}
            through = series(ask(behind.addresses.prometheus, "/metrics").body)
            complete = any(name == "gpu_workload_utilization_ratio" for name, _ in own)
            return complete and own.keys() == through.keys()

        try:
            agent.until(agree)
        except AssertionError:
            pytest.fail(f"on one route only: {sorted(own.keys() ^ through.keys())[:20]}")
        assert len(own) > 300
        assert "gpu_workload_energy_joules_total" in {name for name, _ in own}
        assert "duplicate" not in behind.log.lower()
        assert "error" not in behind.log.lower(), behind.log


def test_what_a_job_says_of_itself_is_on_one_metric_on_both_routes(tmp_path: Path) -> None:
    """Also where its text is as long as possible and has characters that an exposition escapes."""
    text = sanitize('a "job"\n\\' + "\N{EURO SIGN}" * 1024)
    assert text is not None
    names = WorkloadNames(title=text, declared=tuple((key, text) for key in sorted(DECLARED_KEYS)))
    job = WorkloadRef(WorkloadKind.SLURM_JOB, "184219")
    reports = Attributor()
    for at_s in (0.0, 5.0):
        reading = gpu(0, [listed(100, GIB)], memory=memory(used_gib=1), energy_mj=int(1e6 + 1e5 * at_s), power_w=100.0)
        world = snapshot(reading, processes=[facts(100, job)], at_s=at_s)
        report = reports.observe(replace(world, names={job.key: names}))
    collection = replace(MetricCollector(lambda: SelfStats(0)).collect(report), time_ns=time.time_ns())
    resources = Resources({"host.name": "node-1"}, {})
    own = series(PrometheusRenderer(resources).render(collection, Exposition.TEXT).decode())
    with collector(CONFIGURATIONS / "prometheus-scrape.yaml", directory=tmp_path) as behind:
        request = urllib.request.Request(
            f"http://{behind.addresses.otlp_http}/v1/metrics",
            encode(collection, resources).SerializeToString(),
            {"Content-Type": "application/x-protobuf"},
        )
        with urllib.request.urlopen(request, timeout=10) as accepted:
            assert accepted.status == 200
        through = series(ask(behind.addresses.prometheus, "/metrics").body)
    assert own == through
    labels = {name: dict(found) for name, found in own}
    assert {name for name, found in labels.items() if "slurm_job_name" in found} == {"gpu_workload_info"}
    info = labels["gpu_workload_info"]
    assert {info[label_name(key)] for key in DECLARED_KEYS} == {printable(text)}
    assert (info["gpu_workload_name"], info["slurm_job_id"]) == ("184219", "184219")
