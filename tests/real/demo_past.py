"""A while of the demo in a real Prometheus: lived faster than life, and stored as if the agent had been scraped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from otel_gpu.agent.engine import Engine
from otel_gpu.attribution.options import AttributionOptions, Prices
from otel_gpu.clock import ManualClock
from otel_gpu.export.prometheus import Exposition, PrometheusRenderer
from otel_gpu.metrics.agent_values import SelfStats
from otel_gpu.metrics.collect import MetricCollector
from otel_gpu.metrics.labels import Resources
from otel_gpu.model import Report
from otel_gpu.sources.sim import SimulatedHost, demo_world
from tests.real.prometheus import Prometheus, prometheus, promtool

CYCLE_S: Final = 5
SCRAPE_S: Final = 15
KWH: Final = 0.3
TOKENS_PER_S: Final = 100.0
HOST: Final = Resources({"host.name": "demo", "host.id": "0" * 32}, {"service.name": "otel-gpu"})
_OPTIONS: Final = AttributionOptions(prices=Prices("EUR", {"": 2.5}, KWH))


@dataclass(frozen=True, slots=True)
class DemoPast:
    """What a Prometheus has of it, the Unix time of the last scrape, and the last answer of the agent."""

    server: Prometheus
    last_s: float
    attribution: Report


@contextmanager
def demo_past(*, for_s: int, directory: Path) -> Iterator[DemoPast]:
    """The demo, sampled every 5 s and scraped every 15 s for so long, until a minute ago.

    Beside it a language server counts its tokens, with labels as Prometheus gives them to pods.
    """
    clock = ManualClock(wall_ns=(int(time.time()) - for_s - 60) * 10**9)
    host = SimulatedHost(demo_world(0), clock)
    engine = Engine(
        gpus=host.gpu_source(),
        processes=host.process_source(),
        names=[host.name_source()],
        clock=clock,
        options=_OPTIONS,
    )
    renderer, stats = PrometheusRenderer(HOST), SelfStats(clock.wall_ns())
    collector = MetricCollector(lambda: stats, currency="EUR")
    stored: list[str] = []
    for at_s in range(0, for_s + 1, CYCLE_S):
        attribution = engine.sample()
        if at_s % SCRAPE_S == 0:
            errors = {source.name: 0 for source in attribution.sources}
            stats = replace(stats, cpu_s=at_s / 100, memory_bytes=50 << 20, source_errors=errors)
            collection = collector.collect(attribution)
            told = renderer.render(collection, Exposition.TEXT).decode().splitlines()
            told += [
                f'vllm:generation_tokens_total{{pod="{pod}"}} {TOKENS_PER_S * at_s}' for pod in _served(attribution)
            ]
            last_s = clock.wall_ns() / 1e9
            # Without their types: blocks of different scrapes are not together here.
            stored += [f"{line} {last_s:.3f}" for line in told if not line.startswith("#")]
        clock.advance(CYCLE_S)
    directory.mkdir(exist_ok=True)
    file = directory / "stored.txt"
    file.write_text("\n".join([*stored, "# EOF", ""]), encoding="utf-8")
    made = promtool("tsdb", "create-blocks-from", "openmetrics", str(file), str(directory / "data"))
    assert made.returncode == 0, made.stderr
    # What is not in the scrape of an instant is not there: nobody marked as stale what ended.
    with prometheus(None, directory=directory, flags=[f"--query.lookback-delta={SCRAPE_S - 1}s"]) as server:
        yield DemoPast(server, last_s, attribution)


def _served(attribution: Report) -> set[str]:
    names = [workload.names for workload in attribution.workloads]
    return {each.pod for each in names if each is not None and each.pod is not None and each.container == "vllm-chat"}
