"""A simulated host's past in a real Prometheus: lived faster than life, and stored as if it had been scraped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_gpu.agent.engine import Engine
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.clock import ManualClock
from otel_gpu.compat.exporters import EXPORTERS
from otel_gpu.compat.render import render
from otel_gpu.compat.schema import RenderContext
from otel_gpu.metrics.rows import ReportRows, report_rows
from otel_gpu.model import GpuReading
from otel_gpu.sources.sim.host import SimulatedHost
from otel_gpu.sources.sim.truth import Truth
from otel_gpu.sources.sim.world import WorldSpec
from tests.real.prometheus import Prometheus, Series, prometheus, promtool

CYCLE_S: Final = 5
SCRAPE_S: Final = 15
HOST_NAME: Final = "node-1"


@dataclass(frozen=True, slots=True)
class Past:
    """What a Prometheus has of it; by Unix time of each scrape what was true, and what the driver said by GPU."""

    server: Prometheus
    truths: dict[float, Truth]
    readings: dict[float, dict[str, GpuReading]]

    @property
    def times_s(self) -> Sequence[float]:
        """When it was scraped, oldest first."""
        return sorted(self.truths)

    def query(self, expression: str, at_s: float | None = None) -> Sequence[Series]:
        """What an expression gave at a scrape, the last unless told."""
        return self.server.query(expression, self.times_s[-1] if at_s is None else at_s)

    def by(self, label: str, expression: str, at_s: float | None = None) -> dict[str, float]:
        """The same, by a label of its series; no two may have the same."""
        found = [(one.labels.get(label, ""), one.value) for one in self.query(expression, at_s)]
        assert len(dict(found)) == len(found), (expression, found)
        return dict(found)


@contextmanager
def past(world: WorldSpec, *, for_s: int, options: AttributionOptions, directory: Path) -> Iterator[Past]:
    """A world that has been sampled every 5 s and scraped every 15 s for so long, until a minute ago."""
    clock = ManualClock(wall_ns=(int(time.time()) - for_s - 60) * 10**9)
    host = SimulatedHost(world, clock)
    engine = Engine(
        gpus=host.gpu_source(),
        processes=host.process_source(),
        names=[host.name_source()],
        clock=clock,
        options=options,
    )
    truths: dict[float, Truth] = {}
    readings: dict[float, dict[str, GpuReading]] = {}
    stored: list[str] = []
    for at_s in range(0, for_s + 1, CYCLE_S):
        attribution = engine.sample()
        if at_s % SCRAPE_S == 0:
            stored += _scraped(report_rows(attribution), clock.wall_ns() // 10**6)
            truths[clock.wall_ns() / 1e9] = host.truth()
            readings[clock.wall_ns() / 1e9] = {str(each.identity.index): each.reading for each in attribution.gpus}
        clock.advance(CYCLE_S)
    directory.mkdir(exist_ok=True)
    text = directory / "stored.txt"
    text.write_text("\n".join([*stored, "# EOF", ""]), encoding="utf-8")
    made = promtool("tsdb", "create-blocks-from", "openmetrics", str(text), str(directory / "data"))
    assert made.returncode == 0, made.stderr
    # What is not in the scrape of an instant is not there: nobody marked as stale what ended.
    lookback = f"--query.lookback-delta={SCRAPE_S - 1}s"
    with prometheus(None, directory=directory, flags=[lookback]) as server:
        yield Past(server, truths, readings)


def _scraped(rows: ReportRows, time_ms: int) -> Iterator[str]:
    scene = RenderContext(rows, HOST_NAME)
    told = b"".join(render(exporter, scene, prefix=exporter.prefix) for exporter in EXPORTERS.values())
    # Without their types: a counter that is not called _total is none to OpenMetrics.
    return (f"{line} {time_ms / 1e3:.3f}" for line in told.decode().splitlines() if not line.startswith("#"))
