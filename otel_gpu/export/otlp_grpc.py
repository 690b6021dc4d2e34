"""OTLP over gRPC, by OpenTelemetry's exporter. Imported only where gRPC is chosen: it takes 16 MB.

The exporter has no public access to the answer of a call, so points that a receiver rejects of an accepted request are
not reported over gRPC. Over HTTP they are.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Final

import grpc
from opentelemetry.exporter.otlp.proto.grpc import exporter as sdk_exporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData

from otel_gpu.export.exporter_log import ExporterLog
from otel_gpu.export.sender import ACCEPTED, PROTOCOL, TLS, UNREACHABLE, ExportFailure, ExportResult
from otel_gpu.settings_export import Compression, ExportConfig

_COMPRESSION: Final = {Compression.NONE: grpc.Compression.NoCompression, Compression.GZIP: grpc.Compression.Gzip}
_ERROR: Final = re.compile(r"error code: StatusCode\.(\w+), error details: (.*)")
_NOT_AVAILABLE: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED", "ABORTED"})
"""Codes that say that the receiver is not available now. With any other code it has refused the request."""

_NO_ANSWER: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})
_NOT_HTTP2: Final = re.compile(r"HTTP/2|http1")
_NO_TRUST: Final = re.compile(r"SSL|TLS|CERTIFICATE|[Cc]ertificate|[Hh]andshake|Hostname Verification")
_HTTP_PORT: Final = ":4318"
_HTTP_HINT: Final = "; 4318 is usually HTTP: --otlp-protocol http/protobuf"
_NO_REASON: Final = "the exporter gives no reason"
_LONGEST_REASON: Final = 200


class GrpcSender:
    """Calls a Collector, with the exporter's retries."""

    def __init__(self, config: ExportConfig, timeout_s: float, log: ExporterLog) -> None:
        endpoint = config.otlp_target
        self._log = log
        self._is_http_port = endpoint.authority.endswith(_HTTP_PORT)
        self._exporter = OTLPMetricExporter(
            endpoint=f"{endpoint.scheme}://{_with_port(endpoint.scheme, endpoint.authority)}",
            insecure=endpoint.scheme == "http",
            credentials=None if endpoint.scheme == "http" else _credentials(config),
            headers=dict(config.otlp_headers),
            timeout=timeout_s,
            compression=_COMPRESSION[config.otlp_compression],
        )
        # A filter of the exporter drops a line of the same format as the one before, so another reason would be lost.
        logger = logging.getLogger(sdk_exporter.__name__)
        for each in list(logger.filters):
            logger.removeFilter(each)

    def send(self, data: MetricsData) -> ExportResult:
        """Make one call, with its retries."""
        with self._log.capture() as lines:
            is_accepted = self._exporter.export(data) is MetricExportResult.SUCCESS
        if is_accepted:
            return ACCEPTED
        found = next((match for line in reversed(lines) if (match := _ERROR.search(line))), None)
        if found is None:
            reason = lines[-1][-_LONGEST_REASON:] if lines else _NO_REASON
            return ExportResult(accepted=False, failure=ExportFailure("failed", reason), try_next=True)
        code, details = found[1], found[2]
        return ExportResult(accepted=False, failure=self._failure(code, details), try_next=code not in _NOT_AVAILABLE)

    def close(self) -> None:
        """Close the channel, which ends a call in progress."""
        self._exporter.shutdown()

    def _failure(self, code: str, details: str) -> ExportFailure:
        """A status in words. Codes that no receiver sent are of few kinds, as they alternate."""
        text = f"gRPC {code}: {_root_cause(details)}"
        if code not in _NO_ANSWER:
            return ExportFailure(code, text)
        if _NOT_HTTP2.search(details) or (self._is_http_port and "onnection refused" not in details):
            return ExportFailure(PROTOCOL, text + _HTTP_HINT)
        return ExportFailure(TLS if _NO_TRUST.search(details) else UNREACHABLE, text)


def _root_cause(details: str) -> str:
    """The end of a chain of errors, which is the first error."""
    return details.rpartition("last error: ")[2]


def _with_port(scheme: str, authority: str) -> str:
    """The authority with the default port of its scheme. gRPC would use 443 for both schemes."""
    has_port = re.search(r":[0-9]+$", authority) is not None
    return authority if has_port else f"{authority}:{80 if scheme == 'http' else 443}"


def _credentials(config: ExportConfig) -> grpc.ChannelCredentials:
    certificate, key = config.otlp_client_certificate, config.otlp_client_key
    return grpc.ssl_channel_credentials(
        root_certificates=_read(config.otlp_certificate),
        private_key=_read(key or certificate),  # one file may have both
        certificate_chain=_read(certificate),
    )


def _read(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()
