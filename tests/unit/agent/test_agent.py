from __future__ import annotations

import json
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from otel_gpu.agent.agent import Agent
from otel_gpu.agent.host import Host
from otel_gpu.clock import ManualClock
from otel_gpu.config import load
from otel_gpu.errors import Unavailable, UsageError
from otel_gpu.model import Pod, Report, SourceState
from otel_gpu.sources.base import GpuRead, ProcessRead
from tests.builders import FakeGpus, FakeProcesses, gpu, gpu_read, listed
from tests.unit.agent.harness import PATIENCE_S, RESOURCES, Running, after_the_first_sample, running, settings
from tests.unit.export.collectors import HttpCollector

WORKING = gpu_read(gpu(0, [listed(1)]))
NO_DRIVER = GpuRead(state=SourceState.UNAVAILABLE, reason="NVML: the driver is not loaded", errors=1)


# ---------------------------------------------------------------------------- what is served


def test_an_agent_with_figures_is_healthy_and_ready() -> None:
    with after_the_first_sample(FakeGpus(WORKING)) as agent:
        assert [agent.get(path)[::2] for path in ("/healthz", "/readyz")] == [(200, "ok\n")] * 2


def test_the_page_and_its_style_sheet_are_served() -> None:
    with after_the_first_sample(FakeGpus(WORKING)) as agent:
        page, style = agent.get("/"), agent.get("/static/style.css")
    assert page.status == style.status == 200
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "A100-SXM4-80GB" in page.body
    assert "SIMULATED" not in page.body
    assert style.headers["Content-Type"] == "text/css; charset=utf-8"


def test_the_page_of_a_simulated_host_says_so() -> None:
    with after_the_first_sample(FakeGpus(WORKING), simulated_because="asked for") as agent:
        assert "SIMULATED HOST" in agent.get("/").body


def test_the_report_is_served_as_json() -> None:
    with after_the_first_sample(FakeGpus(WORKING)) as agent:
        answer = agent.get("/api/attribution")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert [one["uuid"] for one in json.loads(answer.body)["gpus"]] == ["GPU-0"]


def test_the_event_stream_sends_every_cycle() -> None:
    newer = gpu_read(gpu(0, [listed(1)], name="NVIDIA H100"))
    with after_the_first_sample(FakeGpus(WORKING, newer)) as agent:
        address = agent.agent.web.address
        with socket.create_connection((address.host, address.port), PATIENCE_S) as client:
            client.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            stream = client.makefile("rb")
            events = (json.loads(line[6:]) for line in stream if line.startswith(b'data: {"gpus":['))
            assert [one["name"] for one in next(events)["gpus"]] == ["NVIDIA A100-SXM4-80GB"]
            agent.clock.advance(1.5)
            document = agent.get("/api/attribution")
            assert next(events) == json.loads(document.body)
            assert "NVIDIA H100" in document.body
            assert document.headers["ETag"] == f'"{agent.clock.wall_ns()}"'


@pytest.mark.parametrize("path", ["/", "/api/attribution"])
def test_a_request_gets_a_fresh_report_instead_of_the_last_one(path: str) -> None:
    newer = gpu_read(gpu(0, [listed(1)], name="NVIDIA H100"))
    with after_the_first_sample(FakeGpus(WORKING, newer)) as agent:
        agent.clock.advance(1.5)
        requests = 0
        while "H100" not in agent.get(path).body:  # on a busy machine a cycle may take longer than a reader waits
            requests += 1
            assert requests < 60


def test_without_a_driver_the_agent_is_alive_and_not_ready_with_a_reason() -> None:
    with after_the_first_sample(FakeGpus(NO_DRIVER)) as agent:
        assert agent.get("/healthz").status == 200
        assert agent.get("/readyz")[::2] == (503, "nvml: NVML: the driver is not loaded\n")
        document = json.loads(agent.get("/api/attribution").body)
    assert document["gpus"] == []
    reason = "NVML: the driver is not loaded"
    assert document["sources"][0] == {"name": "nvml", "ok": False, "reason": reason, "blind": True}


HIDDEN = ProcessRead(state=SourceState.DEGRADED, reason="NVML hides processes:\nuse pid: host", pids_complete=False)
BROKEN = ProcessRead(state=SourceState.UNAVAILABLE, reason="/proc is not a readable procfs")


@pytest.mark.parametrize(
    ("processes", "pod", "expected"),
    [
        (BROKEN, None, (503, "procfs: /proc is not a readable procfs\n")),
        (BROKEN, Pod("p"), (503, "procfs: /proc is not a readable procfs\n")),
        (HIDDEN, None, (503, "procfs: NVML hides processes: use pid: host\n")),
        (HIDDEN, Pod("p"), (200, "ok\n")),
        (ProcessRead(pids_complete=False), None, (503, "procfs: nothing can be attributed\n")),
        (ProcessRead(state=SourceState.DEGRADED, reason="1 process is unreadable"), None, (200, "ok\n")),
    ],
    ids=["no /proc", "no /proc in a pod", "hidden", "hidden from a sidecar", "hidden without a reason", "degraded"],
)
def test_an_agent_that_can_attribute_nothing_is_alive_and_not_ready_with_a_reason(
    processes: ProcessRead, pod: Pod | None, expected: tuple[int, str]
) -> None:
    with after_the_first_sample(FakeGpus(WORKING), processes=processes, pod=pod) as agent:
        assert agent.get("/healthz").status == 200
        assert agent.get("/readyz")[::2] == expected
        document = json.loads(agent.get("/api/attribution").body)
    [found] = [source for source in document["sources"] if source["name"] == "procfs"]
    assert found["blind"] is (expected[0] == 503)


def test_the_metrics_path_has_a_hint_if_prometheus_is_off() -> None:
    with after_the_first_sample(FakeGpus(WORKING)) as agent:
        metrics, other = agent.get("/metrics"), agent.get("/other")
    assert (metrics.status, other.status) == (404, 404)
    assert metrics.body.startswith("metrics are not served here; --prometheus serves them; available paths:  /  /api")
    assert other.body.startswith("not found; available paths:  /  /api")
    assert "/metrics" not in other.body


def test_unreadable_processes_are_exported_by_reason_over_both_routes_and_on_the_page() -> None:
    collector = HttpCollector()
    flags = {"exporters": "otlp,prometheus", "otlp-endpoint": collector.url, "export-interval": "100ms"}
    processes = ProcessRead(unreadable={"timed_out": 1, "too_large": 1})
    try:
        with after_the_first_sample(FakeGpus(WORKING), processes=processes, flags=flags) as agent:
            request = collector.arrived.get(timeout=PATIENCE_S).request
            text = agent.get("/metrics").body
            problems = [each.text for each in agent.agent.events.view(agent.seen[0]).problems]
    finally:
        collector.close()
    expected = dict.fromkeys(("denied", "hidden", "malformed", "unidentified"), 0) | {"timed_out": 1, "too_large": 1}
    families = {family.name: family for family in text_string_to_metric_families(text)}
    samples = families["otel_gpu_process_unreadable"].samples
    assert {sample.labels["otel_gpu_reason"]: sample.value for sample in samples} == expected
    pushed = [
        metric
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "otel_gpu.process.unreadable"
    ]
    [metric] = pushed
    assert (metric.unit, metric.sum.is_monotonic) == ("{process}", False)
    values = {point.attributes[0].value.string_value: point.as_int for point in metric.sum.data_points}
    assert values == expected
    assert {point.attributes[0].key for point in metric.sum.data_points} == {"otel_gpu.reason"}
    assert "2 processes could not be read: 1 timed_out, 1 too_large; see otel-gpu doctor" in problems


@pytest.mark.parametrize("switch", ["on", "off"])
def test_created_timestamps_are_served_in_openmetrics_only_if_switched_on(switch: str) -> None:
    flags = {"prometheus": "on", "openmetrics-created": switch}
    with after_the_first_sample(FakeGpus(WORKING), flags=flags) as agent:
        openmetrics = agent.get("/metrics", Accept="application/openmetrics-text").body
        text = agent.get("/metrics").body
    assert ("otel_gpu_cpu_time_seconds_created{" in openmetrics) is (switch == "on")
    assert "_created" not in text


def test_an_agent_whose_driver_answers_partly_is_ready() -> None:
    with after_the_first_sample(FakeGpus(replace(WORKING, state=SourceState.DEGRADED, reason="GPU 1: lost"))) as agent:
        assert agent.get("/readyz").status == 200


def test_before_the_first_sample_every_path_answers_without_figures() -> None:
    free = threading.Event()

    def hang() -> None:
        free.wait(PATIENCE_S)

    with running(FakeGpus(WORKING, on_read=hang)) as agent:
        try:
            assert agent.get("/healthz").status == 200
            assert agent.get("/readyz")[::2] == (503, "the first sample is under way\n")
            assert agent.get("/api/attribution")[::2] == (503, "the first sample is under way\n")
            page = agent.get("/")
            assert page.status == 200
            assert "the first sample is under way" in page.body
        finally:
            free.set()


def test_an_agent_without_new_samples_is_unhealthy() -> None:
    with after_the_first_sample(FakeGpus(WORKING)) as agent:
        agent.clock.advance(3 * 3600 + 2)
        assert agent.get("/healthz").status == 200
        agent.clock.advance(1)
        assert agent.get("/healthz")[::2] == (503, "no sample for 10803 s\n")


def test_an_agent_without_a_first_sample_is_unhealthy_after_a_longer_time() -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    with running(FakeGpus(WORKING, on_read=fail)) as agent:
        agent.clock.advance(30 + 3 * 3600 + 2)
        assert agent.get("/healthz").status == 200
        agent.clock.advance(1)
        assert agent.get("/healthz")[::2] == (503, "no sample for 10833 s\n")


# ---------------------------------------------------------------------------- from start to stop


@pytest.mark.parametrize("works", [0, 1], ids=["the sampler's", "the server's"])
def test_a_thread_that_cannot_start_is_one_clear_error_and_everything_is_released(
    works: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = FakeGpus(WORKING)
    agent = Running(gpus)
    start, started = threading.Thread.start, iter(range(100))

    def start_some(thread: threading.Thread) -> None:
        if next(started) >= works:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start_some)
        with pytest.raises(Unavailable, match=r"^can't start new thread: .* raise ulimit -u"):
            agent.agent.run(agent.stop, lambda _: None, on_start=lambda: pytest.fail("it reports that it runs"))
    assert gpus.closed
    with pytest.raises(ConnectionRefusedError):
        agent.get("/")


def test_a_bad_web_configuration_is_refused_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "web.yml"
    path.write_text("tls_server_config:\n  cert_file: none.crt\n  key_file: none.key\n", encoding="utf-8")
    config = load(settings() | {"web-config": str(path)}, {}).config
    with pytest.raises(UsageError, match=r"web\.yml:2: cert_file '.*/none\.crt' cannot be read: No such file"):
        Agent(config, Host(FakeGpus(), FakeProcesses(), ()), RESOURCES, ManualClock())


def test_the_address_is_bound_before_anything_starts() -> None:
    host = Host(FakeGpus(), FakeProcesses(), ())
    first = Agent(load(settings(), {}).config, host, RESOURCES, ManualClock())
    config = load(settings(listen=str(first.web.address)), {}).config
    with pytest.raises(UsageError, match="Address already in use"):
        Agent(config, host, RESOURCES, ManualClock())
    stopped = threading.Event()
    stopped.set()
    first.run(stopped, lambda _: None)


def test_every_report_is_passed_on_once() -> None:
    with after_the_first_sample(FakeGpus(WORKING)) as agent:
        assert agent.seen == [agent.agent.engine.latest]


def test_an_agent_that_is_stopped_before_it_runs_still_cleans_up() -> None:
    gpus = FakeGpus(WORKING)
    agent = Running(gpus)
    agent.stop.set()
    agent.agent.run(agent.stop, lambda _: None)
    assert gpus.closed


def test_an_agent_that_is_woken_stops_without_waiting_for_the_next_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_gpu.agent.agent._STOP_POLL_S", 3600.0)
    with after_the_first_sample(FakeGpus(WORKING)):
        pass  # it stops, or the context manager fails


def test_an_error_of_the_view_stops_the_agent_properly() -> None:
    """A closed pipe (``| head``) ends the command. The address and the driver are released all the same."""

    def broken_pipe(_: Report) -> None:
        raise BrokenPipeError

    gpus = FakeGpus(WORKING)
    agent = Running(gpus)
    with pytest.raises(BrokenPipeError):
        agent.agent.run(agent.stop, broken_pipe)
    assert gpus.closed
    with pytest.raises(ConnectionRefusedError):
        agent.get("/")
