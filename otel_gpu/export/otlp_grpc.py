"""OTLP over gRPC, by OpenTelemetry's exporter. Only who chooses gRPC imports this: it takes 16 MB."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any, Final, cast

import grpc
from opentelemetry.exporter.otlp.proto.grpc import exporter as sdk_exporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData

from otel_gpu.export.exporter_log import ExporterLog
from otel_gpu.export.sender import PROTOCOL, TAKEN, TLS, UNREACHABLE, Delivery, Trouble, rejected
from otel_gpu.settings_export import Compression, ExportConfig

_COMPRESSION: Final = {Compression.NONE: grpc.Compression.NoCompression, Compression.GZIP: grpc.Compression.Gzip}
_ERROR: Final = re.compile(r"error code: StatusCode\.(\w+), error details: (.*)")
_ABSENT: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED", "ABORTED"})
"""What says that the receiver cannot be had now; with anything else it has looked at the request."""

_NO_ANSWER: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})
_NOT_HTTP2: Final = re.compile(r"HTTP/2|http1")
_NO_TRUST: Final = re.compile(r"SSL|TLS|CERTIFICATE|[Cc]ertificate|[Hh]andshake|Hostname Verification")
_HTTP_PORT: Final = ":4318"
_NO_REASON: Final = "the exporter gives no reason"
_IS_HTTP: Final = "; 4318 is usually HTTP: --otlp-protocol http/protobuf"


class _Exporter(OTLPMetricExporter):
    """Keeps the answer, which the exporter throws away: it has no public way to what a receiver rejected.

    Also takes what is encoded, for gRPC's own serialiser takes messages only. The private names are the exporter's own;
    a test fails where one of them changes.
    """

    answer: ExportMetricsServiceResponse | None = None

    def _translate_data(self, data: MetricsData | bytes) -> ExportMetricsServiceRequest:
        return (
            ExportMetricsServiceRequest.FromString(data) if isinstance(data, bytes) else super()._translate_data(data)
        )

    def _count_data(self, data: MetricsData | bytes) -> int:
        """For metrics of its own that nobody has switched on."""
        return 0 if isinstance(data, bytes) else super()._count_data(data)

    def _initialize_channel_and_stub(self) -> None:
        """Listen to each new stub: the exporter makes one at the start, and one when it reconnects."""
        super()._initialize_channel_and_stub()  # type: ignore[no-untyped-call]
        stub: Any = self._client
        export = stub.Export

        def listening(**named: object) -> ExportMetricsServiceResponse:
            self.answer = export(**named)
            return self.answer

        stub.Export = listening


class GrpcSender:
    """Calls a Collector, with the exporter's repetitions."""

    def __init__(self, config: ExportConfig, timeout_s: float, log: ExporterLog) -> None:
        endpoint = config.otlp_target
        self._log = log
        self._is_http_port = endpoint.authority.endswith(_HTTP_PORT)
        self._exporter = _Exporter(
            endpoint=f"{endpoint.scheme}://{_with_port(endpoint.scheme, endpoint.authority)}",
            insecure=endpoint.scheme == "http",
            credentials=None if endpoint.scheme == "http" else _credentials(config),
            headers=dict(config.otlp_headers),
            timeout=timeout_s,
            compression=_COMPRESSION[config.otlp_compression],
        )
        # The exporter drops a line like the one before it, by its format alone: another reason would be lost.
        logger = logging.getLogger(sdk_exporter.__name__)
        for each in list(logger.filters):
            logger.removeFilter(each)

    def send(self, data: MetricsData | bytes) -> Delivery:
        """Call once for a request."""
        self._exporter.answer = None
        with self._log.heard() as lines:
            taken = self._exporter.export(cast("MetricsData", data)) is MetricExportResult.SUCCESS
        if taken:
            return self._judged(self._exporter.answer)
        found = next((match for line in reversed(lines) if (match := _ERROR.search(line))), None)
        if found is None:
            return Delivery(taken=False, trouble=Trouble("failed", lines[-1] if lines else _NO_REASON), go_on=True)
        return Delivery(taken=False, trouble=self._trouble(found[1], found[2]), go_on=found[1] not in _ABSENT)

    def close(self) -> None:
        """Give up what is under way: the channel is closed over it."""
        self._exporter.shutdown()

    def _judged(self, answer: ExportMetricsServiceResponse | None) -> Delivery:
        if answer is None:
            return TAKEN
        trouble = rejected(answer.partial_success.rejected_data_points, answer.partial_success.error_message)
        return TAKEN if trouble is None else Delivery(taken=True, trouble=trouble)

    def _trouble(self, code: str, details: str) -> Trouble:
        """A status in words. Those that no receiver sent are of few kinds, as they come by turns."""
        text = f"gRPC {code}: {_told(details)}"
        if code not in _NO_ANSWER:
            return Trouble(code, text)
        if _NOT_HTTP2.search(details) or (self._is_http_port and "onnection refused" not in details):
            return Trouble(PROTOCOL, text + _IS_HTTP)
        return Trouble(TLS if _NO_TRUST.search(details) else UNREACHABLE, text)


def _told(details: str) -> str:
    """The end of a chain of errors, which is where it began."""
    return details.rpartition("last error: ")[2]


def _with_port(scheme: str, authority: str) -> str:
    """A URL's own default port; gRPC would take 443 for both schemes."""
    has_port = re.search(r":[0-9]+$", authority) is not None
    return authority if has_port else f"{authority}:{80 if scheme == 'http' else 443}"


def _credentials(config: ExportConfig) -> grpc.ChannelCredentials:
    certificate, key = config.otlp_client_certificate, config.otlp_client_key
    return grpc.ssl_channel_credentials(
        root_certificates=_read(config.otlp_certificate),
        private_key=_read(key or certificate),  # one file may hold both
        certificate_chain=_read(certificate),
    )


def _read(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()
