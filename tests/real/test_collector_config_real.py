"""Every shipped Collector configuration, validated and run by a real Collector."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest

from otel_gpu.config.values import Address
from tests.real.collector import CONFIGURATIONS, Addresses, Collector, collector, read_file, to_file, validate
from tests.real.otlp_client import over_grpc, over_http, send, workloads
from tests.real.otlp_points import points_of, resource_attributes, workload_energies
from tests.real.programs import LOOPBACK, free_addresses, serving
from tests.real.prometheus import Series, prometheus, promtool
from tests.web import ask

pytestmark = pytest.mark.real

FILES = sorted(CONFIGURATIONS.glob("*.yaml"))
# Required variables without a default. Validation connects to none of the addresses.
REQUIRED = {
    "GATEWAY_ENDPOINT": "gateway.example:4317",
    "BACKEND_ENDPOINT": "https://backend.example",
    "REMOTE_WRITE_URL": "https://prometheus.example/api/v1/write",
    "K8S_POD_IP": LOOPBACK,
    "K8S_POD_UID": "27e1cf4c-6b07-4a0c-a5f1-1d5c7c1f3f11",
    "K8S_POD_NAME": "train-0",
    "K8S_NAMESPACE_NAME": "ml",
    "K8S_NODE_NAME": "node-1",
}

ENERGY = "gpu_workload_energy_joules_total"

every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def to_closed_ports() -> Mapping[str, str]:
    """The required variables with addresses on this machine at which no server listens."""
    gateway, backend, agent = free_addresses(3)
    return REQUIRED | {
        "GATEWAY_ENDPOINT": str(gateway),
        "BACKEND_ENDPOINT": f"http://{backend}",
        "REMOTE_WRITE_URL": f"http://{backend}/api/v1/write",
        "AGENT_ADDRESS": str(agent),
    }


def warnings(one: Collector) -> Sequence[str]:
    """Log lines above the level info, except gRPC's about unreachable servers."""
    return [line for line in one.log.splitlines() if "\tinfo\t" not in line and '"grpc_log": true' not in line]


def shipped(name: str) -> Path:
    return CONFIGURATIONS / f"{name}.yaml"


@contextmanager
def backend(directory: Path, addresses: Addresses | None = None) -> Iterator[tuple[Collector, Path]]:
    """A Collector that receives OTLP and writes it to a file."""
    path = directory / "backend.json"
    with collector(shipped("debug"), to_file(path), directory=directory / "backend", addresses=addresses) as one:
        yield one, path


def by_workload(found: Sequence[Series]) -> dict[str, float]:
    """The value of each workload's series, after checking that it has the labels of its Resource and point only."""
    values: dict[str, float] = {}
    for series in found:
        labels = {key: value for key, value in series.labels.items() if key not in ("__name__", "job", "instance")}
        name = labels["gpu_workload_id"]
        assert labels == {
            "hw_id": "GPU-one",
            "gpu_workload_kind": "container",
            "gpu_workload_id": name,
            "gpu_workload_name": f"the {name}",
        }
        assert name not in values
        values[name] = series.value
    return values


def to_gateway(address: Address) -> Mapping[str, str]:
    return {"GATEWAY_ENDPOINT": str(address), "GATEWAY_INSECURE": "true"}


@every_file
def test_a_configuration_is_valid(file: Path) -> None:
    result = validate(file, environment=REQUIRED)
    assert (result.returncode, result.stderr) == (0, "")


# The one for Kubernetes needs an API server to start.
@pytest.mark.parametrize("name", [file.stem for file in FILES if file.stem != "kubernetes"])
def test_a_configuration_starts_without_a_warning(tmp_path: Path, name: str) -> None:
    with collector(shipped(name), directory=tmp_path, environment=to_closed_ports()) as one:
        assert warnings(one) == []


def test_a_deprecated_name_causes_a_warning(tmp_path: Path) -> None:
    old = json.dumps({"exporters": {"otlphttp": {"endpoint": f"http://{free_addresses(1)[0]}"}}})
    use = json.dumps({"service": {"pipelines": {"metrics": {"exporters": ["otlphttp"]}}}})
    with collector(shipped("debug"), f"yaml:{old}", f"yaml:{use}", directory=tmp_path) as one:
        assert any("otlp_http" in line for line in warnings(one))


# K8S_POD_IP is optional: without it a Collector listens on all addresses.
@pytest.mark.parametrize(
    ("file", "name"),
    [
        pytest.param(file, name, id=f"{file.stem}-{name}")
        for file in FILES
        for name in sorted(set(re.findall(r"\$\{env:(\w+)\}", file.read_text(encoding="utf-8"))) - {"K8S_POD_IP"})
    ],
)
def test_a_required_variable_must_be_set(file: Path, name: str) -> None:
    result = validate(file, environment={key: value for key, value in REQUIRED.items() if key != name})
    assert result.returncode != 0


@pytest.mark.parametrize(
    "broken",
    [
        "yaml:processors: {memory_limiter: {check_interval: 0s}}",
        "yaml:exporters: {no_such_exporter: {}}",
        "yaml:service: {pipelines: {metrics: {exporters: [missing]}}}",
        "yaml:receivers: {otlp: {protocols: {grpc: {no_such_setting: 1}}}}",
    ],
)
def test_an_invalid_configuration_is_rejected(broken: str) -> None:
    assert validate(shipped("debug"), broken, environment={}).returncode != 0


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_collector_forwards_what_official_exporters_send(tmp_path: Path, protocol: str) -> None:
    with backend(tmp_path) as (one, path):
        at = one.addresses
        exporter = over_http(at.otlp_http) if protocol == "http" else over_grpc(at.otlp_grpc)
        send(exporter, workloads({"one": 1.5, "two": 2.5}))
        one.process.until(lambda: len(workload_energies(read_file(path))) >= 2)
        assert workload_energies(read_file(path)) == [("one", 1.5), ("two", 2.5)]


def test_workloads_scraped_from_the_collector_have_their_own_labels(tmp_path: Path) -> None:
    with collector(shipped("prometheus-scrape"), directory=tmp_path) as one:
        send(over_http(one.addresses.otlp_http), workloads({"one": 1.5, "two": 2.5}))
        checked = promtool("check", "metrics", stdin=ask(one.addresses.prometheus, "/metrics").body)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
        with prometheus(one.addresses.prometheus, directory=tmp_path / "prometheus", honor_labels=True) as server:
            server.process.until(lambda: len(server.query(ENERGY)) == 2)
            assert all("job" in series.labels for series in server.query(ENERGY))
            assert by_workload(server.query(ENERGY)) == {"one": 1.5, "two": 2.5}
            assert by_workload(server.raw("gpu_workload_utilization_ratio")) == {"one": 0.5, "two": 0.5}


def test_workloads_written_to_prometheus_have_the_same_labels(tmp_path: Path) -> None:
    with prometheus(None, directory=tmp_path / "prometheus") as server:
        environment = {"REMOTE_WRITE_URL": server.remote_write_url}
        with collector(shipped("prometheus-remote-write"), directory=tmp_path, environment=environment) as one:
            send(over_grpc(one.addresses.otlp_grpc), workloads({"one": 1.5, "two": 2.5}))
            one.process.until(lambda: len(server.raw(ENERGY)) == 2)
            assert not any("job" in series.labels for series in server.query(ENERGY))
            assert by_workload(server.raw(ENERGY)) == {"one": 1.5, "two": 2.5}


def test_gateways_divide_the_workloads_and_keep_the_division(tmp_path: Path) -> None:
    joules = {f"workload-{number}": number + 0.5 for number in range(40)}
    members = [Addresses.free(), Addresses.free()]
    ring = "[" + ", ".join(str(member.member) for member in members) + "]"

    @contextmanager
    def member(name: str, at: Addresses) -> Iterator[Path]:
        """A gateway with a separate backend, whose file has the points of this gateway only."""
        with backend(tmp_path / name) as (last, path):
            environment = {"GATEWAY_MEMBERS": ring, "BACKEND_ENDPOINT": f"http://{last.addresses.otlp_http}"}
            with collector(shipped("gateway"), directory=tmp_path / name, addresses=at, environment=environment):
                yield path

    def node(entry: Addresses, directory: Path) -> AbstractContextManager[Collector]:
        return collector(shipped("node"), directory=directory, environment=to_gateway(entry.otlp_grpc))

    with (
        member("first", members[0]) as first,
        member("second", members[1]) as second,
        node(members[0], tmp_path / "one") as one,
        node(members[1], tmp_path / "two") as two,
    ):
        for sender in (one, two):
            send(over_grpc(sender.addresses.otlp_grpc), workloads(joules))

        def shares() -> list[Counter[tuple[str, float]]]:
            return [Counter(workload_energies(read_file(path))) for path in (first, second)]

        one.process.until(lambda: sum(map(Counter.total, shares())) >= 2 * len(joules))
        one_share, other_share = shares()
    assert one_share
    assert other_share
    assert one_share + other_share == Counter(dict.fromkeys(joules.items(), 2))
    assert set(one_share).isdisjoint(other_share)


def test_a_node_adds_only_the_name_of_the_host(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    with collector(shipped("node"), to_file(path), directory=tmp_path, environment=to_closed_ports()) as one:
        send(over_grpc(one.addresses.otlp_grpc), workloads({"one": 1.0}))
        one.process.until(lambda: bool(read_file(path)))
        [resource] = read_file(path)
    assert resource_attributes(resource) == {
        "gpu.workload.kind": "container",
        "gpu.workload.id": "one",
        "gpu.workload.name": "the one",
        "host.name": socket.gethostname(),
    }


def test_a_node_keeps_undelivered_data_when_it_is_killed(tmp_path: Path) -> None:
    gateway = Addresses.free()
    joules = {"one": 1.0, "two": 2.0}

    def node() -> AbstractContextManager[Collector]:
        environment = to_gateway(gateway.otlp_grpc)
        return collector(shipped("node"), directory=tmp_path / "node", environment=environment)

    with node() as one:
        send(over_http(one.addresses.otlp_http), workloads(joules))
        one.process.until(lambda: "Exporting failed" in one.log)
    assert one.process.process.returncode == -signal.SIGKILL
    with backend(tmp_path, gateway) as (last, path), node():
        last.process.until(lambda: bool(workload_energies(read_file(path))))
        assert workload_energies(read_file(path)) == list(joules.items())


def test_a_sidecar_adds_missing_names_of_its_pod(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    with collector(shipped("sidecar"), to_file(path), directory=tmp_path, environment=to_closed_ports()) as one:
        send(over_http(one.addresses.otlp_http), workloads({"one": 1.0}))
        one.process.until(lambda: bool(read_file(path)))
        [resource] = read_file(path)
    assert resource_attributes(resource) == {
        "gpu.workload.kind": "container",
        "gpu.workload.id": "one",
        "gpu.workload.name": "the one",
        "k8s.pod.uid": REQUIRED["K8S_POD_UID"],
        "k8s.pod.name": "train-0",
        "k8s.namespace.name": "ml",
        "k8s.node.name": "node-1",
    }


EXPOSITION = """\
# HELP gpu_workload_energy_joules_total Energy used
# TYPE gpu_workload_energy_joules_total counter
gpu_workload_energy_joules_total{hw_id="GPU-one",gpu_workload_id="one",k8s_pod_uid="",host_name="h"} 1.5
gpu_workload_energy_joules_total{hw_id="GPU-one",gpu_workload_id="two",k8s_pod_uid="u",host_name="h"} 2.5
# HELP otel_gpu_source_errors_total Errors
# TYPE otel_gpu_source_errors_total counter
otel_gpu_source_errors_total{otel_gpu_source="nvml",host_name="h"} 3
# HELP target_info Target metadata
# TYPE target_info gauge
target_info{service_name="otel-gpu",service_version="1"} 1
"""


def test_a_collector_that_scrapes_the_agent_restores_the_resource_of_each_workload(tmp_path: Path) -> None:
    def agent(_: WSGIEnvironment, start: StartResponse) -> Sequence[bytes]:
        start("200 OK", [("Content-Type", "text/plain; version=0.0.4")])
        return [EXPOSITION.encode()]

    path = tmp_path / "out.json"
    with serving(agent) as address:
        environment = {**to_closed_ports(), "AGENT_ADDRESS": str(address), "SCRAPE_INTERVAL": "1s"}
        with collector(shipped("scrape-agent"), to_file(path), directory=tmp_path, environment=environment) as one:
            one.process.until(lambda: ENERGY in {point.name for point in points_of(read_file(path))})
            exported = read_file(path)
    resources = [resource_attributes(each) for each in exported]
    assert {"gpu.workload.id": "one", "host.name": "h"} in resources
    assert {"gpu.workload.id": "two", "k8s.pod.uid": "u", "host.name": "h"} in resources
    assert any(one.get("service.version") == "1" and one.get("host.name") == "h" for one in resources)
    points = [point for point in points_of(exported) if point.name.startswith("otel_gpu")]
    keys = {key for point in points for key, _ in point.attributes}
    assert keys == {"otel_gpu.source"}


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({}, {}),
        (
            {"BACKEND_HEADERS": '{Authorization: "Bearer 01: 23", X-Scope: gpu}'},
            {"Authorization": "Bearer 01: 23", "X-Scope": "gpu"},
        ),
    ],
)
def test_a_backend_receives_the_configured_headers(
    tmp_path: Path, setting: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    seen: list[dict[str, str]] = []

    def answer(request: WSGIEnvironment, start: StartResponse) -> Sequence[bytes]:
        request["wsgi.input"].read(int(request["CONTENT_LENGTH"]))
        names = {"Authorization", "X-Scope", "Content-Encoding"}
        sent = {name: request.get("HTTP_" + name.upper().replace("-", "_")) for name in names}
        seen.append({name: value for name, value in sent.items() if value is not None})
        start("200 OK", [("Content-Type", "application/x-protobuf")])
        return [b""]

    with serving(answer) as address:
        environment = {"BACKEND_ENDPOINT": f"http://{address}", **setting}
        with collector(shipped("otlp-backend"), directory=tmp_path, environment=environment) as one:
            send(over_grpc(one.addresses.otlp_grpc), workloads({"one": 1.0}))
            one.process.until(lambda: bool(seen))
    assert seen[0] == {"Content-Encoding": "gzip", **expected}
