"""OTLP over gRPC, by OpenTelemetry's exporter. Only who chooses gRPC imports this: it takes 16 MB."""

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
from otel_gpu.export.sender import TAKEN, Delivery, Trouble
from otel_gpu.settings_export import Compression, ExportConfig

_COMPRESSION: Final = {Compression.NONE: grpc.Compression.NoCompression, Compression.GZIP: grpc.Compression.Gzip}
_ERROR: Final = re.compile(r"error code: StatusCode\.(\w+), error details: (.*)")
_ABSENT: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED", "ABORTED"})
"""What says that the receiver cannot be had now; with anything else it has looked at the request."""


class GrpcSender:
    """Calls a Collector, with the exporter's repetitions."""

    def __init__(self, config: ExportConfig, timeout_s: float, log: ExporterLog) -> None:
        endpoint = config.otlp_target
        self._log = log
        self._exporter = OTLPMetricExporter(
            endpoint=f"{endpoint.scheme}://{_with_port(endpoint.scheme, endpoint.authority)}",
            insecure=endpoint.scheme == "http",
            credentials=None if endpoint.scheme == "http" else _credentials(config),
            headers=dict(config.otlp_headers),
            timeout=timeout_s,
            compression=_COMPRESSION[config.otlp_compression],
        )
        self._last = Trouble("failed", "the exporter gives no reason")
        # The exporter drops a line like the one before it, by its format alone: another reason would be lost.
        logger = logging.getLogger(sdk_exporter.__name__)
        for each in list(logger.filters):
            logger.removeFilter(each)

    def send(self, data: MetricsData) -> Delivery:
        """Call once for a request."""
        with self._log.heard() as lines:
            taken = self._exporter.export(data) is MetricExportResult.SUCCESS
        if taken:
            return TAKEN
        found = next((match for line in reversed(lines) if (match := _ERROR.search(line))), None)
        if found is not None:
            self._last = Trouble(found[1], f"gRPC {found[1]}: {_told(found[2])}")
        elif lines:
            self._last = Trouble(lines[-1], lines[-1])
        return Delivery(taken=False, trouble=self._last, go_on=self._last.kind not in _ABSENT)

    def close(self) -> None:
        """Give up what is under way: the channel is closed over it."""
        self._exporter.shutdown()


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
