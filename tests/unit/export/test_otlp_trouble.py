"""Receivers that answer late, in another language, or with less than a yes."""

from __future__ import annotations

import http.client
import ssl

import grpc
import pytest

from otel_gpu.export.otlp_http import _trouble
from otel_gpu.export.sender import TAKEN, rejected
from tests.unit.export.collectors import Answer, GrpcCollector, HttpCollector, data, sender, sent, trouble

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
def test_an_answer_that_comes_byte_by_byte_is_given_up_when_the_time_is(
    collector: HttpCollector, answer: Answer
) -> None:
    """It would be complete after three seconds, and each byte is in time."""
    collector.always(answer)
    delivery = sent(collector.url, 0.5)
    assert trouble(delivery) == ("unreachable", "no whole answer within 0.5 s")
    assert not delivery.taken


def test_after_an_answer_that_was_given_up_the_next_is_read_from_its_beginning(collector: HttpCollector) -> None:
    slow = Answer(raw=OK + b"Content-Length: 60\r\n\r\n", drip=b" " * 60)
    collector.answer = lambda number: slow if number == 0 else Answer()
    with sender(collector.url, 0.5) as made:
        assert trouble(made.send(data()))[0] == "unreachable"
        assert made.send(data()) == TAKEN


# ---------------------------------------------------------------------------- in another language


def test_http_to_a_port_of_grpc_is_one_kind_of_trouble_and_says_what_to_do(grpc_collector: GrpcCollector) -> None:
    kind, text = trouble(sent(grpc_collector.url, 0.5))
    assert kind == "protocol"
    assert text.endswith("; 4317 is usually gRPC: --otlp-protocol grpc")


def test_grpc_to_a_port_of_http_is_one_kind_of_trouble_and_says_what_to_do(collector: HttpCollector) -> None:
    kind, text = trouble(sent(collector.url, 1.0, otlp_protocol="grpc"))
    assert kind == "protocol"
    assert text.endswith("; 4318 is usually HTTP: --otlp-protocol http/protobuf")


FAILURES = [
    http.client.BadStatusLine("x"),
    http.client.RemoteDisconnected("closed"),
    ConnectionResetError(104, "Connection reset by peer"),
    BrokenPipeError(32, "Broken pipe"),
]


def test_what_a_grpc_server_does_to_http_is_one_kind_of_trouble_whichever_comes_first() -> None:
    found = [_trouble(error, 1.0, 4317) for error in FAILURES]
    assert {each.kind for each in found} == {"protocol"}
    assert all("--otlp-protocol grpc" in each.text for each in found)


def test_failures_of_transport_are_of_three_kinds_at_most() -> None:
    others = [ConnectionRefusedError(111, "Connection refused"), TimeoutError(), OSError(113, "No route to host")]
    kinds = [_trouble(error, 1.0, 4318).kind for error in (*FAILURES, *others, ssl.SSLError(1, "x"))]
    assert kinds == ["protocol"] + ["unreachable"] * 6 + ["tls"]


# ---------------------------------------------------------------------------- less than a yes


def test_points_rejected_over_grpc_are_told_though_the_request_was_taken(grpc_collector: GrpcCollector) -> None:
    """The exporter has no public way to an answer: this fails where its private names have changed."""
    grpc_collector.answer.partial_success.rejected_data_points = 42
    grpc_collector.answer.partial_success.error_message = "too\nold"
    with sender(grpc_collector.url, 5.0, otlp_protocol="grpc") as made:
        for _ in range(2):
            delivery = made.send(data())
            assert delivery.taken
            assert trouble(delivery) == ("partial", "42 points were rejected: too old")
        grpc_collector.answer.Clear()
        assert made.send(data()) == TAKEN


def test_they_are_told_after_the_exporter_has_connected_anew(grpc_collector: GrpcCollector) -> None:
    grpc_collector.refusal = grpc.StatusCode.UNAVAILABLE, "later"
    grpc_collector.answer.partial_success.rejected_data_points = 1
    with sender(grpc_collector.url, 0.5, otlp_protocol="grpc") as made:
        assert trouble(made.send(data()))[0] == "unreachable"
        grpc_collector.refusal = None
        assert trouble(made.send(data())) == ("partial", "1 points were rejected")


def test_a_receiver_that_only_warns_has_rejected_nothing() -> None:
    assert rejected(0, "please use gzip") is None
