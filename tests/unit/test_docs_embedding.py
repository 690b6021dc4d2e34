"""docs/embedding.md: what it shows works in a service, and what it lists is taken."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics.view import DropAggregation, View

from otel_gpu.agent import embed
from otel_gpu.config import Topic, keys
from tests.docs_commands import ROOT, blocks
from tests.unit.export.collectors import HttpCollector

PAGE = (ROOT / "docs/embedding.md").read_text(encoding="utf-8")
[SERVICE, VIEW] = [block.text for block in blocks("docs/embedding.md", PAGE) if block.language == "python"]
PATIENCE_S = 30.0


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpCollector]:
    """A Collector to which this process's exporters push, on a simulated host."""
    started = HttpCollector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", started.url)
    monkeypatch.setenv("OTEL_GPU_SOURCE", "sim")
    yield started
    started.close()


def test_the_service_of_the_page_exports_the_users_of_its_gpus(collector: HttpCollector) -> None:
    service: dict[str, Any] = {}

    def serve() -> None:
        end_s = time.monotonic() + PATIENCE_S
        while "gpu.workload.memory.usage" not in names(collector):
            assert time.monotonic() < end_s
            service["provider"].force_flush()

    service["serve"] = serve
    try:
        exec(SERVICE, service)
    finally:
        service["provider"].shutdown()


def names(collector: HttpCollector) -> set[str]:
    """The metrics that have arrived."""
    return {
        metric.name
        for seen in collector.seen
        for resource in seen.request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_the_sdk_view_of_the_page_is_valid() -> None:
    assert isinstance(eval(VIEW, {"View": View, "DropAggregation": DropAggregation}), View)


def test_the_page_lists_every_setting_of_a_service_but_those_of_names() -> None:
    listed = PAGE.partition("* **Settings**")[2].partition("`environment`")[0]
    named = {name.replace("_", "-") for name in re.findall(r"`([a-z_]+)`", listed)}
    assert named == set(embed._KEYS) - set(keys(Topic.NAMES))
