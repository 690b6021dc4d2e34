"""Whether a receiver takes OTLP, without telling it anything."""

from __future__ import annotations

from opentelemetry.sdk.metrics.export import MetricsData

from otel_gpu.export.exporter_log import ExporterLog
from otel_gpu.export.otlp import open_otlp
from otel_gpu.export.sender import Trouble
from otel_gpu.settings_export import ExportConfig


def probe_otlp(config: ExportConfig, timeout_s: float) -> Trouble | None:
    """Send a request without data, as the agent would send one with it; what was wrong with that, if anything was.

    OTLP: a server that gets an empty request should answer with success. So name, route, proxy, TLS, headers, path and
    protocol are all put to the test, and nothing is stored anywhere.
    """
    log = ExporterLog()
    log.install()
    try:
        sender = open_otlp(config, log, timeout_s)
        try:
            return sender.send(MetricsData(resource_metrics=[])).trouble
        finally:
            sender.close()
    finally:
        log.remove()
