from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from otel_gpu.config import load
from otel_gpu.config.groups import Listener
from otel_gpu.config.values import Address
from otel_gpu.errors import UsageError
from otel_gpu.model import Report
from otel_gpu.web.bodies import Bodies
from otel_gpu.web.endpoints import CompatListeners
from otel_gpu.web.response import Response
from otel_gpu.web.server import WebServer
from tests.unit.export.exposition import simulated_report
from tests.unit.metrics.builders import answer, device, process
from tests.web import ask


def listener(name: str, **options: str) -> Listener:
    """The listener of these settings, on any free port."""
    (found,) = load({"compat": name, **options}, {"POD_NAME": "p"}).config.compat.listeners
    return replace(found, address=Address(found.address.host, 0))


@contextmanager
def serving(
    listeners: Sequence[Listener], newest: Callable[[float], Report | None]
) -> Iterator[tuple[CompatListeners, list[Address]]]:
    bodies = Bodies()
    server = WebServer(bodies=bodies)
    try:
        bound = CompatListeners(
            server,
            listeners,
            newest,
            bodies,
            host="127.0.0.1",
            host_name="node-1",
            health=lambda _: Response("ok\n"),
            web_config=None,
        )
        server.start()
        yield bound, bound.addresses
    finally:
        server.stop()


def test_each_exporter_has_a_port_with_its_own_series_only() -> None:
    report = simulated_report()
    with serving([listener("gpu-idle-exporter"), listener("dcgm-exporter")], lambda _: report) as (_, (idle, dcgm)):
        answers = [ask(address, "/metrics") for address in (idle, dcgm)]
        health = [ask(idle, "/healthz"), ask(dcgm, "/health")]
        missing = ask(idle, "/health")
    assert [answer.headers["Content-Type"] for answer in answers] == ["text/plain; version=0.0.4; charset=utf-8"] * 2
    series = [[line for line in answer.body.splitlines() if not line.startswith("#")] for answer in answers]
    assert all(line.startswith("gpu_idle_") and 'pod="p"' in line for line in series[0])
    assert all(line.startswith("DCGM_FI_DEV_") and 'Hostname="node-1"' in line for line in series[1])
    assert [answer.body for answer in health] == ["ok\n", "ok\n"]
    assert missing.status == 404


def test_a_report_may_be_as_old_as_the_exporter_allows() -> None:
    ages_s: list[float] = []

    def newest(max_age_s: float) -> None:
        ages_s.append(max_age_s)

    with serving([listener("gpu-inference"), listener("container-gpu-exporter")], newest) as (_, addresses):
        answers = [ask(address, "/metrics") for address in addresses]
    assert ages_s == [10, 3]
    assert {(answer.status, answer.body) for answer in answers} == {(503, "the first sample is under way\n")}


def test_the_flags_of_the_exporter_apply() -> None:
    flags = {"my-gpu-exporter-flags": "--metric-prefix=mine --metrics-path=/m --kubernetes-enabled=false"}
    report = simulated_report()
    with serving([listener("my-gpu-exporter", **flags)], lambda _: report) as (servers, (address,)):
        text = ask(address, "/m").body
        assert ask(address, "/metrics").status == 404
        assert servers.urls == {f"http://{address}/m": "my-gpu-exporter"}
    assert 'mine_active{pid="' in text
    assert 'pod="",namespace="",container="",pod_uid="",container_id="' in text
    assert 'pod="v' not in text


def test_a_port_in_use_is_an_error_and_frees_the_other_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        blocked = Listener("gpu-inference", Address("", port))
        with pytest.raises(UsageError) as caught, serving([listener("dcgm-exporter"), blocked], lambda _: None):
            pass
    assert str(caught.value).startswith(f"cannot listen on 127.0.0.1:{port}: ")
    assert str(caught.value).endswith("; choose another with --compat gpu-inference:PORT")


def test_a_shorter_retention_applies_to_its_listener_only() -> None:
    ended = answer(device(), processes=[process(1, active=False), process(2)])
    times_ns = [round(at_s * 1e9) for at_s in (0, 30, 30.1)]
    later = [replace(ended, monotonic_ns=ns, wall_ns=ended.wall_ns + ns) for ns in times_ns]
    reports = iter(later * 2)
    flags = {"my-gpu-exporter-flags": "--metric-retention=30s"}
    counts = []
    for listeners in ([listener("my-gpu-exporter", **flags)], [listener("my-gpu-exporter")]):
        with serving(listeners, lambda _: next(reports)) as (_, (address,)):
            counts += [ask(address, "/metrics").body.count("my_gpu_process_active{") for _ in range(3)]
    assert counts == [2, 2, 1, 2, 2, 2]


def test_flags_that_only_the_agent_supports_give_one_warning_each(caplog: pytest.LogCaptureFixture) -> None:
    flags = {"my-gpu-exporter-flags": "--metric-retention=1h --log-level=debug --metric-prefix=x"}
    with serving([listener("my-gpu-exporter", **flags)], lambda _: None):
        pass
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    retention, level = (record.getMessage() for record in caplog.records)
    assert retention == (
        "--my-gpu-exporter-flags: --metric-retention is '1h'; a listener cannot keep processes "
        "for longer than the agent: its --retention is the limit"
    )
    assert level == ("--my-gpu-exporter-flags: --log-level is 'debug'; the agent has one log: its --log-level decides")
