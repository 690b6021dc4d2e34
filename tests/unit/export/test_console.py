"""OTLP in JSON, and the console exporter."""

from __future__ import annotations

import io
import json
from typing import Any

from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from otel_gpu.agent.engine import Engine
from otel_gpu.agent.host import open_host
from otel_gpu.clock import SystemClock
from otel_gpu.config import load
from otel_gpu.export.batches import Batch
from otel_gpu.export.otlp import ConsoleSender, to_otlp_json
from otel_gpu.export.otlp_encoder import encode
from otel_gpu.export.sender import ACCEPTED
from otel_gpu.metrics.agent_values import SelfAccount
from otel_gpu.metrics.collect import CycleMetrics
from otel_gpu.metrics.provider import AgentMetrics
from otel_gpu.metrics.series import Collection, Point
from tests.unit.export.exposition import RESOURCES, TIME_NS, collection, point_count
from tests.unit.export.samples import batch

GPU = {"hw.id": "GPU-0", "gpu.index": "0"}


def written(found: Collection) -> Any:
    """The document on the one line."""
    text = to_otlp_json(found, RESOURCES)
    assert text.count("\n") == 1
    assert text.endswith("\n")
    return json.loads(text)


def test_a_counter_in_json_has_integers_as_text_and_its_temporality_as_a_number() -> None:
    point = Point(7, {**GPU, "hw.type": "gpu", "error.type": "xid"}, start_ns=TIME_NS - 5)
    [resource] = written(collection(hw_errors=[point]))["resourceMetrics"]
    attributes = {one["key"]: one["value"]["stringValue"] for one in resource["resource"]["attributes"]}
    assert attributes == {**RESOURCES.shared, **RESOURCES.agent}
    [metric] = resource["scopeMetrics"][0]["metrics"]
    assert (metric["name"], metric["unit"]) == ("hw.errors", "{error}")
    assert (metric["sum"]["aggregationTemporality"], metric["sum"]["isMonotonic"]) == (2, True)
    [found] = metric["sum"]["dataPoints"]
    assert (found["asInt"], found["startTimeUnixNano"], found["timeUnixNano"]) == ("7", str(TIME_NS - 5), str(TIME_NS))


def test_an_empty_collection_prints_nothing() -> None:
    assert to_otlp_json(collection(), RESOURCES) == ""


def test_every_export_of_a_whole_host_is_one_line_of_json() -> None:
    clock = SystemClock()
    config = load({"source": "sim"}, {}).config
    host = open_host(config, clock)
    engine = Engine(
        gpus=host.gpus, processes=host.processes, names=host.names, clock=clock, options=config.attribution.options
    )
    account = SelfAccount(started_ns=clock.wall_ns(), cpu_s=lambda: 1.5, memory_bytes=lambda: 1 << 20)
    metrics = AgentMetrics(CycleMetrics(engine.sample, account))
    printed = io.StringIO()
    sender = ConsoleSender(printed, RESOURCES)
    try:
        collections = [found for _ in range(2) if (found := metrics.collect()) is not None]
    finally:
        engine.close()
    assert len(collections) == 2
    for each in collections:
        assert sender.send(batch(each)) == ACCEPTED
    for line, each in zip(printed.getvalue().splitlines(), collections, strict=True):
        request = Parse(line, ExportMetricsServiceRequest())
        assert request == encode(each, RESOURCES)
        sent = [metric for resource in request.resource_metrics for metric in resource.scope_metrics[0].metrics]
        points = [point for metric in sent for point in (*metric.sum.data_points, *metric.gauge.data_points)]
        assert len(points) == point_count(each)


def test_a_closed_standard_output_is_a_failure() -> None:
    printed = io.StringIO()
    printed.close()
    result = ConsoleSender(printed, RESOURCES).send(Batch(0, ()))
    assert not result.accepted
    assert result.failure is not None
    assert result.failure.text.startswith("standard output cannot be written")
