"""Receivers that answer late, with another protocol, or accept only a part."""

from __future__ import annotations

import http.client
import ssl

import pytest

from otel_gpu.export.otlp_http import transport_failure
from otel_gpu.export.sender import ACCEPTED, rejected_points
from tests.unit.export.collectors import Answer, GrpcCollector, HttpCollector, data, failure, sender, sent

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n"


# ---------------------------------------------------------------------------- late


@pytest.mark.parametrize(
    "answer",
    [
        Answer(raw=OK + b"Content-Length: 60\r\n\r\n", drip=b" " * 60),
        Answer(raw=OK + b"X: ", drip=b"y" * 60 + b"\r\nContent-Length: 0\r\n\r\n"),
        Answer(raw=OK + b"Transfer-Encoding: chunked\r\n\r\n3c\r\n", drip=b" " * 60 + b"\r\n0\r\n\r\n"),
    ],
    ids=["body", "headers", "chunks"],
)
def test_an_answer_that_arrives_byte_by_byte_ends_at_the_deadline(collector: HttpCollector, answer: Answer) -> None:
    """It would be complete after three seconds, and each single read is in time."""
    collector.always(answer)
    result = sent(collector.url, 0.5)
    assert failure(result) == ("unreachable", "no whole answer within 0.5 s")
    assert not result.accepted


def test_the_request_after_a_late_answer_reads_its_own_answer(collector: HttpCollector) -> None:
    slow = Answer(raw=OK + b"Content-Length: 60\r\n\r\n", drip=b" " * 60)
    collector.answer = lambda number: slow if number == 0 else Answer()
    with sender(collector.url, 0.5) as made:
        assert failure(made.send(data()))[0] == "unreachable"
        assert made.send(data()) == ACCEPTED


# ---------------------------------------------------------------------------- another protocol


def test_http_to_a_grpc_port_is_one_kind_of_failure_with_a_hint(grpc_collector: GrpcCollector) -> None:
    kind, text = failure(sent(grpc_collector.url, 0.5))
    assert kind == "protocol"
    assert text.endswith("; 4317 is usually gRPC: --otlp-protocol grpc")


def test_grpc_to_an_http_port_is_one_kind_of_failure_with_a_hint(collector: HttpCollector) -> None:
    kind, text = failure(sent(collector.url, 1.0, otlp_protocol="grpc"))
    assert kind == "protocol"
    assert text.endswith("; 4318 is usually HTTP: --otlp-protocol http/protobuf")


FAILURES = [
    http.client.BadStatusLine("x"),
    http.client.RemoteDisconnected("closed"),
    ConnectionResetError(104, "Connection reset by peer"),
    BrokenPipeError(32, "Broken pipe"),
]


def test_all_reactions_of_a_grpc_server_to_http_are_one_kind_of_failure() -> None:
    found = [transport_failure(error, 1.0, 4317) for error in FAILURES]
    assert {each.kind for each in found} == {"protocol"}
    assert all("--otlp-protocol grpc" in each.text for each in found)


def test_transport_failures_have_three_kinds() -> None:
    others = [ConnectionRefusedError(111, "Connection refused"), TimeoutError(), OSError(113, "No route to host")]
    kinds = [transport_failure(error, 1.0, 4318).kind for error in (*FAILURES, *others, ssl.SSLError(1, "x"))]
    assert kinds == ["protocol"] + ["unreachable"] * 6 + ["tls"]


# ---------------------------------------------------------------------------- partial success


def test_a_receiver_that_only_warns_has_rejected_nothing() -> None:
    assert rejected_points(0, "please use gzip") is None


def test_points_rejected_over_grpc_are_reported(grpc_collector: GrpcCollector) -> None:
    partial_success = grpc_collector.answer.partial_success
    partial_success.rejected_data_points, partial_success.error_message = 42, "too\nold"
    result = sent(grpc_collector.url, otlp_protocol="grpc")
    assert result.accepted
    assert failure(result) == ("partial", "42 points were rejected: too old")
