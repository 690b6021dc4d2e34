"""The console exporter: one line of JSON on standard output per export, by the SDK's exporter."""

from __future__ import annotations

from typing import TextIO

from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricsData

from otel_gpu.export.sender import ACCEPTED, ExportFailure, ExportResult


class ConsoleSender:
    """Prints requests instead of sending them."""

    def __init__(self, stream: TextIO) -> None:
        self._exporter = ConsoleMetricExporter(out=stream, formatter=lambda data: data.to_json(indent=None) + "\n")

    def send(self, data: MetricsData) -> ExportResult:
        """Print one line."""
        try:
            self._exporter.export(data)
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            failure = ExportFailure("closed", f"standard output cannot be written: {error}")
            return ExportResult(accepted=False, failure=failure)
        return ACCEPTED

    def close(self) -> None:
        """Do nothing: there is no connection."""
