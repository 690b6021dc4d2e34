"""The parts of the fleet bench: the books at both ends, the comparison, the sums. tests/real runs it whole."""

from __future__ import annotations

import gzip
import http.client
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from bench.fleet.__main__ import main
from bench.fleet.agents import Activity, AgentGroup, End, Plan
from bench.fleet.backend import PATH, ReceivedPoints, Totals, backend
from bench.fleet.extrapolation import Assumed, Measured, fleet_sums, measured
from bench.fleet.ledger import Received, Sent, balance, counters_of
from bench.fleet.report import as_text
from bench.fleet.run import Moment, Options, Outage, Result, TierCost
from bench.fleet.world import GPUS, LASTING_WORKLOADS, fleet_world, host_name
from otel_gpu.config.values import Address


def export(time_ns: int, joules: Mapping[str, float], host: str = "a") -> MetricsData:
    """An export of these workloads: a counter and a gauge each, distinguished only by their Resources."""

    def point(value: float) -> NumberDataPoint:
        return NumberDataPoint({"hw.id": "GPU-one"}, 0, time_ns, value)

    def metrics(value: float) -> list[Metric]:
        energy = Sum([point(value)], AggregationTemporality.CUMULATIVE, is_monotonic=True)
        return [Metric("energy", "", "J", energy), Metric("utilization", "", "1", Gauge([point(0.5)]))]

    scope = InstrumentationScope("test")
    return MetricsData(
        [
            ResourceMetrics(
                Resource({"host.name": host, "gpu.workload.id": name}), [ScopeMetrics(scope, metrics(value), "")], ""
            )
            for name, value in joules.items()
        ]
    )


def encoded(data: MetricsData) -> bytes:
    return encode_metrics(data).SerializeToString()


def received_points(*exports: MetricsData) -> ReceivedPoints:
    received = ReceivedPoints()
    for data in exports:
        received.add(encoded(data), 10)
    return received


def test_a_duplicate_point_is_received_once() -> None:
    received = received_points(export(1, {"x": 1.0, "y": 2.0}), export(2, {"x": 3.0}), export(1, {"x": 1.0}))
    assert (received.totals.points, received.totals.twice_points, received.totals.distinct_points) == (8, 2, 6)
    assert received.by_host()["a"].points == {1: 4, 2: 2}
    assert received.totals.late_points == 0


def test_a_point_older_than_the_newest_is_late_and_does_not_replace_it() -> None:
    received = received_points(export(2, {"x": 3.0}), export(1, {"x": 1.0}))
    assert received.totals.late_points == 2
    assert received.by_host()["a"] == Received({1: 2, 2: 2}, {"energy": 3.0})


def test_counters_at_the_end_are_those_of_the_last_export_and_no_gauges() -> None:
    received = received_points(export(1, {"gone": 9.0, "x": 1.0}), export(2, {"x": 3.0, "y": 0.25}))
    assert (
        received.by_host()["a"].counters == {"energy": 3.25} == counters_of([encoded(export(2, {"y": 0.25, "x": 3.0}))])
    )


def test_points_are_counted_by_host() -> None:
    received = received_points(export(1, {"x": 1.0}), export(1, {"x": 1.0}, host="b"))
    assert received.totals.twice_points == 0
    assert set(received.by_host()) == {"a", "b"}


SENT = Sent("a", {1: 4, 2: 2}, 0, {"energy": 3.0})
THERE = Received({1: 4, 2: 2}, {"energy": 3.0})


def test_a_balance_holds_if_exactly_what_was_sent_is_received() -> None:
    found = balance([SENT], {"a": THERE})
    assert found.holds
    assert (found.sent_points, found.received_points) == (6, 6)


@pytest.mark.parametrize(
    ("received", "lost", "unknown", "differing"),
    [
        ({"a": replace(THERE, points={1: 3, 2: 2})}, 1, 0, ()),
        ({"a": replace(THERE, points={1: 4})}, 2, 0, ()),
        ({"a": replace(THERE, points={1: 5, 2: 1})}, 1, 1, ()),
        ({"a": replace(THERE, points={1: 4, 2: 2, 3: 1})}, 0, 1, ()),
        ({"a": THERE, "b": THERE}, 0, 6, ()),
        ({"a": replace(THERE, counters={"energy": 3.5})}, 0, 0, ("a",)),
        ({}, 6, 0, ("a",)),
    ],
)
def test_a_balance_does_not_hold_if_anything_is_missing_or_different(
    received: Mapping[str, Received], lost: int, unknown: int, differing: tuple[str, ...]
) -> None:
    found = balance([SENT], received)
    assert (found.lost_points, found.unknown_points, found.hosts_with_other_counters) == (lost, unknown, differing)
    assert not found.holds


def post(address: Address, path: str, body: bytes, encoding: str | None) -> int:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=10)
    try:
        connection.request("POST", path, body, {"Content-Encoding": encoding} if encoding else {})
        response = connection.getresponse()
        assert response.read() == b""
        return response.status
    finally:
        connection.close()


def test_the_backend_counts_valid_requests_and_refuses_others() -> None:
    body = encoded(export(1, {"x": 1.0}))
    with backend() as end:
        assert post(end.address, PATH, gzip.compress(body), "gzip") == 200
        assert post(end.address, PATH, body, None) == 200
        assert post(end.address, PATH, b"\xff\xff", None) == 400
        assert post(end.address, PATH, body, "gzip") == 400
        assert post(end.address, "/v1/traces", body, None) == 404
        totals = end.totals()
        assert (totals.requests, totals.points, totals.twice_points) == (2, 4, 2)
        assert totals.body_bytes == 2 * len(body)
        assert end.received() == {"a": Received({1: 2}, {"energy": 1.0})}


@pytest.mark.long
def test_agents_send_what_they_report_as_sent() -> None:
    with backend() as end:
        group = AgentGroup(Plan(range(2), [end.address], interval_s=1.0, export_interval_s=1.0))
        group.start(threading.Event())
        deadline_s = time.monotonic() + 30
        while group.activity().exports < 4:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        last = group.end()
        found = balance(last.sent, end.received())
    assert found.holds
    assert found.sent_points == last.activity.points > 0
    assert [one.host for one in last.sent] == [host_name(0), host_name(1)]
    assert 0 < last.gzip_bytes < last.plain_bytes
    assert 0 < last.activity.simulation_cpu_s < last.activity.cpu_s


def test_hosts_are_similar_and_share_no_gpu_and_no_workload() -> None:
    one, other = fleet_world(1), fleet_world(2)
    assert len(one.gpus) == len(other.gpus) == GPUS
    assert {gpu.identity.uuid for gpu in one.gpus}.isdisjoint(gpu.identity.uuid for gpu in other.gpus)
    workloads = [{process.workload.ref.id for process in world.processes} for world in (one, other)]
    assert len(workloads[0]) == len(workloads[1]) == LASTING_WORKLOADS
    assert workloads[0].isdisjoint(workloads[1])
    assert one == fleet_world(1)


MEASURED = Measured(
    series_per_host=600.0,
    plain_bytes_per_point=200.0,
    gzip_bytes_per_point=20.0,
    backend_bytes_per_point=15.0,
    agent_cpu_s_per_cycle=0.02,
    agent_memory_bytes=2e6,
    node_cpu_s_per_point=2e-5,
    gateway_cpu_s_per_point=2e-5,
)


def test_the_sums_of_a_fleet_are_plain_arithmetic() -> None:
    sums = fleet_sums(MEASURED, Assumed(hosts=10_000, export_interval_s=15, outage_s=3600, disk_per_byte=1))
    assert sums.series == 6_000_000
    assert sums.points_per_s == 400_000
    assert sums.to_gateways_bytes_per_s == 8e6
    assert sums.to_backend_bytes_per_s == 6e6
    assert sums.gateway_cores == pytest.approx(8)
    assert (sums.gateways_by_cpu, sums.gateways_by_answers, sums.gateways) == (4, 5, 6)
    assert sums.host_queue_bytes == 28_800_000
    assert sums.all_gateways_queue_bytes == 288_000_000_000
    assert sums.gateway_queue_bytes == 48_000_000_000


def test_with_a_fast_backend_the_number_of_gateways_follows_from_cpu() -> None:
    sums = fleet_sums(MEASURED, Assumed(backend_answer_s=0.001))
    assert (sums.gateways_by_cpu, sums.gateways_by_answers, sums.gateways) == (4, 1, 5)


def result(*, lost_points: int, exports: int) -> Result:
    """A run of one agent for 100 s that should have made 10 exports of 6 points each."""

    def moment(time_s: float, activity: Activity, totals: Totals) -> Moment:
        return Moment(
            time_s, activity, totals, TierCost(1, time_s * 0.001, 10**8), TierCost(2, time_s * 0.002, 2 * 10**8)
        )

    nothing = Activity(1, 0, 0, 0, 1.0, 0.5, 10**7)
    activity = Activity(1, 20, exports, 6 * exports, 2.0, 1.0, 10**7)
    totals = Totals(requests=2, points=6 * exports, wire_bytes=100, body_bytes=1000)
    return Result(
        Options(agents=1, export_interval_s=10),
        replace(balance([SENT], {"a": THERE}), lost_points=lost_points),
        Outage("gateway-1", 30.0, refused=True, sent_points=12, node_queue_bytes=1200),
        moment(0.0, nothing, Totals()),
        moment(100.0, activity, totals),
        moment(110.0, activity, totals),
        End(activity, [SENT], plain_bytes=1200, gzip_bytes=120, points=6),
    )


def test_results_are_per_host_and_per_point() -> None:
    found = measured(result(lost_points=0, exports=10))
    assert (found.series_per_host, found.plain_bytes_per_point, found.gzip_bytes_per_point) == (6, 200, 20)
    assert found.agent_cpu_s_per_cycle == pytest.approx(0.5 / 20)  # a second, half of which was the simulated host's
    assert found.gateway_cpu_s_per_point == pytest.approx(0.22 / 60)


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(("lost_points", "code"), [(0, 0), (1, 1)])
def test_a_lost_point_makes_it_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str, lost_points: int, code: int
) -> None:
    monkeypatch.setattr("bench.fleet.__main__.run", lambda *_: result(lost_points=lost_points, exports=10))
    assert main(["--format", form]) == code
    out = capsys.readouterr().out
    if form == "json":
        assert json.loads(out)["balance"]["lost_points"] == lost_points
    else:
        assert f"lost                        {lost_points} points" in out
        assert "too many agents" not in out


def test_a_machine_that_does_not_keep_up_is_reported() -> None:
    assert any("5 of 10 that were due; too many agents" in line for line in as_text(result(lost_points=0, exports=5)))


@pytest.mark.parametrize("words", [["--agents", "0"], ["--seconds", "soon"], ["--format", "xml"], ["--nodes", "-1"]])
def test_bad_usage_is_one_line_and_exit_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err.splitlines()[-1]


def test_without_a_collector_it_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_GPU_COLLECTOR", "/nonexistent/otelcol")
    assert main([]) == 1
    assert capsys.readouterr() == (
        "",
        "fleet: collector: OTEL_GPU_COLLECTOR=/nonexistent/otelcol is not a program\n",
    )
