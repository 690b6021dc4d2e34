from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import pytest

from otel_gpu.config import Config, load
from otel_gpu.config.values import Address
from otel_gpu.doctor.endpoints import check_address, check_otlp, endpoint_checks
from otel_gpu.doctor.findings import Finding, Verdict
from otel_gpu.web.response import Response
from tests.unit.export.collectors import Answer, BlackHole, GrpcCollector, HttpCollector, Pki, unused_url
from tests.web import serving


def config(**flags: str) -> Config:
    return load({key.replace("_", "-"): value for key, value in flags.items()}, {}).config


@pytest.fixture
def collector() -> Iterator[HttpCollector]:
    receiver = HttpCollector()
    yield receiver
    receiver.close()


# ---------------------------------------------------------------------------- OTLP


def test_a_collector_that_accepts_an_empty_request_is_ok(collector: HttpCollector) -> None:
    found = check_otlp(config(otlp_endpoint=collector.url, otlp_headers="api-key=secret"))
    assert found == Finding("otlp", Verdict.OK, f"{collector.url} (http/protobuf) accepted an empty request")
    (seen,) = collector.seen
    assert len(seen.request.resource_metrics) == 0
    assert seen.headers["api-key"] == "secret"  # the agent's own headers are sent


def test_a_grpc_collector_is_probed() -> None:
    receiver = GrpcCollector()
    try:
        found = check_otlp(config(otlp_endpoint=receiver.url, otlp_protocol="grpc"))
    finally:
        receiver.close()
    assert found == Finding("otlp", Verdict.OK, f"{receiver.url} (grpc) accepted an empty request")


def test_a_refused_connection_is_degraded_with_a_fix() -> None:
    url = unused_url()
    found = check_otlp(config(otlp_endpoint=url), timeout_s=0.3)
    assert (found.verdict, found.found) == (Verdict.DEGRADED, f"{url} (http/protobuf): connection refused")
    assert "--otlp-endpoint" in (found.fix or "")


def test_a_receiver_without_an_answer_is_degraded_after_the_timeout() -> None:
    hole = BlackHole()
    try:
        found = check_otlp(config(otlp_endpoint=hole.url), timeout_s=0.3)
    finally:
        hole.close()
    assert found.verdict is Verdict.DEGRADED
    assert "no whole answer" in found.found


@pytest.mark.parametrize(
    ("status", "fix"),
    [
        (HTTPStatus.UNAUTHORIZED, "--otlp-headers authorization=…"),
        (HTTPStatus.FORBIDDEN, "--otlp-headers authorization=…"),
        (HTTPStatus.NOT_FOUND, "/v1/metrics"),
        (HTTPStatus.IM_A_TEAPOT, "--otlp-protocol grpc"),
    ],
)
def test_a_refusal_is_reported_with_the_setting_that_fixes_it(
    collector: HttpCollector, status: HTTPStatus, fix: str
) -> None:
    collector.always(Answer(status))
    found = check_otlp(config(otlp_endpoint=collector.url))
    assert found.verdict is Verdict.DEGRADED
    assert str(status.value) in found.found
    assert fix in (found.fix or "")


def test_an_untrusted_certificate_is_reported_with_the_setting_that_fixes_it(tmp_path: Path) -> None:
    receiver = HttpCollector(Pki(tmp_path).context())
    try:
        found = check_otlp(config(otlp_endpoint=receiver.url), timeout_s=1.0)
    finally:
        receiver.close()
    assert found.verdict is Verdict.DEGRADED
    assert "--otlp-certificate" in (found.fix or "")


def test_a_certificate_of_another_host_is_a_tls_failure_over_grpc_as_well(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    receiver = GrpcCollector(pki.credentials(), host="127.0.0.2")  # it is not in the certificate
    trusted = config(otlp_endpoint=receiver.url, otlp_protocol="grpc", otlp_certificate=pki.file("ca.crt"))
    try:
        found = check_otlp(trusted, timeout_s=2.0)
    finally:
        receiver.close()
    assert found.verdict is Verdict.DEGRADED
    assert "Hostname Verification" in found.found
    assert "a host name from its certificate" in (found.fix or "")


# ---------------------------------------------------------------------------- addresses


def address(listening: socket.socket) -> Address:
    return Address("127.0.0.1", listening.getsockname()[1])


def check(at: Address, web_config: Path | None = None) -> Finding:
    return check_address("listen", at, web_config, "the page", "--listen HOST:PORT")


def test_a_free_address_is_ok_and_stays_free() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = address(probe)
    for _ in range(2):
        assert check(free) == Finding("listen", Verdict.OK, f"{free} is free for the page")


def test_a_running_agent_is_recognised_by_its_answer() -> None:
    with serving({"/healthz": lambda _: Response("ok\n")}) as server:
        assert check(server.address) == Finding("listen", Verdict.OK, f"{server.address}: a running agent answers")


def test_an_address_of_another_program_is_degraded_with_the_command_that_finds_it(collector: HttpCollector) -> None:
    at = Address("127.0.0.1", int(collector.url.rpartition(":")[2]))
    found = check(at)
    assert found.verdict is Verdict.DEGRADED
    assert "in use by another program" in found.found
    assert found.fix == f"to find the program: ss -ltnp 'sport = :{at.port}'; or --listen HOST:PORT"


def test_a_silent_listener_is_not_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_gpu.doctor.endpoints._HTTP_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert check(address(silent)).verdict is Verdict.DEGRADED


TLS = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
MUTUAL = TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"
PASSWORD = "basic_auth_users:\n  alice: $2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG\n"


@pytest.fixture
def web_config(tmp_path: Path) -> Path:
    """A web configuration with TLS, next to its files."""
    pki = Pki(tmp_path)
    pki.server.cert_chain_pems[0].write_to_path(tmp_path / "server.crt")
    pki.server.private_key_pem.write_to_path(tmp_path / "server.key")
    path = tmp_path / "web.yml"
    path.write_text(TLS, encoding="utf-8")
    return path


@pytest.mark.parametrize("text", [TLS, MUTUAL, PASSWORD, TLS + PASSWORD], ids=["tls", "mutual", "password", "both"])
def test_an_agent_with_tls_or_a_password_is_recognised(
    text: str, web_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_gpu.doctor.endpoints._HTTP_TIMEOUT_S", 30.0)
    web_config.write_text(text, encoding="utf-8")
    with serving({"/healthz": lambda _: Response("ok\n")}, web_config=web_config) as server:
        found = check(server.address, web_config)
    assert found == Finding("listen", Verdict.OK, f"{server.address}: a running agent answers")


def test_another_program_is_degraded_even_with_a_web_config(web_config: Path, collector: HttpCollector) -> None:
    for other in (collector, HttpCollector(Pki(web_config.parent).context())):
        found = check(Address("127.0.0.1", int(other.url.rpartition(":")[2])), web_config)
        other.close()
        assert found.verdict is Verdict.DEGRADED
        assert "in use by another program" in found.found


def test_a_silent_listener_is_not_an_agent_if_the_web_config_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_gpu.doctor.endpoints._HTTP_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert check(address(silent), tmp_path / "web.yml").verdict is Verdict.DEGRADED


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "::2"])
def test_an_address_of_another_host_is_degraded(host: str) -> None:
    found = check(Address(host, 9464))
    assert found.verdict is Verdict.DEGRADED
    assert found.found.startswith("cannot listen on ")
    assert found.fix == "--listen HOST:PORT"


# ---------------------------------------------------------------------------- list of checks


def subjects(**flags: str) -> list[str]:
    return [subject for subject, _ in endpoint_checks(config(**flags))]


def test_every_exporter_and_address_has_a_check() -> None:
    assert subjects() == ["otlp", "listen"]
    assert subjects(exporters="none") == ["exporters", "listen"]
    assert subjects(exporters="console,prometheus") == ["console", "listen"]
    assert subjects(exporters="none", prometheus="on") == ["listen"]
    assert subjects(compat="dcgm-exporter,gpu-inference")[2:] == ["compat dcgm-exporter", "compat gpu-inference"]


def test_the_listening_address_is_for_the_page_whatever_else_listens() -> None:
    checks = dict(endpoint_checks(config(listen="127.0.0.1:0", compat="dcgm-exporter", exporters="none")))
    assert checks["listen"]().found.endswith("is free for the page (--prometheus adds /metrics)")


def test_each_compat_listener_is_checked_at_its_own_port() -> None:
    with socket.socket() as probe, socket.create_server(("127.0.0.1", 0)) as listening:
        probe.bind(("127.0.0.1", 0))
        free, taken = address(probe).port, address(listening).port
        probe.close()
        chosen = config(compat=f"dcgm-exporter:{taken},gpu-inference:{free}", exporters="none")
        checks = endpoint_checks(replace(chosen, web=replace(chosen.web, config_file=Path("/nowhere"))))
        found = [check() for subject, check in checks if subject.startswith("compat")]
    assert [finding.subject for finding in found] == ["compat dcgm-exporter", "compat gpu-inference"]
    assert f"127.0.0.1:{taken} is in use" in found[0].found
    assert found[0].fix is not None
    assert found[0].fix.endswith("--compat dcgm-exporter:PORT")
    assert found[1].found == f"127.0.0.1:{free} is free for the metrics of gpu-inference"
