"""The console: one line of JSON on stdout for each export, by the SDK's exporter."""

from __future__ import annotations

from typing import TextIO, cast

from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricsData

from otel_gpu.export.sender import TAKEN, Delivery, Trouble


class ConsoleSender:
    """Prints what would be sent."""

    def __init__(self, stream: TextIO) -> None:
        self._exporter = ConsoleMetricExporter(out=stream, formatter=lambda data: data.to_json(indent=None) + "\n")

    def send(self, data: MetricsData | bytes) -> Delivery:
        """Print a line."""
        try:
            self._exporter.export(cast("MetricsData", data))  # nothing else is made for the console
        except (OSError, ValueError) as error:  # ValueError: closed
            return Delivery(taken=False, trouble=Trouble("closed", f"standard output cannot be written: {error}"))
        return TAKEN

    def close(self) -> None:
        """Nothing to let go."""
