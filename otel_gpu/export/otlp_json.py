"""A collection as OTLP in JSON, which a Collector accepts on ``/v1/metrics`` and reads from files."""

from __future__ import annotations

import json

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

from otel_gpu.export.metrics_data import metrics_data
from otel_gpu.metrics.labels import Resources
from otel_gpu.metrics.series import Collection


def to_otlp_json(collection: Collection, resources: Resources) -> str:
    """One ExportMetricsServiceRequest on one line; empty if there are no points.

    https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding: names in camel case, 64-bit integers as text,
    enumerations as numbers.
    """
    request = encode_metrics(metrics_data(collection, resources))
    if not request.resource_metrics:
        return ""
    document = MessageToDict(request, use_integers_for_enums=True)
    return json.dumps(document, separators=(",", ":")) + "\n"
