"""OTLP in JSON, which a Collector accepts on ``/v1/metrics`` and reads from files: on standard output."""

from __future__ import annotations

import json
from typing import TextIO

from google.protobuf.json_format import MessageToDict

from otel_gpu.export.batches import Batch
from otel_gpu.export.otlp_encoder import encode
from otel_gpu.export.sender import ACCEPTED, ExportFailure, ExportResult
from otel_gpu.metrics.labels import Resources
from otel_gpu.metrics.series import Collection


def to_otlp_json(collection: Collection | Batch, resources: Resources) -> str:
    """One ExportMetricsServiceRequest on one line; empty if there are no points.

    https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding: names in camel case, 64-bit integers as text,
    enumerations as numbers.
    """
    request = encode(collection, resources)
    if not request.resource_metrics:
        return ""
    document = MessageToDict(request, use_integers_for_enums=True)
    return json.dumps(document, separators=(",", ":")) + "\n"


class ConsoleSender:
    """Prints requests instead of sending them, one line of JSON each."""

    def __init__(self, stream: TextIO, resources: Resources) -> None:
        self._stream = stream
        self._resources = resources

    def send(self, batch: Batch) -> ExportResult:
        """Print one line."""
        line = to_otlp_json(batch, self._resources)
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            failure = ExportFailure("closed", f"standard output cannot be written: {error}")
            return ExportResult(accepted=False, failure=failure)
        return ACCEPTED

    def close(self) -> None:
        """Do nothing: there is no connection."""
