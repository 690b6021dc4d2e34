"""Tests whether a receiver accepts OTLP, without sending data."""

from __future__ import annotations

from opentelemetry.sdk.metrics.export import MetricsData

from otel_gpu.export.exporter_log import ExporterLog
from otel_gpu.export.otlp import open_otlp
from otel_gpu.export.sender import ExportFailure
from otel_gpu.settings_export import ExportConfig


def probe_otlp(config: ExportConfig, timeout_s: float) -> ExportFailure | None:
    """Send an empty request as the agent would send a full one; ``None`` if it was accepted.

    OTLP requires servers to answer an empty request with success. So name, route, proxy, TLS, headers, path and
    protocol are all tested, and nothing is stored.
    """
    log = ExporterLog()
    log.install()
    try:
        sender = open_otlp(config, log, timeout_s)
        try:
            return sender.send(MetricsData(resource_metrics=[])).failure
        finally:
            sender.close()
    finally:
        log.remove()
