"""The console, with all that a host has to tell."""

from __future__ import annotations

import io
import json

from otel_gpu.clock import SystemClock
from otel_gpu.config import load
from otel_gpu.engine import Engine
from otel_gpu.export.console import ConsoleSender
from otel_gpu.export.metrics_data import Encoder
from otel_gpu.export.sender import TAKEN
from otel_gpu.host import open_host
from otel_gpu.metrics.provider import AgentMetrics
from otel_gpu.metrics.readings import Readings
from otel_gpu.metrics.selfstats import SelfAccount
from tests.unit.export.samples import RESOURCES


def test_every_export_of_a_whole_host_is_one_line_of_json() -> None:
    clock = SystemClock()
    config = load({"source": "sim"}, {}).config
    host = open_host(config, clock)
    engine = Engine(gpus=host.gpus, processes=host.processes, names=host.names, clock=clock, options=config.attribution)
    account = SelfAccount(started_ns=clock.wall_ns(), cpu_s=lambda: 1.5, memory_bytes=lambda: 1 << 20)
    metrics = AgentMetrics(Readings(engine.sample, account))
    printed = io.StringIO()
    sender, encoder = ConsoleSender(printed), Encoder(RESOURCES, largest_bytes=None)
    try:
        collections = [found for _ in range(2) if (found := metrics.collect()) is not None]
    finally:
        engine.close()
    assert len(collections) == 2
    for collection in collections:
        (batch,) = encoder.batches(collection)
        assert sender.send(batch.data) == TAKEN
    for line, collection in zip(printed.getvalue().splitlines(), collections, strict=True):
        scopes = [resource["scope_metrics"][0] for resource in json.loads(line)["resource_metrics"]]
        points = [point for scope in scopes for metric in scope["metrics"] for point in metric["data"]["data_points"]]
        assert len(points) == collection.point_count
        assert all(isinstance(point["attributes"], dict) for point in points)
