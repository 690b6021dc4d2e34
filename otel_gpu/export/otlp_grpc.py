"""OTLP over gRPC. Imported only where gRPC is chosen: it takes 16 MB."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]  # it has no types
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # it has no types
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub

from otel_gpu.bounded_io import MAX_PEM_BYTES, one_line, read_file
from otel_gpu.config.groups import Compression, ExportConfig
from otel_gpu.export.sender import (
    PROTOCOL,
    TLS,
    UNREACHABLE,
    Attempt,
    ExportFailure,
    ExportResult,
    rejected_points,
)
from otel_gpu.version import __version__

_COMPRESSION: Final = {Compression.NONE: grpc.Compression.NoCompression, Compression.GZIP: grpc.Compression.Gzip}
_OPTIONS: Final = (
    ("grpc.primary_user_agent", f"otel-gpu/{__version__}"),
    ("grpc.max_reconnect_backoff_ms", 5000),  # by default a channel is dead for up to two minutes after an outage
)
_RETRYABLE: Final = frozenset({"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"})
"""https://opentelemetry.io/docs/specs/otlp/#failures; RESOURCE_EXHAUSTED too if the receiver sends a RetryInfo."""

_NOT_AVAILABLE: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED", "ABORTED"})
"""Codes that say that the receiver is not available now. With any other code it has refused the request."""

_NO_ANSWER: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})
_STATUS_DETAILS: Final = "grpc-status-details-bin"
_NOT_HTTP2: Final = re.compile(r"HTTP/2|http1")
_NO_TRUST: Final = re.compile(r"SSL|TLS|CERTIFICATE|[Cc]ertificate|[Hh]andshake|Hostname Verification")
_HTTP_PORT: Final = ":4318"
_HTTP_HINT: Final = "; 4318 is usually HTTP: --otlp-protocol http/protobuf"


class GrpcTransport:
    """Calls a Collector, over one channel, which connects again by itself."""

    def __init__(self, config: ExportConfig) -> None:
        endpoint = config.otlp.target
        target = _with_port(endpoint.scheme, endpoint.authority)
        self._is_http_port = target.endswith(_HTTP_PORT)
        compression = _COMPRESSION[config.otlp.compression]
        self._channel = (
            grpc.insecure_channel(target, _OPTIONS, compression)
            if endpoint.scheme == "http"
            else grpc.secure_channel(target, _credentials(config), _OPTIONS, compression)
        )
        self._export = MetricsServiceStub(self._channel).Export  # type: ignore[no-untyped-call]
        self._metadata = tuple(config.otlp.headers.items())

    def prepare(self, request: ExportMetricsServiceRequest) -> Callable[[float], Attempt]:
        """Nothing to prepare: gRPC serializes and compresses."""
        return partial(self._attempt, request)

    def close(self) -> None:
        """Close the channel, which ends a call in progress."""
        self._channel.close()

    def _attempt(self, request: ExportMetricsServiceRequest, timeout_s: float) -> Attempt:
        try:
            answer = self._export(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            code = error.code().name
            retry_after_s = _retry_after_s(error)
            is_retryable = code in _RETRYABLE or (code == "RESOURCE_EXHAUSTED" and retry_after_s is not None)
            failure = self._failure(code, error.details() or "")
            result = ExportResult(accepted=False, failure=failure, try_next=code not in _NOT_AVAILABLE)
            return Attempt(result, is_retryable, retry_after_s)
        success = answer.partial_success
        rejected = rejected_points(success.rejected_data_points, success.error_message)
        return Attempt(ExportResult(accepted=True, failure=rejected))

    def _failure(self, code: str, details: str) -> ExportFailure:
        """A status in words. Codes that no receiver sent are of few kinds, as they alternate."""
        text = f"gRPC {code}: {_root_cause(details)}"
        if code not in _NO_ANSWER:
            return ExportFailure(code, text)
        if _NOT_HTTP2.search(details) or (self._is_http_port and "onnection refused" not in details):
            return ExportFailure(PROTOCOL, text + _HTTP_HINT)
        return ExportFailure(TLS if _NO_TRUST.search(details) else UNREACHABLE, text)


def _retry_after_s(error: grpc.RpcError) -> float | None:
    """How long the receiver asks to wait: a RetryInfo in the details of its status."""
    encoded = dict(error.trailing_metadata() or ()).get(_STATUS_DETAILS)
    if encoded is None:
        return None
    info = RetryInfo()
    try:
        if not any(detail.Unpack(info) for detail in Status.FromString(encoded).details):
            return None
    except DecodeError:
        return None
    return float(max(0.0, info.retry_delay.seconds + info.retry_delay.nanos / 1e9))


def _root_cause(details: str) -> str:
    """The end of a chain of errors, which is the first error."""
    return one_line(details.rpartition("last error: ")[2])


def _with_port(scheme: str, authority: str) -> str:
    """The authority with the default port of its scheme. gRPC would use 443 for both schemes."""
    has_port = re.search(r":[0-9]+$", authority) is not None
    return authority if has_port else f"{authority}:{80 if scheme == 'http' else 443}"


def _credentials(config: ExportConfig) -> grpc.ChannelCredentials:
    certificate, key = config.otlp.client_certificate, config.otlp.client_key
    return grpc.ssl_channel_credentials(
        root_certificates=_read(config.otlp.certificate),
        private_key=_read(key or certificate),  # one file may have both
        certificate_chain=_read(certificate),
    )


def _read(path: Path | None) -> bytes | None:
    return None if path is None else read_file(path, MAX_PEM_BYTES)
