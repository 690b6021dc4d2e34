"""What goes over the wire, and what is made of the answers, with servers that play a Collector."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import grpc
import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # it has no types
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from otel_gpu.export.sender import TAKEN, Delivery
from tests.unit.export.collectors import (
    PROTOBUF,
    Answer,
    BlackHole,
    GrpcCollector,
    HttpCollector,
    Pki,
    data,
    sender,
    sent,
    trouble,
    unused_url,
)

T = TypeVar("T", HttpCollector, GrpcCollector)
Started = Callable[[T], T]


# ---------------------------------------------------------------------------- over HTTP


def test_metrics_are_posted_as_protobuf(collector: HttpCollector) -> None:
    assert sent(collector.url) == TAKEN
    (seen,) = collector.seen
    assert seen.path == "/v1/metrics"
    assert seen.headers["content-type"] == "application/x-protobuf"
    assert "content-encoding" not in seen.headers
    assert seen.request.resource_metrics[0].scope_metrics[0].metrics[0].name == "hw.power"


@pytest.mark.parametrize(
    ("path", "posted"), [("/", "/v1/metrics"), ("/a/b", "/a/b"), ("/.", "/"), ("/a?b=c", "/a?b=c")]
)
def test_a_path_is_used_as_it_is(collector: HttpCollector, path: str, posted: str) -> None:
    assert sent(collector.url + path) == TAKEN
    assert collector.seen[0].path == posted


def test_headers_and_gzip_are_sent(collector: HttpCollector) -> None:
    assert sent(collector.url, otlp_headers="Api-Key=a%20b,x=y", otlp_compression="gzip") == TAKEN
    (seen,) = collector.seen
    assert (seen.headers["api-key"], seen.headers["x"], seen.headers["content-encoding"]) == ("a b", "y", "gzip")


def test_a_second_request_uses_the_connection_of_the_first(collector: HttpCollector) -> None:
    threads = set()
    collector.answer = lambda _: (threads.add(threading.get_ident()), Answer(headers=PROTOBUF))[1]  # type: ignore[func-returns-value]
    with sender(collector.url) as made:
        assert [made.send(data()), made.send(data())] == [TAKEN, TAKEN]
    assert len(threads) == 1  # the server has a thread for each connection


def test_every_request_has_its_own_body_and_the_headers_of_the_first(collector: HttpCollector) -> None:
    metrics = [ResourceMetrics(schema_url="x" * size) for size in (7, 900, 0, 20)]
    bodies = [ExportMetricsServiceRequest(resource_metrics=[each]) for each in metrics]
    with sender(collector.url, otlp_headers="Api-Key=a") as made:
        assert [made.send(body.SerializeToString()) for body in bodies] == [TAKEN] * len(bodies)
    assert [seen.request for seen in collector.seen] == bodies
    first, *others = ({**seen.headers, "content-length": ""} for seen in collector.seen)
    assert others == [first] * len(others)


def test_a_cookie_that_a_receiver_sets_is_sent_back_from_then_on(collector: HttpCollector) -> None:
    collector.answer = lambda number: Answer(headers={**PROTOBUF, "Set-Cookie": f"node={number // 2}"})
    with sender(collector.url) as made:
        assert [made.send(data()) for _ in range(4)] == [TAKEN] * 4
    assert [seen.headers.get("cookie") for seen in collector.seen] == [None, "node=0", "node=0", "node=1"]


@pytest.mark.parametrize(
    ("answer", "kind", "text", "go_on"),
    [
        (Answer(400), "400", "HTTP 400 Bad Request", True),
        (
            Answer(400, Status(code=3, message="no such\ntenant").SerializeToString(), PROTOBUF),
            "400",
            "HTTP 400 Bad Request: no such tenant",
            True,
        ),
        (Answer(401, b"who are you?\n", {"content-type": "text/plain"}), "401", "Unauthorized: who are you?", True),
        (Answer(404, b"<html>nothing</html>", {"content-type": "text/html"}), "404", "HTTP 404 Not Found", True),
        (Answer(413), "413", "HTTP 413 ", True),
        (Answer(429, headers={"Retry-After": "60"}), "429", "HTTP 429 Too Many Requests", False),
        (Answer(503, headers={"Retry-After": "60"}), "503", "HTTP 503 Service Unavailable", False),
        (Answer(302, headers={"Location": "/login"}), "302", "HTTP 302 Found, to /login", False),
        (Answer(200, b"<html>hello</html>", {"content-type": "text/html"}), "garbage", "not OTLP", False),
        (Answer(200, b"\xff\xff\xff", PROTOBUF), "garbage", "not OTLP", False),
        (Answer(200, b"[1", {"content-type": "application/json"}), "garbage", "not OTLP", False),
        (Answer(200, b'{"error":"nope"}', {"content-type": "application/json"}), "garbage", "not OTLP", False),
        (Answer(200, b'["partialSuccess"]', {"content-type": "application/json"}), "garbage", "not OTLP", False),
        (Answer(200, b"0", {"content-type": "application/json"}), "garbage", "not OTLP", False),
        (Answer(200, b"x" * 1_000_000, {"content-type": "text/plain"}), "garbage", "not OTLP", False),
    ],
)
def test_an_answer_that_is_none_is_told_with_its_reason(
    collector: HttpCollector, answer: Answer, kind: str, text: str, go_on: bool
) -> None:
    collector.always(answer)
    delivery = sent(collector.url)
    found_kind, found_text = trouble(delivery)
    assert (delivery.taken, delivery.go_on) == (False, go_on)
    assert found_kind == kind
    assert text in found_text
    assert "\n" not in found_text
    assert len(collector.seen) == 1


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200),
        Answer(202, headers={"content-type": "text/plain"}),
        Answer(200, b"{}", {"content-type": "application/json; charset=utf-8"}),
        Answer(200, b'{"partialSuccess":{},"more":1}', {"content-type": "application/json"}),
        Answer(200, ExportMetricsServiceResponse().SerializeToString(), PROTOBUF),
    ],
)
def test_receivers_may_say_yes_in_several_ways(collector: HttpCollector, answer: Answer) -> None:
    collector.always(answer)
    assert sent(collector.url) == TAKEN


def test_points_that_were_rejected_are_told_though_the_request_was_taken(collector: HttpCollector) -> None:
    answer = ExportMetricsServiceResponse()
    answer.partial_success.rejected_data_points = 3
    answer.partial_success.error_message = "too old"
    collector.always(Answer(200, answer.SerializeToString(), PROTOBUF))
    delivery = sent(collector.url)
    assert delivery.taken
    assert trouble(delivery) == ("partial", "3 points were rejected: too old")


def test_a_receiver_that_recovers_within_the_timeout_is_tried_again(collector: HttpCollector) -> None:
    collector.answer = lambda number: Answer(503, headers={"Retry-After": "0"}) if number == 0 else Answer()
    assert sent(collector.url) == TAKEN
    assert len(collector.seen) == 2


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Answer(close=True), "the connection was closed without an answer"),
        (Answer(raw=b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), "the answer is not HTTP"),
        (Answer(raw=b"HTTP/1.1 999999 x\r\n\r\n"), "the answer is not HTTP"),
        (Answer(200, b"xx", {"content-encoding": "gzip"}), "while decompressing"),
    ],
)
def test_a_server_that_speaks_no_http_is_told(collector: HttpCollector, answer: Answer, text: str) -> None:
    collector.always(answer)
    delivery = sent(collector.url, 0.5)
    assert (delivery.taken, delivery.go_on) == (False, False)
    assert text in trouble(delivery)[1]


def test_a_receiver_that_is_not_there_is_told(collector: HttpCollector) -> None:
    assert trouble(sent(unused_url(), 0.5)) == ("unreachable", "connection refused")


def test_a_receiver_that_never_answers_is_told() -> None:
    hole = BlackHole()
    try:
        kind, text = trouble(sent(hole.url, 0.3))
    finally:
        hole.close()
    assert (kind, text) == ("unreachable", "no whole answer within 0.3 s")


def test_a_name_that_does_not_exist_is_told() -> None:
    kind, text = trouble(sent("http://collector.invalid:4318", 0.5))
    assert kind == "unreachable"
    assert "\n" not in text
    assert text


def test_waiting_to_try_again_ends_when_the_sender_is_closed(collector: HttpCollector) -> None:
    collector.always(Answer(503, headers={"Retry-After": "50"}))
    with sender(collector.url, 60.0) as made:
        found: list[Delivery] = []
        thread = threading.Thread(target=lambda: found.append(made.send(data())))
        thread.start()
        collector.arrived.get(timeout=10)
        made.close()
        thread.join(10)
        assert not thread.is_alive()
        assert trouble(found[0])[0] == "503"


def test_nothing_that_the_exporter_logs_gets_through(
    collector: HttpCollector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.always(Answer(400))
    with caplog.at_level(logging.WARNING):
        sent(collector.url)
        sent(unused_url(), 0.3)
        collector.always(Answer(raw=b"HTTP/1.1 200 OK\r\nno header\r\n: at all\r\n\r\n"))
        sent(collector.url, 0.3)
    assert caplog.records == []


# ---------------------------------------------------------------------------- variables that the SDK reads


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_variables_that_the_sdk_reads_change_nothing(
    collector: HttpCollector, grpc_collector: GrpcCollector, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    theirs = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://elsewhere.invalid",
        "OTEL_EXPORTER_OTLP_HEADERS": "leaked=yes",
        "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "leaked=too",
        "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT": "soon",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "never",
        "OTEL_EXPORTER_OTLP_METRICS_COMPRESSION": "none",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "brotli",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere.pem",
        "OTEL_EXPORTER_OTLP_METRICS_INSECURE": "false",
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "sometimes",
        "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER": "nobody",
        "OTEL_PYTHON_EXPORTER_OTLP_GRPC_CREDENTIAL_PROVIDER": "nobody",
        "OTEL_PYTHON_EXPORTER_OTLP_GRPC_RETRYABLE_ERROR_CODES": "WHATEVER",
    }
    for name, text in theirs.items():
        monkeypatch.setenv(name, text)
    used = collector if protocol == "http/protobuf" else grpc_collector
    assert sent(used.url, otlp_protocol=protocol) == TAKEN
    assert "leaked" not in used.seen[0].headers


def test_a_password_in_netrc_does_not_replace_a_header(
    collector: HttpCollector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert sent(collector.url, otlp_headers="authorization=Bearer abc") == TAKEN
    assert collector.seen[0].headers["authorization"] == "Bearer abc"


# ---------------------------------------------------------------------------- TLS


def test_a_certificate_of_an_authority_that_is_trusted_is_accepted(pki: Pki, started: Started[HttpCollector]) -> None:
    collector = started(HttpCollector(pki.context()))
    assert sent(collector.url, otlp_certificate=pki.file("ca.crt")) == TAKEN


def test_the_bundle_that_requests_prefers_does_not_replace_the_one_configured(
    pki: Pki, started: Started[HttpCollector], monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = started(HttpCollector(pki.context()))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere.pem")
    assert sent(collector.url, otlp_certificate=pki.file("ca.crt")) == TAKEN


def test_a_certificate_of_anybody_else_is_refused_with_the_reason(pki: Pki, started: Started[HttpCollector]) -> None:
    collector = started(HttpCollector(pki.context()))
    _, text = trouble(sent(collector.url, 0.5))
    assert text == "certificate verify failed: unable to get local issuer certificate"
    assert collector.seen == []


def test_plain_text_where_tls_is_spoken_and_the_other_way_round_are_told(
    pki: Pki, collector: HttpCollector, started: Started[HttpCollector]
) -> None:
    secured = started(HttpCollector(pki.context()))
    assert trouble(sent(secured.url.replace("https", "http"), 0.5))[1]
    assert trouble(sent(collector.url.replace("http", "https"), 0.5))[1].startswith("TLS failed: ")


@pytest.mark.parametrize("files", [("client.crt", "client.key"), ("both.pem", "")])
def test_a_client_certificate_opens_what_wants_one(
    pki: Pki, started: Started[HttpCollector], files: tuple[str, str]
) -> None:
    collector = started(HttpCollector(pki.context(mutual=True)))
    trusted = {"otlp_certificate": pki.file("ca.crt")}
    pair = {"otlp_client_certificate": pki.file(files[0])} | (
        {"otlp_client_key": pki.file(files[1])} if files[1] else {}
    )
    assert sent(collector.url, **trusted, **pair) == TAKEN
    assert not sent(collector.url, 0.5, **trusted).taken


@pytest.mark.parametrize("files", [("client.crt", "client.key"), ("both.pem", "")])
def test_over_grpc_alike(pki: Pki, started: Started[GrpcCollector], files: tuple[str, str]) -> None:
    collector = started(GrpcCollector(pki.credentials(mutual=True)))
    trusted = {"otlp_protocol": "grpc", "otlp_certificate": pki.file("ca.crt")}
    pair = {"otlp_client_certificate": pki.file(files[0])} | (
        {"otlp_client_key": pki.file(files[1])} if files[1] else {}
    )
    assert sent(collector.url, **trusted, **pair) == TAKEN
    assert not sent(collector.url, 0.5, **trusted).taken


def test_over_grpc_a_certificate_of_anybody_else_is_refused_with_the_reason(
    pki: Pki, started: Started[GrpcCollector]
) -> None:
    collector = started(GrpcCollector(pki.credentials()))
    assert sent(collector.url, otlp_protocol="grpc", otlp_certificate=pki.file("ca.crt")) == TAKEN
    kind, text = trouble(sent(collector.url, 0.5, otlp_protocol="grpc"))
    assert kind == "tls"
    assert "CERTIFICATE_VERIFY_FAILED" in text


# ---------------------------------------------------------------------------- over gRPC


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_metrics_go_over_grpc(grpc_collector: GrpcCollector, compression: str) -> None:
    flags = {"otlp_protocol": "grpc", "otlp_headers": "Api-Key=a%20b", "otlp_compression": compression}
    assert sent(grpc_collector.url, **flags) == TAKEN
    (seen,) = grpc_collector.seen
    assert seen.headers["api-key"] == "a b"
    assert seen.request.resource_metrics[0].scope_metrics[0].metrics[0].name == "hw.power"


def test_a_grpc_endpoint_may_do_without_a_scheme(grpc_collector: GrpcCollector) -> None:
    address = grpc_collector.url.partition("://")[2]
    assert sent(address, otlp_protocol="grpc", otlp_insecure="true") == TAKEN


@pytest.mark.parametrize(
    ("code", "kind", "go_on"),
    [
        ("INVALID_ARGUMENT", "INVALID_ARGUMENT", True),
        ("UNAUTHENTICATED", "UNAUTHENTICATED", True),
        ("UNIMPLEMENTED", "UNIMPLEMENTED", True),
        ("UNAVAILABLE", "unreachable", False),
    ],
)
def test_a_refusal_over_grpc_is_told_with_its_reason(
    grpc_collector: GrpcCollector, code: str, kind: str, go_on: bool
) -> None:
    grpc_collector.refusal = grpc.StatusCode[code], "not like this"
    delivery = sent(grpc_collector.url, 0.5, otlp_protocol="grpc")
    assert (delivery.taken, delivery.go_on) == (False, go_on)
    assert trouble(delivery) == (kind, f"gRPC {code}: not like this")


def test_another_refusal_right_after_is_told_as_another(grpc_collector: GrpcCollector) -> None:
    with sender(grpc_collector.url, 0.5, otlp_protocol="grpc") as made:
        kinds = []
        for code in ("INVALID_ARGUMENT", "PERMISSION_DENIED", "INTERNAL"):
            grpc_collector.refusal = grpc.StatusCode[code], "no"
            kinds.append(trouble(made.send(data()))[0])
    assert kinds == ["INVALID_ARGUMENT", "PERMISSION_DENIED", "INTERNAL"]


def test_a_grpc_receiver_that_is_not_there_is_told(caplog: pytest.LogCaptureFixture) -> None:
    kind, text = trouble(sent(unused_url(), 0.5, otlp_protocol="grpc"))
    assert kind == "unreachable"
    assert "Connection refused" in text
    assert caplog.records == []


def test_a_grpc_receiver_that_never_answers_is_told(grpc_collector: GrpcCollector) -> None:
    grpc_collector.hang.clear()
    assert trouble(sent(grpc_collector.url, 0.3, otlp_protocol="grpc"))[0] == "unreachable"


def test_a_call_under_way_ends_when_the_sender_is_closed(grpc_collector: GrpcCollector) -> None:
    grpc_collector.hang.clear()
    with sender(grpc_collector.url, 60.0, otlp_protocol="grpc") as made:
        found: list[Delivery] = []
        thread = threading.Thread(target=lambda: found.append(made.send(data())))
        thread.start()
        grpc_collector.arrived.get(timeout=10)
        made.close()
        thread.join(10)
        assert not thread.is_alive()
        assert not found[0].taken
