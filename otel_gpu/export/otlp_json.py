"""A collection as OTLP in JSON, as a Collector reads it on ``/v1/metrics`` and from files."""

from __future__ import annotations

import json

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

from otel_gpu.export.metrics_data import Encoder
from otel_gpu.metrics.collection import Collection, Resources


def to_otlp_json(collection: Collection, resources: Resources) -> str:
    """One request, an ExportMetricsServiceRequest, on one line.

    https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding: names in camel case, 64-bit integers as text,
    enumerations as numbers.
    """
    requests = (encode_metrics(batch.data) for batch in Encoder(resources, largest_bytes=None).batches(collection))
    documents = (MessageToDict(request, use_integers_for_enums=True) for request in requests)
    return "".join(json.dumps(document, separators=(",", ":")) + "\n" for document in documents)
