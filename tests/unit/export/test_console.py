"""The console exporter, with all metrics of a host."""

from __future__ import annotations

import io
import json

from opentelemetry.sdk.metrics.export import MetricsData

from otel_gpu.clock import SystemClock
from otel_gpu.config import load
from otel_gpu.engine import Engine
from otel_gpu.export.console import ConsoleSender
from otel_gpu.export.metrics_data import metrics_data
from otel_gpu.export.sender import ACCEPTED
from otel_gpu.host import open_host
from otel_gpu.metrics.collect import CycleMetrics
from otel_gpu.metrics.provider import AgentMetrics
from otel_gpu.metrics.selfstats import SelfAccount
from tests.unit.export.exposition import point_count
from tests.unit.export.samples import RESOURCES


def test_every_export_of_a_whole_host_is_one_line_of_json() -> None:
    clock = SystemClock()
    config = load({"source": "sim"}, {}).config
    host = open_host(config, clock)
    engine = Engine(gpus=host.gpus, processes=host.processes, names=host.names, clock=clock, options=config.attribution)
    account = SelfAccount(started_ns=clock.wall_ns(), cpu_s=lambda: 1.5, memory_bytes=lambda: 1 << 20)
    metrics = AgentMetrics(CycleMetrics(engine.sample, account))
    printed = io.StringIO()
    sender = ConsoleSender(printed)
    try:
        collections = [found for _ in range(2) if (found := metrics.collect()) is not None]
    finally:
        engine.close()
    assert len(collections) == 2
    for collection in collections:
        assert sender.send(metrics_data(collection, RESOURCES)) == ACCEPTED
    for line, collection in zip(printed.getvalue().splitlines(), collections, strict=True):
        scopes = [resource["scope_metrics"][0] for resource in json.loads(line)["resource_metrics"]]
        points = [point for scope in scopes for metric in scope["metrics"] for point in metric["data"]["data_points"]]
        assert len(points) == point_count(collection)
        assert all(isinstance(point["attributes"], dict) for point in points)


def test_a_closed_standard_output_is_a_failure() -> None:
    printed = io.StringIO()
    printed.close()
    result = ConsoleSender(printed).send(MetricsData([]))
    assert not result.accepted
    assert result.failure is not None
    assert result.failure.text.startswith("standard output cannot be written")
