"""Requests and their results, with stand-ins for a Collector."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import grpc
import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # it has no types
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from otel_gpu.export.sender import ACCEPTED, ExportResult
from otel_gpu.metrics.series import Point
from tests.unit.export.collectors import (
    PROTOBUF,
    Answer,
    BlackHole,
    GrpcCollector,
    HttpCollector,
    Pki,
    data,
    failure,
    sender,
    sent,
    unused_url,
)
from tests.unit.export.samples import GPU, batch, collection

T = TypeVar("T", HttpCollector, GrpcCollector)
Started = Callable[[T], T]


# ---------------------------------------------------------------------------- over HTTP


def test_metrics_are_posted_as_protobuf(collector: HttpCollector) -> None:
    assert sent(collector.url) == ACCEPTED
    (seen,) = collector.seen
    assert seen.path == "/v1/metrics"
    assert seen.headers["content-type"] == "application/x-protobuf"
    assert "content-encoding" not in seen.headers
    assert seen.request.resource_metrics[0].scope_metrics[0].metrics[0].name == "hw.power"


@pytest.mark.parametrize(
    ("path", "posted"), [("/", "/v1/metrics"), ("/a/b", "/a/b"), ("/.", "/"), ("/a?b=c", "/a?b=c")]
)
def test_a_path_is_used_as_it_is(collector: HttpCollector, path: str, posted: str) -> None:
    assert sent(collector.url + path) == ACCEPTED
    assert collector.seen[0].path == posted


def test_headers_and_gzip_are_sent(collector: HttpCollector) -> None:
    assert sent(collector.url, otlp_headers="Api-Key=a%20b,x=y", otlp_compression="gzip") == ACCEPTED
    (seen,) = collector.seen
    assert (seen.headers["api-key"], seen.headers["x"], seen.headers["content-encoding"]) == ("a b", "y", "gzip")


def test_every_request_has_its_own_body_and_the_same_headers(collector: HttpCollector) -> None:
    texts = ["x" * size for size in (7, 900, 0, 20)]
    with sender(collector.url, otlp_headers="Api-Key=a") as made:
        for text in texts:
            point = Point(1.0, {**GPU, "text": text})
            assert made.send(batch(collection({"hw.power": [point]}))) == ACCEPTED
    metrics = [seen.request.resource_metrics[0].scope_metrics[0].metrics[0] for seen in collector.seen]
    assert [metric.gauge.data_points[0].attributes[-1].value.string_value for metric in metrics] == texts
    first, *others = ({**seen.headers, "content-length": ""} for seen in collector.seen)
    assert others == [first] * len(others)


def test_a_cookie_of_the_receiver_is_sent_with_later_requests(collector: HttpCollector) -> None:
    collector.answer = lambda number: Answer(headers={**PROTOBUF, "Set-Cookie": f"node={number // 2}"})
    with sender(collector.url) as made:
        assert [made.send(data()) for _ in range(4)] == [ACCEPTED] * 4
    assert [seen.headers.get("cookie") for seen in collector.seen] == [None, "node=0", "node=0", "node=1"]


@pytest.mark.parametrize(
    ("answer", "kind", "text", "try_next"),
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
def test_an_answer_that_is_not_a_success_is_a_failure_with_its_reason(
    collector: HttpCollector, answer: Answer, kind: str, text: str, try_next: bool
) -> None:
    collector.always(answer)
    result = sent(collector.url)
    found_kind, found_text = failure(result)
    assert (result.accepted, result.try_next) == (False, try_next)
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
def test_a_success_has_several_forms(collector: HttpCollector, answer: Answer) -> None:
    collector.always(answer)
    assert sent(collector.url) == ACCEPTED


def test_rejected_points_of_an_accepted_request_are_a_failure(collector: HttpCollector) -> None:
    answer = ExportMetricsServiceResponse()
    answer.partial_success.rejected_data_points = 3
    answer.partial_success.error_message = "too old"
    collector.always(Answer(200, answer.SerializeToString(), PROTOBUF))
    result = sent(collector.url)
    assert result.accepted
    assert failure(result) == ("partial", "3 points were rejected: too old")


def test_a_value_that_cannot_be_encoded_is_a_failure_of_its_request_alone(collector: HttpCollector) -> None:
    with sender(collector.url) as made:
        result = made.send(batch(collection({"hw.power": [Point(2**70, GPU)]})))
        assert (result.accepted, result.try_next) == (False, True)
        assert len(failure(result)[1]) <= 200
        assert made.send(data()) == ACCEPTED


def test_a_request_is_retried_while_the_receiver_is_busy(collector: HttpCollector) -> None:
    collector.answer = lambda number: Answer(503, headers={"Retry-After": "0"}) if number == 0 else Answer()
    assert sent(collector.url) == ACCEPTED
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
def test_an_answer_that_is_not_http_is_a_failure(collector: HttpCollector, answer: Answer, text: str) -> None:
    collector.always(answer)
    result = sent(collector.url, 0.5)
    assert (result.accepted, result.try_next) == (False, False)
    assert text in failure(result)[1]


def test_an_absent_receiver_is_a_failure(collector: HttpCollector) -> None:
    assert failure(sent(unused_url(), 0.5)) == ("unreachable", "connection refused")


def test_a_receiver_that_never_answers_is_a_failure() -> None:
    hole = BlackHole()
    try:
        kind, text = failure(sent(hole.url, 0.3))
    finally:
        hole.close()
    assert (kind, text) == ("unreachable", "no whole answer within 0.3 s")


def test_an_unknown_host_name_is_a_failure() -> None:
    kind, text = failure(sent("http://collector.invalid:4318", 0.5))
    assert kind == "unreachable"
    assert "\n" not in text
    assert text


def test_waiting_for_a_retry_ends_when_the_sender_is_closed(collector: HttpCollector) -> None:
    collector.always(Answer(503, headers={"Retry-After": "50"}))
    with sender(collector.url, 60.0) as made:
        found: list[ExportResult] = []
        thread = threading.Thread(target=lambda: found.append(made.send(data())))
        thread.start()
        collector.arrived.get(timeout=10)
        made.close()
        thread.join(10)
        assert not thread.is_alive()
        assert failure(found[0])[0] == "503"


def test_log_lines_of_the_client_are_not_shown(collector: HttpCollector, caplog: pytest.LogCaptureFixture) -> None:
    collector.always(Answer(400))
    with caplog.at_level(logging.WARNING):
        sent(collector.url)
        sent(unused_url(), 0.3)
        collector.always(Answer(raw=b"HTTP/1.1 200 OK\r\nno header\r\n: at all\r\n\r\n"))
        sent(collector.url, 0.3)
    assert caplog.records == []


def test_pauses_between_attempts_grow_and_end_with_the_time_of_the_request(collector: HttpCollector) -> None:
    times_s: list[float] = []
    collector.answer = lambda _: (times_s.append(time.monotonic()), Answer(503))[1]  # type: ignore[func-returns-value]
    began_s = time.monotonic()
    assert failure(sent(collector.url, 4.0))[0] == "503"
    assert time.monotonic() - began_s < 4.0
    first, second, *_ = [after - before for before, after in itertools.pairwise(times_s)]
    assert 0.8 <= first <= second
    assert second >= 1.6


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_receiver_that_is_always_ready_for_a_retry_gets_few(
    collector: HttpCollector, grpc_collector: GrpcCollector, protocol: str
) -> None:
    collector.always(Answer(429, headers={"Retry-After": "0"}))
    grpc_collector.refusal = grpc.StatusCode.RESOURCE_EXHAUSTED, "full"
    grpc_collector.retry_after_s = 0.0
    used = collector if protocol == "http/protobuf" else grpc_collector
    assert not sent(used.url, 60.0, otlp_protocol=protocol).accepted
    assert len(used.seen) == 6


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_time_to_retry_may_be_a_date(collector: HttpCollector, status: int) -> None:
    past = {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}
    collector.answer = lambda number: Answer(status, headers=past) if number == 0 else Answer()
    began_s = time.monotonic()
    assert sent(collector.url) == ACCEPTED
    assert time.monotonic() - began_s < 0.75  # without a time it would be 0.8 s at least


@pytest.mark.parametrize("text", ["soon", "-1", "1.5", "", "\xb2", "Fri, 31 Dec 99999999999 23:59:59 GMT"])
def test_an_invalid_time_to_retry_is_ignored(collector: HttpCollector, text: str) -> None:
    collector.answer = lambda number: Answer(503, headers={"Retry-After": text}) if number == 0 else Answer()
    began_s = time.monotonic()
    assert sent(collector.url) == ACCEPTED
    assert time.monotonic() - began_s >= 0.8


def test_only_the_beginning_of_a_long_redirect_is_read(collector: HttpCollector) -> None:
    head = b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 9000000000\r\n\r\n"
    collector.always(Answer(raw=head + b"x" * 100_000, drip=b"x" * 1000))
    assert failure(sent(collector.url)) == ("302", "HTTP 302 Found, to /login")
    assert [seen.path for seen in collector.seen] == ["/v1/metrics"]


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
    assert sent(used.url, otlp_protocol=protocol) == ACCEPTED
    assert "leaked" not in used.seen[0].headers


def test_a_password_in_netrc_does_not_replace_a_header(
    collector: HttpCollector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert sent(collector.url, otlp_headers="authorization=Bearer abc") == ACCEPTED
    assert collector.seen[0].headers["authorization"] == "Bearer abc"


# ---------------------------------------------------------------------------- TLS


def test_a_certificate_of_a_trusted_authority_is_accepted(pki: Pki, started: Started[HttpCollector]) -> None:
    collector = started(HttpCollector(pki.context()))
    assert sent(collector.url, otlp_certificate=pki.file("ca.crt")) == ACCEPTED


def test_the_environments_bundle_is_used_where_no_certificates_are_configured(
    pki: Pki, started: Started[HttpCollector], monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = started(HttpCollector(pki.context()))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", pki.file("ca.crt"))
    assert sent(collector.url) == ACCEPTED


def test_the_environments_bundle_does_not_replace_the_configured_certificates(
    pki: Pki, started: Started[HttpCollector], monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = started(HttpCollector(pki.context()))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere.pem")
    assert sent(collector.url, otlp_certificate=pki.file("ca.crt")) == ACCEPTED


def test_a_certificate_of_another_authority_is_refused_with_the_reason(
    pki: Pki, started: Started[HttpCollector]
) -> None:
    collector = started(HttpCollector(pki.context()))
    _, text = failure(sent(collector.url, 0.5))
    assert text == "certificate verify failed: unable to get local issuer certificate"
    assert collector.seen == []


def test_plain_text_to_a_tls_port_and_tls_to_a_plain_port_are_failures(
    pki: Pki, collector: HttpCollector, started: Started[HttpCollector]
) -> None:
    secured = started(HttpCollector(pki.context()))
    assert failure(sent(secured.url.replace("https", "http"), 0.5))[1]
    assert failure(sent(collector.url.replace("http", "https"), 0.5))[1].startswith("TLS failed: ")


@pytest.mark.parametrize("files", [("client.crt", "client.key"), ("both.pem", "")])
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_client_certificate_is_presented(pki: Pki, protocol: str, files: tuple[str, str]) -> None:
    trusted = {"otlp_protocol": protocol, "otlp_certificate": pki.file("ca.crt")}
    pair = {"otlp_client_certificate": pki.file(files[0])} | (
        {"otlp_client_key": pki.file(files[1])} if files[1] else {}
    )
    collector = (
        GrpcCollector(pki.credentials(mutual=True)) if protocol == "grpc" else HttpCollector(pki.context(mutual=True))
    )
    with closing(collector):
        assert sent(collector.url, **trusted, **pair) == ACCEPTED
        assert not sent(collector.url, 0.5, **trusted).accepted


def test_over_grpc_a_certificate_of_another_authority_is_refused_with_the_reason(
    pki: Pki, started: Started[GrpcCollector]
) -> None:
    collector = started(GrpcCollector(pki.credentials()))
    assert sent(collector.url, otlp_protocol="grpc", otlp_certificate=pki.file("ca.crt")) == ACCEPTED
    kind, text = failure(sent(collector.url, 0.5, otlp_protocol="grpc"))
    assert kind == "tls"
    assert "CERTIFICATE_VERIFY_FAILED" in text


# ---------------------------------------------------------------------------- over gRPC


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_metrics_go_over_grpc(grpc_collector: GrpcCollector, compression: str) -> None:
    flags = {"otlp_protocol": "grpc", "otlp_headers": "Api-Key=a%20b", "otlp_compression": compression}
    assert sent(grpc_collector.url, **flags) == ACCEPTED
    (seen,) = grpc_collector.seen
    assert seen.headers["api-key"] == "a b"
    assert seen.request.resource_metrics[0].scope_metrics[0].metrics[0].name == "hw.power"


def test_a_grpc_endpoint_needs_no_scheme(grpc_collector: GrpcCollector) -> None:
    address = grpc_collector.url.partition("://")[2]
    assert sent(address, otlp_protocol="grpc", otlp_insecure="true") == ACCEPTED


@pytest.mark.parametrize(
    ("code", "kind", "try_next"),
    [
        ("INVALID_ARGUMENT", "INVALID_ARGUMENT", True),
        ("UNAUTHENTICATED", "UNAUTHENTICATED", True),
        ("UNIMPLEMENTED", "UNIMPLEMENTED", True),
        ("UNAVAILABLE", "unreachable", False),
    ],
)
def test_a_refusal_over_grpc_is_a_failure_with_its_reason(
    grpc_collector: GrpcCollector, code: str, kind: str, try_next: bool
) -> None:
    grpc_collector.refusal = grpc.StatusCode[code], "not like this"
    result = sent(grpc_collector.url, 0.5, otlp_protocol="grpc")
    assert (result.accepted, result.try_next) == (False, try_next)
    assert failure(result) == (kind, f"gRPC {code}: not like this")


@pytest.mark.parametrize("code", ["UNAVAILABLE", "ABORTED", "OUT_OF_RANGE", "DATA_LOSS"])
def test_a_call_is_retried_after_codes_that_may_pass(grpc_collector: GrpcCollector, code: str) -> None:
    grpc_collector.refusal = grpc.StatusCode[code], "not now"
    grpc_collector.refusals = 1
    assert sent(grpc_collector.url, otlp_protocol="grpc") == ACCEPTED
    assert len(grpc_collector.seen) == 2


@pytest.mark.parametrize(("retry_after_s", "calls"), [(0.0, 2), (60.0, 1), (None, 1)])
def test_an_exhausted_receiver_is_called_again_when_it_says_so(
    grpc_collector: GrpcCollector, retry_after_s: float | None, calls: int
) -> None:
    grpc_collector.refusal = grpc.StatusCode.RESOURCE_EXHAUSTED, "full"
    grpc_collector.refusals, grpc_collector.retry_after_s = 1, retry_after_s
    result = sent(grpc_collector.url, 5.0, otlp_protocol="grpc")
    assert (result.accepted, len(grpc_collector.seen)) == (calls == 2, calls)
    assert result.accepted or failure(result) == ("RESOURCE_EXHAUSTED", "gRPC RESOURCE_EXHAUSTED: full")


def test_invalid_details_of_a_status_are_ignored(grpc_collector: GrpcCollector) -> None:
    grpc_collector.refusal = grpc.StatusCode.INVALID_ARGUMENT, "no"
    grpc_collector.details = b"\xff\xff"
    assert failure(sent(grpc_collector.url, otlp_protocol="grpc"))[0] == "INVALID_ARGUMENT"


def test_a_grpc_receiver_that_comes_back_is_found_again() -> None:
    first = GrpcCollector()
    with sender(first.url, 10.0, otlp_protocol="grpc") as made:
        assert made.send(data()) == ACCEPTED
        first.close()
        began_s = time.monotonic()
        results: list[ExportResult] = []
        thread = threading.Thread(target=lambda: results.append(made.send(data())))
        thread.start()
        time.sleep(0.5)
        second = GrpcCollector(port=first.port)
        thread.join(20)
        second.close()
        assert results == [ACCEPTED]
        assert time.monotonic() - began_s < 10


def test_consecutive_refusals_over_grpc_keep_their_own_reasons(grpc_collector: GrpcCollector) -> None:
    with sender(grpc_collector.url, 0.5, otlp_protocol="grpc") as made:
        kinds = []
        for code in ("INVALID_ARGUMENT", "PERMISSION_DENIED", "INTERNAL"):
            grpc_collector.refusal = grpc.StatusCode[code], "no"
            kinds.append(failure(made.send(data()))[0])
    assert kinds == ["INVALID_ARGUMENT", "PERMISSION_DENIED", "INTERNAL"]


def test_an_absent_grpc_receiver_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    kind, text = failure(sent(unused_url(), 0.5, otlp_protocol="grpc"))
    assert kind == "unreachable"
    assert "Connection refused" in text
    assert caplog.records == []


def test_a_grpc_receiver_that_never_answers_is_a_failure(grpc_collector: GrpcCollector) -> None:
    grpc_collector.hang.clear()
    assert failure(sent(grpc_collector.url, 0.3, otlp_protocol="grpc"))[0] == "unreachable"


def test_a_grpc_call_in_progress_ends_when_the_sender_is_closed(grpc_collector: GrpcCollector) -> None:
    grpc_collector.hang.clear()
    with sender(grpc_collector.url, 60.0, otlp_protocol="grpc") as made:
        found: list[ExportResult] = []
        thread = threading.Thread(target=lambda: found.append(made.send(data())))
        thread.start()
        grpc_collector.arrived.get(timeout=10)
        made.close()
        thread.join(10)
        assert not thread.is_alive()
        assert not found[0].accepted
